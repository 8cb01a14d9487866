"""Phases of a program that marks none: its own ranges, by pattern, count as prefill, decode_step or any other phase."""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from llm_perf_opt.capture.timeline import Timeline, distinct
from llm_perf_opt.core.names import DECODE_STEP, PREFILL
from llm_perf_opt.core.units import count_of

# What the engines call one forward, under nsys or in a torch trace. A step with prompts in it counts as prefill.
# Of vLLM 0.32 seen; the others as their sources have them.
PRESETS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # execute_context_1(1024)_generation_0(0); with detailed annotations execute_1024_context_1(sq1024sk…
    "vllm": {
        PREFILL: ("execute_context_[1-9]*", "execute_*_context_[1-9]*"),
        # Steps of no request at all are neither.
        DECODE_STEP: ("execute_context_0(*_generation_[1-9]*", "execute_*_context_0(*_generation_[1-9]*"),
    },
    # step[EXTEND bs=1 toks=107], step[DECODE bs=4]
    "sglang": {PREFILL: ("step?EXTEND *", "step?MIXED *"), DECODE_STEP: ("step?DECODE *",)},
    # [Executor] _forward_step 12: 0 ctx reqs, 4 gen reqs
    "tensorrt_llm": {
        PREFILL: ("*_forward_step *: [1-9]* ctx reqs*",),
        DECODE_STEP: ("*_forward_step *: 0 ctx reqs*",),
    },
    # XlaModule:#hlo_module=jit_decode_step,program_id=3#, as the jitted function is called
    "jax": {PREFILL: ("*hlo_module=jit_*prefill*",), DECODE_STEP: ("*hlo_module=jit_*decode*",)},
}


# Frameworks whose range names are unique, so that they are recognised without a setting.
UNMISTAKABLE = ("vllm", "sglang", "tensorrt_llm")


def chosen_phases(preset: str | None, given: Mapping[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The patterns of each phase: a preset's, and what the user gave in their place."""
    own = {phase: (pattern,) if isinstance(pattern, str) else pattern for phase, pattern in given.items()}
    return {**(PRESETS[preset] if preset is not None else {}), **own}


def with_phases(timeline: Timeline, phases: Mapping[str, tuple[str, ...]]) -> Timeline:
    """The same timeline, with every range that a pattern matches called by its phase; the first match counts.

    Without patterns those of a serving engine are taken, where it has ranges of one.
    """
    if phases:
        return _renamed(timeline, phases, said="workload.phases")
    names = [timeline.names[int(code)] for code in distinct(timeline.ranges.name) if code >= 0]
    engines = (e for e in UNMISTAKABLE if any(_phase_of(name, PRESETS[e]) is not None for name in names))
    engine = next(engines, None)
    return timeline if engine is None else _renamed(timeline, PRESETS[engine], said=f"names of {engine}")


def _renamed(timeline: Timeline, phases: Mapping[str, tuple[str, ...]], *, said: str) -> Timeline:
    names = list(timeline.names)
    codes = {phase: len(names) + number for number, phase in enumerate(phases)}
    changed = {
        int(code): codes[phase]
        for code in distinct(timeline.ranges.name)
        if code >= 0 and (phase := _phase_of(names[int(code)], phases)) is not None
    }
    if not changed:
        return timeline
    moved = np.array([changed.get(int(code), int(code)) for code in timeline.ranges.name], dtype=np.int64)
    return replace(
        timeline,
        names=(*names, *phases),
        ranges=replace(timeline.ranges, name=moved.astype(timeline.ranges.name.dtype)),
        notes=(*timeline.notes, *_notes(names, changed, codes, said)),
    )


def _phase_of(name: str, phases: Mapping[str, tuple[str, ...]]) -> str | None:
    return next((p for p, patterns in phases.items() if any(fnmatchcase(name, pattern) for pattern in patterns)), None)


def _notes(names: list[str], changed: Mapping[int, int], codes: Mapping[str, int], said: str) -> list[str]:
    """What counts as what, with one name as an example."""
    found = []
    for phase, code in codes.items():
        kinds = [names[old] for old, new in changed.items() if new == code]
        if kinds:
            found.append(f"counted as {phase}: {count_of(len(kinds), 'range name')} such as {kinds[0]!r} ({said})")
    return found
