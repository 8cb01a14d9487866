"""The launchers of submitit and Ray, waiting as we do: until no job can give a result any more.

As they are, one job that dies raises in the submitter and the others are not waited for (on Ray they are ended), and
on a Slurm without accounting a dead job is waited for until the end of time. Here the states of the run directories and
the queue decide. The packages are extras, so they are imported when they are requested.
"""

import importlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton

from llm_perf_opt.pipeline.jobs.record import read_jobs, write_jobs
from llm_perf_opt.pipeline.jobs.states import UNFINISHED, JobState, job_states

_SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
_RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher"
# Whose class is extended, and what the extension is called.
REPLACED = {
    f"{_SUBMITIT}.SlurmLauncher": "WaitingSlurmLauncher",
    f"{_SUBMITIT}.LocalLauncher": "WaitingLocalLauncher",
    f"{_RAY}.RayLauncher": "WaitingRayLauncher",
}
# Where Hydra finds our classes (src/hydra_plugins/).
PLUGINS = "hydra_plugins.llm_perf_opt._jobs"
POLL_S = 2.0
# A shared file system may show a job's last file some time after the queue has forgotten the job.
GRACE_S = 10.0


@cache
def waiting_launcher(name: str) -> Any:
    """One of our classes by its name; made when asked for, since the class it extends is of an extra."""
    target = next((original for original, ours in REPLACED.items() if ours == name), None)
    if target is None:
        raise AttributeError(name)
    module, _, title = target.rpartition(".")
    original = getattr(importlib.import_module(module), title)
    launch = _launch_on_ray if title == "RayLauncher" else _launch_with_submitit
    made = type(name, (original,), {"launch": launch, "original": original, "__module__": PLUGINS})
    Plugins.instance().register(made)
    return made


def _launch_with_submitit(self: Any, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
    sweep_dir = Path(str(self.config.hydra.sweep.dir))
    # What is pickled there for the jobs holds their overrides as they were given.
    (sweep_dir / ".submitit").mkdir(mode=0o700, exist_ok=True)
    numbers = [_job_number(overrides) for overrides in job_overrides]
    arguments = [
        (list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", Singleton.get_state())
        for number, overrides in zip(numbers, job_overrides, strict=True)
    ]
    # Pickled as the class it extends: a job has that one, and no word of ours to wait for.
    worker = self.original(**self.params)
    worker.setup(hydra_context=self.hydra_context, task_function=self.task_function, config=self.config)
    jobs = _executor(self._EXECUTOR, self.params).map_array(worker, *zip(*arguments, strict=True))
    ids = {number: str(job.job_id) for number, job in zip(numbers, jobs, strict=True)}
    _remember(sweep_dir, ids)
    print(f"{len(jobs)} jobs: {', '.join(ids.values())}; `llm-perf sweep report {sweep_dir}` at any time", flush=True)
    wait(sweep_dir, numbers)
    return []


def _launch_on_ray(self: Any, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
    import ray
    from hydra_plugins.hydra_ray_launcher import _launcher_util as of_ray
    from omegaconf import open_dict

    of_ray.start_ray(self.ray_cfg.init)
    tasks = {}
    for overrides in job_overrides:
        number = _job_number(overrides)
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"job_id_for_{number}", number
        tasks[
            of_ray.launch_job_on_ray(
                self.hydra_context, self.ray_cfg.remote, config, self.task_function, Singleton.get_state()
            )
        ] = number
    waiting = list(tasks)
    while waiting:
        ended, waiting = ray.wait(waiting)
        for task in ended:
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                # Its state is in its directory; the others continue.
                print(f"job {tasks[task]}: {str(error).strip().splitlines()[0]}", flush=True)
    return []


def _executor(kind: str, params: dict[str, Any]) -> Any:
    """submitit's executor from the keys of `hydra.launcher`: those all clusters share, and those of this one."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from omegaconf import OmegaConf

    at_start = {f"{kind}_{key}": value for key, value in params.items() if key == "max_num_timeout"}
    executor = submitit.AutoExecutor(folder=params["submitit_folder"], cluster=kind, **at_start)
    shared = set(OmegaConf.structured(BaseQueueConf))
    later = {key: value for key, value in params.items() if key not in ("max_num_timeout", "submitit_folder")}
    executor.update_parameters(**{key if key in shared else f"{kind}_{key}": v for key, v in later.items()})
    return executor


def _job_number(overrides: Sequence[str]) -> int:
    """The number of a job, which the sweeper gave it as the name of its directory."""
    return int(overrides[-1].rpartition("=")[2])


def _remember(sweep_dir: Path, ids: dict[int, str]) -> None:
    document = read_jobs(sweep_dir)
    assert document is not None
    changed = [replace(job, scheduler_id=ids[job.number]) for job in document.jobs if job.number in ids]
    write_jobs(sweep_dir, document.with_jobs(changed))


def wait(
    sweep_dir: Path, numbers: Sequence[int], *, poll_s: float = POLL_S, grace_s: float = GRACE_S
) -> list[JobState]:
    """Until each of the jobs has ended or is lost; says so whenever something changes."""
    said = ""
    undecided_since: dict[int, float] = {}
    while True:
        document = read_jobs(sweep_dir)
        assert document is not None
        states = [state for state in job_states(sweep_dir, document) if state.number in numbers]
        moment = time.monotonic()
        for state in states:
            # A finished run whose job is still listed has something to write yet; not for ever, though.
            if (state.state == "failed" and not state.is_own) or (state.state == "ok" and state.is_listed):
                undecided_since.setdefault(state.number, moment)
            else:
                undecided_since.pop(state.number, None)
        undecided = any(moment - since < grace_s for since in undecided_since.values())
        counts = describe(states)
        if counts != said:
            said = counts
            print(f"{sweep_dir.name}: {counts}", flush=True)
        if not undecided and not any(state.state in UNFINISHED for state in states):
            return states
        time.sleep(poll_s)


def describe(states: Sequence[JobState]) -> str:
    """`3 ok, 1 failed, 2 running`."""
    order = ("ok", "failed", "running", "queued", "planned", "missing", "unknown")
    counts = {name: sum(state.state == name for state in states) for name in order}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no jobs"
