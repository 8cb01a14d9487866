"""Where files of a run go: absolute paths, directories made on demand."""

import warnings
from datetime import datetime
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from llm_perf_opt.core.names import BUILT_IN, STAGE_GROUP
from llm_perf_opt.errors import ConfigError, did_you_mean
from llm_perf_opt.system.files import real_path

# Scratch of what nsys and ncu watch; no stage.
WORKLOAD = "workload"


class Artifacts:
    """The layout of one run directory; made without one, it has none until `set_root`."""

    m_root: Path | None = None

    def __init__(self, root: Path | str | None = None) -> None:
        if root is not None:
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
        """Make this the run directory. The path is absolute from here on; nothing is made before it is requested."""
        self.m_root = real_path(Path(root).expanduser())

    @property
    def root(self) -> Path:
        if self.m_root is None:
            raise ConfigError("Artifacts: no run directory is set; call set_root(root) first")
        return self.m_root

    def path(self, name: str) -> Path:
        """A path inside the run, its parent made. Names that leave the run are refused."""
        path = real_path(self.root / name)
        if not path.is_relative_to(self.root):
            raise ConfigError(f"{name!r}: leaves the run directory {self.root}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def out_dir(self, stage: str) -> Path:
        """`<run>/<stage>`: what the user looks at."""
        return self.made(_stage(stage))

    def tmp_dir(self, stage: str) -> Path:
        """`<run>/tmp/<stage>`: scratch."""
        return self.made(f"tmp/{stage if stage == WORKLOAD else _stage(stage)}")

    def made(self, name: str) -> Path:
        """A directory below the run, for a stage that is planned and so is known."""
        path = self.root / name
        if not real_path(path).is_relative_to(self.root):
            raise ConfigError(f"{path}: a link that leads out of the run directory; remove it")
        path.mkdir(parents=True, exist_ok=True)
        return path


def _stage(name: str) -> str:
    """The name of a built-in stage, or of one that is installed as a plug-in."""
    if name not in BUILT_IN and name not in _plugins():
        nearest = did_you_mean(name, [*BUILT_IN, *_plugins()])
        raise ConfigError(
            f"stage {name!r}: unknown{nearest}, allowed: {', '.join(BUILT_IN)} and the installed plug-ins "
            f"(entry points of the group {STAGE_GROUP})"
        )
    return name


@cache
def _plugins() -> tuple[str, ...]:
    return tuple(sorted(entry_points(group=STAGE_GROUP).names - set(BUILT_IN)))
