"""Where files of a run go: absolute paths, directories made on demand."""

import warnings
from pathlib import Path

from llm_perf_opt.errors import ConfigError


class Artifacts:
    """The layout of one run directory."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root).expanduser().resolve()

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

    @property
    def root(self) -> Path:
        return self._root

    def path(self, name: str) -> Path:
        """A path inside the run, its parent made. Names that leave the run are refused."""
        path = (self._root / name).resolve()
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
        path.mkdir(parents=True, exist_ok=True)
        return path


def create_stage2_root(base: Path | str) -> Path:
    """Deprecated: use `Artifacts.for_run`."""
    warnings.warn(
        "create_stage2_root() is deprecated; use Artifacts.for_run(root).root",
        DeprecationWarning,
        stacklevel=2,
    )
    return Artifacts.for_run(base).root


def _identifier(stage: str) -> str:
    if not stage.isidentifier():
        raise ConfigError(f"stage name: not an identifier (got {stage!r}), allowed: letters, digits and _")
    return stage
