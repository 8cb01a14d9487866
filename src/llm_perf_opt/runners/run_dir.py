"""Claims a run's directory before Hydra makes it: two runs of one second differ, and a resumed run keeps its own."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write


class ClaimRunDir(Callback):
    """Hydra calls this after composition and before it makes the output directory."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)  # not done yet, and conf/ refers to hydra.runtime.cwd
        resume = OmegaConf.select(config, "run.resume")
        if resume is not None:
            _set(config, "hydra.run.dir", Path(config.hydra.runtime.cwd) / Path(str(resume)).expanduser())
        elif not _is_chosen_by_user(config):
            _set(config, "hydra.run.dir", claim(Path(str(config.hydra.run.dir))))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)
        _set(config, "hydra.sweep.dir", claim(Path(str(config.hydra.sweep.dir))))


def claim(wanted: Path) -> Path:
    """Make this directory, or the first of `wanted-2`, `wanted-3`, … that does not exist yet."""
    path, number = wanted, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")


def _is_chosen_by_user(config: DictConfig) -> bool:
    overrides = [*config.hydra.overrides.task, *config.hydra.overrides.hydra]
    keys = {str(o).lstrip("+").partition("=")[0] for o in overrides}
    return bool(keys & {"artifacts.runs_dir", "hydra.run.dir"})


def _set(config: DictConfig, key: str, path: Path) -> None:
    with read_write(config), read_write(config.hydra), open_dict(config):
        OmegaConf.update(config, key, str(path))
        if key == "hydra.run.dir":
            OmegaConf.update(config, "artifacts.runs_dir", str(path))
