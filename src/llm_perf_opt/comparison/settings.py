"""What else changed between two runs, and which of it means that their numbers must not be compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import BUSY_GPUS

# Keys that say what was measured: other work has other times.
SAME_WORK = (
    "model.name",
    "model.adapter",
    "model.geometry*",
    "dataset.kind",
    "dataset.file",
    "dataset.subset_filelist",
    "dataset.prompt_tokens",
    "dataset.num_samples",
    "dataset.page_*",
    "dataset.seed",
    "dataset.sampling.*",
    "workload.*",
    "load.output_tokens",
    "load.arrival",
    "load.api",
    "load.ignore_eos",
    "load.temperature",
    "load.seed",
    "infer.batch",
    "infer.max_new_tokens",
    "infer.ignore_eos",
    "run.seed",
    "run.mode",
)
# What a program of the user's own has in its configuration without using it, unless it was given.
UNUSED_BY_PROGRAMS = ("model", "dataset", "infer")
# How often it was measured is not what: more repeats say the same, and are more certain of it.
NO_OTHER_WORK = ("workload.repeats",)
# Where a run was written, how it continued, and what it was asked to do besides, says nothing about what it measured.
IGNORED = (
    "artifacts.*",
    "run.resume",
    "run.dry_run",
    "run.on_failure",
    "run.env_passthrough",
    "environment.git.changed",
    "environment.tools.*.path",
    "environment.variables.SLURM_JOB_ID",
    "environment.memory_bytes",
    # Reported separately: it is not a setting.
    f"environment.{BUSY_GPUS}.*",
)
# Another machine is another result of the same work: a difference that is named, and no reason to refuse.
DEVICE_KEYS = ("environment.gpus.*.name", "environment.cpu", "device", "run.device")


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A key that differs; None where a side does not have it. `matters`: the numbers are then of different things."""

    key: str
    base: str | None
    candidate: str | None
    matters: bool

    @property
    def text(self) -> str:
        return f"{self.key}: {self.base or 'not set'} → {self.candidate or 'not set'}"


def setting_changes(
    base: RunManifest, candidate: RunManifest, *, meant: frozenset[str] = frozenset()
) -> tuple[SettingChange, ...]:
    """Every key that differs, those that matter first. Keys in `meant` were changed on purpose and never matter."""
    sides = [{**dict(_leaves("", m.config)), **_environment(m)} for m in (base, candidate)]
    found = []
    for key in sorted(sides[0].keys() | sides[1].keys()):
        values = sides[0].get(key), sides[1].get(key)
        if values[0] == values[1] or _one_of(key, IGNORED):
            continue
        if _is_unused(key, base) and _is_unused(key, candidate):
            continue
        matters = _one_of(key, SAME_WORK) and key not in (*meant, *NO_OTHER_WORK)
        found.append(SettingChange(key=key, base=values[0], candidate=values[1], matters=matters))
    return tuple(
        sorted(found, key=lambda change: (not change.matters, not _one_of(change.key, DEVICE_KEYS), change.key))
    )


def _is_unused(key: str, manifest: RunManifest) -> bool:
    """Whether a run of a program only carries this key's default."""
    workload = manifest.config.get("workload")
    if not isinstance(workload, Mapping) or not workload.get("command"):
        return False
    group = key.partition(".")[0]
    given = {word.lstrip("+~").partition("=")[0].partition(".")[0] for word in manifest.overrides}
    return group in UNUSED_BY_PROGRAMS and group not in given


def incomparable(changes: tuple[SettingChange, ...]) -> tuple[str, ...]:
    """Why two runs are not to be compared; empty where they are."""
    return tuple(change.text for change in changes if change.matters)


def _environment(manifest: RunManifest) -> dict[str, str]:
    """The machine and the software, and the device as the workload named it."""
    found = dict(_leaves("environment", manifest.environment))
    names = [stage.metrics["device_name"].value for stage in manifest.stages if "device_name" in stage.metrics]
    return {**found, **({"device": str(names[0])} if names else {})}


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for index, item in enumerate(value):
            yield from _leaves(f"{prefix}.{index}", item)
    elif value is not None:
        yield prefix, str(value)


def _one_of(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)
