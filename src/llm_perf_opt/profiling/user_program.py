"""A program of the user's own: what it is called, and what its clean pass says from the phases it marked.

The program runs without a profiler; the lines its marks wrote (`llm_perf_opt.marks`) become the same document our own
workload writes, so that everything after it need not know whose program ran.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from llm_perf_opt.core.documents import CleanPass, Methods, MetricsDocument, RanModel, Stats
from llm_perf_opt.core.names import DECODE_STEP, PREFILL
from llm_perf_opt.marks import STOP_AFTER
from llm_perf_opt.system.process import program_title
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.workload.results import PERCENTILE_METHOD, STD_METHOD, summarise

PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_SHELL = re.compile(r"sh|bash|dash|zsh")
SHEBANG_BYTES = 200
# What samples.jsonl calls the pass that was not under a profiler.
CLEAN_PASS = "clean"
# Tokens by the time of a phase.
RATES = {PREFILL: "prefill_tokens_per_s", DECODE_STEP: "decode_tokens_per_s"}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One line a mark wrote. `tokens` are those of the phase, all sequences together; `found`: we wrote it, for a
    library whose loop is known, not the program.
    """

    kind: str
    name: str
    ms: float
    start_ns: int
    warmup: bool = False
    synchronised: bool = False
    tokens: int | None = None
    found: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """One run of the program without a profiler. `wall_s` is None when it did not end and was ended."""

    wall_s: float | None
    marks: tuple[Mark, ...]


def is_python(command: Sequence[str], user_dir: Path) -> bool:
    """Whether the program can be seen to be Python: by its name, in a shell's `-c` too, or by its file's first line."""
    import shutil

    name = command[0]
    if PYTHON.fullmatch(Path(name).name):
        return True
    if _SHELL.fullmatch(Path(name).name) and len(command) > 2 and command[1] == "-c":
        return bool(PYTHON.fullmatch(Path([*command[2].split(), ""][0]).name))
    found = shutil.which(name if "/" not in name else str(user_dir / name))
    if found is None:
        return False
    with Path(found).open("rb") as file:
        first = file.read(SHEBANG_BYTES).split(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def phase_limit(stop_after_phases: int | None) -> dict[str, str]:
    """The setting with which the program's own marks end it after this many phases."""
    return {} if stop_after_phases is None else {STOP_AFTER: str(stop_after_phases)}


def read_marks(folder: Path, redactor: Redactor) -> tuple[Mark, ...]:
    """The lines of every process, by start; a last line that was cut off is left out.

    Phases that the program marks itself win over those that were found. A program may put a secret into a name: it is
    taken out here, because the name of a metric that is made of it would no longer look like one.
    """
    decoder = msgspec.json.Decoder(Mark)
    found: list[Mark] = []
    for path in sorted(folder.glob("marks-*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        # What is behind the last line break is empty or cut off.
        found += [decoder.decode(line) for line in lines[:-1]]
    has_own = any(mark.kind == "phase" and not mark.found for mark in found)
    kept = (mark for mark in found if not (has_own and mark.found))
    marks = sorted(kept, key=lambda mark: mark.start_ns)
    renamed = redactor.changed(list(dict.fromkeys(mark.name for mark in marks)))
    return tuple(replace(mark, name=renamed[mark.name]) if mark.name in renamed else mark for mark in marks)


def describe_program(
    command: Sequence[str],
    runs: Sequence[ProgramRun],
    *,
    device_name: str,
    is_cpu: bool,
    peak_memory_bytes: int | None,
    peak_memory_reason: str | None,
) -> MetricsDocument:
    """The clean pass of a program as metrics.json has it."""
    marks = [mark for run in runs for mark in run.marks if not mark.warmup]
    unsynchronised = sorted({mark.name for mark in marks if mark.kind == "phase" and not mark.synchronised})
    notes = []
    if unsynchronised and not is_cpu:
        named = ", ".join(unsynchronised)
        notes.append(f"phases without a wait for the GPU at their ends, so their times are the host's: {named}")
    names = sorted({mark.name for mark in marks if mark.found})
    if names:
        notes.append(f"phases found without marks, in calls of transformers or torch's optimizer: {', '.join(names)}")
    if not marks:
        notes.append(
            'the program marks no phases, so only its wall time is known; `with llm_perf_opt.phase("decode_step"):` '
            "around its steps gives it latencies"
        )
    return MetricsDocument(
        model=RanModel(name=program_title(command), device="cpu" if is_cpu else None, device_name=device_name),
        notes=tuple(notes),
        clean=CleanPass(
            repeats=len(runs),
            metrics={**phase_metrics(marks), **_walls(runs)},
            peak_memory_bytes=peak_memory_bytes,
            peak_memory_how="most memory of the GPU in use at once, by all processes, as the driver says",
            peak_memory_reason=peak_memory_reason,
        ),
        methods=Methods(percentiles=PERCENTILE_METHOD, std=STD_METHOD),
    )


def _walls(runs: Sequence[ProgramRun]) -> dict[str, Stats]:
    walls = [run.wall_s * 1e3 for run in runs if run.wall_s is not None]
    return {"wall_ms": summarise(walls, reason="the program did not end by itself, it was ended after a while")}


def sample_lines(runs: Sequence[ProgramRun]) -> list[dict[str, str | int | float]]:
    """The lines of samples.jsonl: one for each phase of each run, and one for a run's wall time. A run is a repeat."""
    names = {mark.name for run in runs for mark in _measured(run)}
    # The first token comes out of prefill.
    has_ttft = {PREFILL, DECODE_STEP} <= names
    lines: list[dict[str, str | int | float]] = []
    for repeat, run in enumerate(runs):
        seen: Counter[str] = Counter()
        for mark in _measured(run):
            seen[mark.name] += 1
            line: dict[str, str | int | float] = {
                "sample_id": f"{mark.name} {seen[mark.name]}",
                "pass": CLEAN_PASS,
                "repeat": repeat,
                "start_ns": mark.start_ns,
                "tpot_ms" if mark.name == DECODE_STEP else f"{_key(mark.name)}_ms": mark.ms,
            }
            if mark.name == PREFILL and has_ttft:
                line["ttft_ms"] = mark.ms
            if mark.name in RATES and mark.tokens is not None and mark.ms > 0:
                line[RATES[mark.name]] = mark.tokens / (mark.ms / 1e3)
            lines.append(line)
        if run.wall_s is not None:
            lines.append({"sample_id": "program", "pass": CLEAN_PASS, "repeat": repeat, "wall_ms": run.wall_s * 1e3})
    return lines


def _measured(run: ProgramRun) -> list[Mark]:
    return [mark for mark in run.marks if mark.kind == "phase" and not mark.warmup]


def phase_metrics(marks: Sequence[Mark]) -> dict[str, Stats]:
    """Statistics of each phase; prefill and decode_step under the names the report looks for."""
    by_name: dict[str, list[Mark]] = {}
    for mark in marks:
        if mark.kind == "phase":
            by_name.setdefault(mark.name, []).append(mark)
    metrics: dict[str, Stats] = {}
    for name, found in by_name.items():
        times = [mark.ms for mark in found]
        if name == DECODE_STEP:
            metrics |= {"tpot_ms": _stats(times), "itl_ms": _stats(times)}
            metrics |= _rates(RATES[name], found)
        else:
            metrics[f"{_key(name)}_ms"] = _stats(times)
            metrics |= _rates(RATES[name], found) if name == PREFILL else {}
    return {**metrics, **_lengths(by_name)}


def _lengths(by_name: Mapping[str, Sequence[Mark]]) -> dict[str, Stats]:
    """Prompt and output lengths of one sequence, as far as phases give them: a decode step's tokens are the batch."""
    prefills, steps = by_name.get(PREFILL, ()), by_name.get(DECODE_STEP, ())
    batch = batch_of(steps)
    found: dict[str, Stats] = {}
    prompts = [mark.tokens / batch for mark in prefills if mark.tokens is not None]
    if prompts:
        found["prompt_tokens"] = _stats(prompts)
    if any(mark.tokens for mark in steps):
        found["batch"] = _stats([batch])
    if prefills and steps:
        found["tokens"] = _stats([1 + len(steps) / len(prefills)])
        # The first token comes out of prefill.
        found["ttft_ms"] = _stats([mark.ms for mark in prefills])
    return found


def batch_of(steps: Sequence[Mark]) -> int:
    """Sequences at once: the most common number of tokens of a decode step, 1 where none says."""
    known = [mark.tokens for mark in steps if mark.tokens]
    return max(set(known), key=known.count) if known else 1


def _rates(key: str, marks: Sequence[Mark]) -> dict[str, Stats]:
    rates = [mark.tokens / (mark.ms / 1e3) for mark in marks if mark.tokens is not None and mark.ms > 0]
    return {key: _stats(rates)} if rates else {}


def _stats(values: Sequence[float]) -> Stats:
    return summarise(values, reason="it did not happen")


def _key(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "phase"
