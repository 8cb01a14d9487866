"""The folders in which a client may name files; what leads out of them, links included, is refused."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.mcp_server.limits import as_data, without_delimiters
from llm_perf_opt.pipeline.catalogue import LocalFolder

LONGEST_PATH = 1_000


@dataclass(frozen=True, kw_only=True)
class Roots:
    """Folders by their real paths; relative names are below the first."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Roots":
        """The folders themselves, links followed; each has to exist."""
        missing = [folder for folder in folders if not folder.is_dir()]
        if missing:
            raise ConfigError([f"--root: {folder}: no such directory, allowed: existing ones" for folder in missing])
        return cls(folders=tuple(Path(os.path.realpath(folder)) for folder in folders))

    def resolve(self, name: str) -> Path:
        """The real path of a file or folder a client named."""
        text = without_delimiters(name)
        if not text or len(text) > LONGEST_PATH or not text.isprintable():
            raise ConfigError(f"{as_data(text)}: not a path, allowed: printable, at most {LONGEST_PATH:,} characters")
        path = Path(os.path.realpath(self.folders[0] / text))
        if not self.holds(path):
            raise ConfigError(
                f"{as_data(text)}: not inside the folders this server may read, allowed: "
                f"{', '.join(as_data(str(folder)) for folder in self.folders)}"
            )
        if not path.exists():
            raise ConfigError(f"{as_data(text)}: not found; list_runs lists runs, and captures are given by their path")
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path, links followed, is inside one of the folders."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(folder) for folder in self.folders)

    def name_of(self, path: Path) -> str:
        """A path as the client may name it: relative to the first folder where it is below it."""
        first = self.folders[0]
        return path.relative_to(first).as_posix() if path.is_relative_to(first) else str(path)

    def require_own_files(self, manifest: RunManifest, run_dir: Path) -> None:
        """Refuse a run whose manifest names files outside, as another user's may."""
        for stage in manifest.stages:
            for file in stage.files:
                if not self.holds(run_dir / file.path):
                    raise ConfigError(
                        f"{as_data(self.name_of(run_dir))}: its manifest names {as_data(str(file.path))}, which is not "
                        "inside the folders this server may read"
                    )


@dataclass(frozen=True, kw_only=True)
class ReadOnlyFolder(LocalFolder):
    """Runs below a root: links that lead out are left out, no index is read or written."""

    roots: Roots

    def stamps(self) -> dict[str, str]:
        return {place: stamp for place, stamp in super().stamps().items() if self.roots.holds(self.root / place)}

    def index(self, scratch: Path) -> Path | None:
        return None

    def save_index(self, data: bytes) -> None:
        """Nothing is written below a root."""
