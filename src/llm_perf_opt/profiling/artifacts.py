"""Where files of a run go: absolute paths, directories made on demand."""

import warnings
from datetime import datetime
from pathlib import Path

from llm_perf_opt.core.files import real_path
from llm_perf_opt.errors import ConfigError


class Artifacts:
    """The layout of one run directory."""

    def __init__(self, root: Path | str) -> None:
        self.set_root(root)

    @classmethod
    def from_root(cls, root: Path | str) -> "Artifacts":
        """The layout under this directory. Give Hydra's `runtime.output_dir`, which is absolute, not `run.dir`."""
        return cls(root)

    @classmethod
    def for_run(cls, root: Path | str) -> "Artifacts":
        """Like `from_root`, and makes the run directory."""
        artifacts = cls(root)
        artifacts.root.mkdir(parents=True, exist_ok=True)
        return artifacts

    @classmethod
    def create_stage2_root(cls, base: Path | str | None = None) -> Path:
        """Deprecated: use `for_run`. Without a place, a new directory under `tmp/runs`."""
        warnings.warn(
            "create_stage2_root() is deprecated; use Artifacts.for_run(root).root",
            DeprecationWarning,
            stacklevel=2,
        )
        return cls.for_run(base or Path("tmp/runs") / datetime.now().strftime("%Y%m%d-%H%M%S")).root

    def set_root(self, root: Path | str) -> None:
        """Make this the run directory. The path is absolute from here on; nothing is made before it is asked for."""
        self._root = real_path(Path(root).expanduser())

    @property
    def root(self) -> Path:
        return self._root

    def path(self, name: str) -> Path:
        """A path inside the run, its parent made. Names that leave the run are refused."""
        path = real_path(self._root / name)
        if not path.is_relative_to(self._root):
            raise ConfigError(f"{name!r}: leaves the run directory {self._root}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def out_dir(self, stage: str) -> Path:
        """`<run>/<stage>`: what the user looks at."""
        return self._made(_identifier(stage))

    def tmp_dir(self, stage: str) -> Path:
        """`<run>/tmp/<stage>`: scratch."""
        return self._made(f"tmp/{_identifier(stage)}")

    def _made(self, name: str) -> Path:
        path = self._root / name
        if not real_path(path).is_relative_to(self._root):
            raise ConfigError(f"{path}: a link that leads out of the run directory; remove it")
        path.mkdir(parents=True, exist_ok=True)
        return path


def _identifier(stage: str) -> str:
    if not stage.isidentifier():
        raise ConfigError(f"stage name: not an identifier (got {stage!r}), allowed: letters, digits and _")
    return stage
