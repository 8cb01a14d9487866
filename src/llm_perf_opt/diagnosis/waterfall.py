"""From the physical limit to the measured time of one phase: data sheet, achievable, kernels, idle by cause, wall."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from llm_perf_opt.capture.rows import Idle
from llm_perf_opt.core.units import count_of
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, Quantity, Unknown

Kind = Literal["bound", "work", "idle", "unexplained", "wall"]
# Below this part of the wall time a cause of idle time is not worth its own line.
MIN_CAUSE = 0.002
# Why the level above may come out below: that of a bound, and that of what ran.
ABOVE_BOUND = "the data came from a cache, or the bound was computed for another prompt or context than was measured"
ABOVE_WORK = "kernels ran at the same time, or ran faster without the profiler"


@dataclass(frozen=True, kw_only=True)
class KnownStep:
    """One bar from `from_ms` to `to_ms`; `factor` is the one over the other, None for the first and the total."""

    key: str
    label: str
    kind: Kind
    from_ms: float
    to_ms: float
    how: str
    source: str | None
    is_estimate: bool = False

    @property
    def delta_ms(self) -> float:
        return self.to_ms - self.from_ms

    @property
    def factor(self) -> float | None:
        return self.to_ms / self.from_ms if self.from_ms > 0 else None


@dataclass(frozen=True, kw_only=True)
class UnknownStep:
    """A bar that cannot be drawn yet."""

    key: str
    label: str
    kind: Kind
    why: Unknown


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """The steps of one phase in order. `notes` says where the figures contradict each other."""

    phase: str
    per: str
    steps: tuple[KnownStep | UnknownStep, ...]
    wall: Quantity
    idle_share: float | None
    notes: tuple[str, ...]

    def known(self, key: str) -> KnownStep | None:
        return next((s for s in self.steps if isinstance(s, KnownStep) and s.key == key), None)


def build_waterfall(phase: PhaseFacts) -> Waterfall:
    """Every step of a phase; unknown ones stay in their place."""
    draft = _Draft()
    draft.level("datasheet", "Data-sheet bound", "bound", phase.datasheet)
    draft.level("achievable", "Achievable bound (calibrated)", "bound", phase.achievable)
    if isinstance(phase.gpu, GpuFacts):
        draft.level("kernels", "GPU kernels", "work", _busy(phase.gpu))
        _add_idle(draft, phase.gpu, phase.wall)
    elif phase.is_cpu:
        draft.level("operators", "Inside operators", "work", phase.operators)
        is_known = isinstance(phase.operators, Known)
        _add_rest(draft, phase.wall, OUTSIDE_OPERATORS if is_known else NOT_EXPLAINED)
    else:
        draft.unknown("kernels", "GPU kernels", "work", phase.gpu)
        draft.unknown("idle", "GPU idle, by cause", "idle", phase.gpu)
        _add_rest(draft, phase.wall, NOT_EXPLAINED)
    _add_wall(draft, phase.wall)
    return Waterfall(
        phase=phase.name,
        per=phase.per,
        steps=tuple(draft.steps),
        wall=phase.wall,
        idle_share=_idle_share(phase),
        notes=tuple(_contradictions(phase)),
    )


class _Draft:
    """Steps so far; each known level starts where the last known one ended."""

    def __init__(self) -> None:
        self.steps: list[KnownStep | UnknownStep] = []
        self.at_ms = 0.0

    def level(self, key: str, label: str, kind: Kind, quantity: Quantity) -> None:
        if isinstance(quantity, Unknown):
            self.unknown(key, label, kind, quantity)
            return
        self._add(key, label, kind, quantity.value, quantity.how, quantity.source, quantity.is_estimate)

    def part(self, key: str, label: str, kind: Kind, ms: float, how: str, source: str | None) -> None:
        self._add(key, label, kind, self.at_ms + ms, how, source, True)

    def unknown(self, key: str, label: str, kind: Kind, why: Unknown) -> None:
        self.steps.append(UnknownStep(key=key, label=label, kind=kind, why=why))

    def _add(self, key: str, label: str, kind: Kind, to_ms: float, how: str, source: str | None, guess: bool) -> None:
        self.steps.append(
            KnownStep(
                key=key,
                label=label,
                kind=kind,
                from_ms=self.at_ms,
                to_ms=to_ms,
                how=how,
                source=source,
                is_estimate=guess,
            )
        )
        self.at_ms = to_ms


def _busy(gpu: GpuFacts) -> Known:
    how = f"time in which at least one kernel ran, mean of {count_of(gpu.instances, 'instance')}"
    return Known(value=gpu.busy_ms, unit="ms", how=how, source=gpu.source)


def _add_idle(draft: _Draft, gpu: GpuFacts, wall: Quantity) -> None:
    if isinstance(wall, Unknown):
        draft.unknown("idle", "GPU idle, by cause", "idle", wall)
        return
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0:
        return
    how = "clean wall time less kernel time, split as in the capture"
    for key, label, ms in split_idle(gpu.idle, idle_ms):
        kind: Kind = "unexplained" if key == "unexplained" else "idle"
        draft.part(key, label, kind, ms, how, gpu.source)


CAUSES = (
    ("host", "GPU idle: waiting for the host to launch"),
    ("sync", "GPU idle: the host waits in a synchronisation"),
    ("copy", "GPU idle: a copy or set runs"),
    ("starting", "GPU idle: launch latency, after waiting for the host"),
    ("between", "GPU idle: gaps between queued kernels"),
    ("unexplained", "Not explained"),
)


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What to call the time above the last known step."""

    label: str
    kind: Kind


OUTSIDE_OPERATORS = Rest(label="Outside operators: Python and the framework", kind="idle")
NOT_EXPLAINED = Rest(label="Not explained", kind="unexplained")


def split_idle(idle: Idle, idle_ms: float) -> list[tuple[str, str, float]]:
    """The clean idle time by cause, causes too small to matter left to the largest.

    Copies and the gaps between queued kernels are the device's own time and are taken as measured; a profiler slows the
    host, so what the host causes is scaled to fill the rest in the proportions of the capture.
    """
    device = {
        "copy": idle.copy_ns / 1e6,
        "starting": idle.starting_ns / 1e6,
        "between": (idle.between_kernels_ns - idle.starting_ns) / 1e6,
    }
    host = {
        "host": idle.waiting_for_host_ns / 1e6,
        "sync": idle.sync_ns / 1e6,
        "unexplained": idle.unattributed_ns / 1e6,
    }
    rest, slow = idle_ms - sum(device.values()), sum(host.values())
    if rest < 0 or slow <= 0:
        found = {**device, **host}
        total = sum(found.values())
        if total <= 0:
            return [("unexplained", CAUSES[-1][1], idle_ms)]
        found = {key: ms * idle_ms / total for key, ms in found.items()}
    else:
        found = {**device, **{key: ms * rest / slow for key, ms in host.items()}}
    largest = max(found, key=lambda key: found[key])
    small = {key for key, ms in found.items() if ms < MIN_CAUSE * idle_ms and key != largest}
    found[largest] += sum(found[key] for key in small)
    return [(key, label, found[key]) for key, label in CAUSES if key not in small]


def _add_rest(draft: _Draft, wall: Quantity, rest: Rest) -> None:
    if isinstance(wall, Unknown) or wall.value <= draft.at_ms:
        return
    how = "clean wall time less the steps above"
    draft.part("rest", rest.label, rest.kind, wall.value - draft.at_ms, how, wall.source)


def _add_wall(draft: _Draft, wall: Quantity) -> None:
    if isinstance(wall, Unknown):
        draft.unknown("wall", "Clean wall time", "wall", wall)
        return
    draft.steps.append(
        KnownStep(
            key="wall",
            label="Clean wall time",
            kind="wall",
            from_ms=0.0,
            to_ms=wall.value,
            how=wall.how,
            source=wall.source,
            is_estimate=wall.is_estimate,
        )
    )


def _idle_share(phase: PhaseFacts) -> float | None:
    if not isinstance(phase.gpu, GpuFacts) or not isinstance(phase.wall, Known) or phase.wall.value <= 0:
        return None
    return max(0.0, 1.0 - phase.gpu.busy_ms / phase.wall.value)


def _contradictions(phase: PhaseFacts) -> Sequence[str]:
    """Where a level is below the one it should lie above: the two were not measured on the same work."""
    gpu = phase.gpu
    work = _busy(gpu) if isinstance(gpu, GpuFacts) else phase.operators
    levels = [
        ("the data-sheet bound", phase.datasheet, ABOVE_BOUND),
        ("the achievable bound", phase.achievable, ABOVE_BOUND),
        ("the kernel time" if isinstance(gpu, GpuFacts) else "the time inside operators", work, ABOVE_WORK),
        ("the clean wall time", phase.wall, ABOVE_WORK),
    ]
    known = [(name, q.value, reason) for name, q, reason in levels if isinstance(q, Known)]
    return [
        f"{high} ({high_ms:.4g} ms) is below {low} ({low_ms:.4g} ms): {reason}"
        for (low, low_ms, reason), (high, high_ms, _) in pairwise(known)
        if high_ms < low_ms
    ]
