"""Reads one side of a comparison: a run, a directory of runs (its passes), or existing captures."""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from statistics import median, variance
from typing import TYPE_CHECKING

from llm_perf_opt.capture.kernels.names import classify_kernel
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.window import TimelineWindow, timeline_window
from llm_perf_opt.comparison.comparison import PEAK_MEMORY, WALL, SideInput, Variations
from llm_perf_opt.comparison.settings import SettingChange, setting_changes
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import GIVEN, StartVariation
from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE, WALL_METRIC
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.errors import ConfigError, ManifestError
from llm_perf_opt.pipeline.compare.about import about_capture, about_load, about_runs, device_difference, devices_of
from llm_perf_opt.pipeline.compare.served_comparison import ServedLevel, foreign_levels, served_levels
from llm_perf_opt.report.run_facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles, read_run_files, runs_a_program
from llm_perf_opt.report.samples import BUSY_PCT, HOST_PROBE, SampleLine
from llm_perf_opt.report.view.headline import shared_gpus
from llm_perf_opt.serving.load_results import BENCH

if TYPE_CHECKING:
    from llm_perf_opt.pipeline.analyze.read import AnalyzedCaptures

# Clocks and power differ a little in every run.
CLOCK_DIFFERENCE = 0.02
# Earlier starts of the same work that make its start-to-start variation known, and how many are read at most.
FEWEST_STARTS, MOST_STARTS = 4, 64
LOAD_RESULT = "load result"
PROGRAM, MODEL, SERVER, CAPTURE = "a program", "a model run", "a load on a server", "a capture"


@dataclass(frozen=True, kw_only=True)
class ReadSide:
    """One side: what is compared, and what it was measured with. `manifest` is None of a existing capture.

    `captures` and `timelines` are those of a run, by the stage that made them; `levels` are those of a load, by pass.
    """

    input: SideInput
    manifest: RunManifest | None
    timeline: TimelineWindow | None
    captures: Mapping[str, CaptureAnalysis] = field(default_factory=dict)
    timelines: Mapping[str, TimelineWindow] = field(default_factory=dict)
    levels: Sequence[Mapping[str, ServedLevel]] = ()
    clocks: Mapping[str, float]
    kind: str
    gpu: str | None
    device: str | None = None
    folders: tuple[Path, ...] = ()

    @property
    def sort(self) -> str:
        """What kind of measurement it is; two kinds cannot be compared."""
        if self.levels or self.kind == LOAD_RESULT:
            return SERVER
        if self.manifest is None:
            return CAPTURE
        if self.manifest.stage(BENCH) is not None:
            return SERVER
        return PROGRAM if runs_a_program(self.manifest) else MODEL


def read_side(path: Path, *, only: frozenset[str] | None = None) -> ReadSide:
    """A side by its path; of a directory of runs, `only` those names."""
    # A pipe or a broken link in its place is a run that cannot be read, and not a directory of something else.
    if os.path.lexists(path / MANIFEST_FILE):
        return _runs(path, [path])
    passes = run_folders(path)
    if passes:
        chosen = passes if only is None else [one for one in passes if one.name in only]
        return _runs(path, _whole_passes(chosen))
    results = _load_results(path)
    if results:
        return _load(path, results)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory, allowed: a run, a directory of runs, or a capture")
    return _capture(path)


def run_folders(path: Path) -> list[Path]:
    """The runs directly below a directory."""
    return sorted((p.parent for p in path.glob(f"*/{MANIFEST_FILE}")), key=_natural) if path.is_dir() else []


def whole_pairs(base: Path, candidate: Path) -> frozenset[str]:
    """The names of the passes that were finished on both sides."""
    sides = [{one.name for one in run_folders(path) if not _is_cut_short(one)} for path in (base, candidate)]
    return frozenset(sides[0] & sides[1])


def read_sides(base: Path, candidate: Path, *, paired: bool = False, force: bool = False) -> tuple[ReadSide, ReadSide]:
    """Both sides, of runs with captures of the same stage.

    nsys saw every request of a run and torch.profiler a few steps: what one saw less what the other saw means nothing.
    """
    only = whole_pairs(base, candidate) if paired else None
    return matched_sides(read_side(base, only=only or None), read_side(candidate, only=only or None), force=force)


def matched_sides(base: ReadSide, candidate: ReadSide, *, force: bool = False) -> tuple[ReadSide, ReadSide]:
    """Two sides of one kind, under one load or with captures of the same stage where they have several."""
    sides = base, candidate
    sorts = [side.sort for side in sides]
    # A run may have captures of its own, a load has none.
    if sorts[0] != sorts[1] and (CAPTURE not in sorts or SERVER in sorts) and not force:
        raise ConfigError(
            f"compare: {base.input.name} is {sorts[0]}, {candidate.input.name} is {sorts[1]}: they did different work; "
            "give two of one kind"
        )
    bare = [side for side in sides if side.manifest is not None and side.input.capture is None and not side.captures]
    if CAPTURE in sorts and bare and not force:
        raise ConfigError(
            f"compare: {bare[0].input.name} recorded no capture to compare with one: give two captures or two runs"
        )
    if all(side.levels for side in sides):
        return _of_level(*sides)
    if any(side.manifest is None for side in sides):
        return sides
    first, second = sides
    stage = next((name for name in first.captures if name in second.captures), None)
    drawn = next(
        (name for name in (stage, *first.timelines) if name in first.timelines and name in second.timelines), None
    )
    return _of_stage(first, stage, drawn), _of_stage(second, stage, drawn)


def _of_level(base: ReadSide, candidate: ReadSide) -> tuple[ReadSide, ReadSide]:
    """Both sides under the last load that all their passes were measured with, by a client that was in time."""
    first, *others = [*base.levels, *candidate.levels]
    both = [key for key in first if all(key in one for one in others)]
    if not both:
        loads = [", ".join(level.label for level in side.levels[0].values()) for side in (base, candidate)]
        raise ConfigError(
            f"compare: the servers were not measured under the same load (got {loads[0]} and {loads[1]}), allowed: "
            "runs with a load.rate or load.concurrency in common"
        )
    valid = [key for key in both if all(one[key].invalid is None for one in (first, *others))]
    key = (valid or both)[-1]
    blocks = f", {first[key].block} consecutive requests are one repeat" if first[key].block else ""
    load = f"{first[key].label}{blocks}"

    def under(side: ReadSide) -> ReadSide:
        passes = [{**one[key].values, **_each_once(one[key].rates)} for one in side.levels]
        errors = side.levels[0][key].errors if len(side.levels) == 1 else {}
        failed = [level.failed for one in side.levels if (level := one[key]).failed]
        damage = (*side.input.damage, *(f"{count:,} request{'s' if count > 1 else ''} failed" for count in failed))
        late = [level.invalid for one in side.levels if (level := one[key]).invalid is not None]
        damage = (*damage, *late)
        return replace(side, input=replace(side.input, passes=passes, errors=errors, load=load, damage=damage))

    return under(base), under(candidate)


def _of_stage(side: ReadSide, stage: str | None, drawn: str | None) -> ReadSide:
    capture = None if stage is None else side.captures[stage]
    timeline = side.timeline if drawn is None else side.timelines[drawn]
    return replace(side, input=replace(side.input, capture=capture), timeline=timeline)


def changes_between(base: ReadSide, candidate: ReadSide, *, meant: frozenset[str]) -> tuple[SettingChange, ...]:
    """What else differs: configuration, machine and software of runs; kind and GPU of captures; clocks and power."""
    found: tuple[SettingChange, ...] = ()
    if base.manifest is not None and candidate.manifest is not None:
        found = setting_changes(base.manifest, candidate.manifest, meant=meant)
    facts = [("kind of capture", base.kind, candidate.kind, True)]
    if not any(change.key.startswith("environment.gpus") or change.key == "device" for change in found):
        facts.append(("GPU", base.gpu or "", candidate.gpu or "", False))
    other = [SettingChange(key=k, base=a, candidate=b, matters=m) for k, a, b, m in facts if a and b and a != b]
    clocks = [
        SettingChange(key=key, base=f"{value:.4g}", candidate=f"{candidate.clocks[key]:.4g}", matters=False)
        for key, value in base.clocks.items()
        if key in candidate.clocks and abs(candidate.clocks[key] / value - 1) > CLOCK_DIFFERENCE
    ]
    return (*other, *found, *clocks)


def device_notes(base: ReadSide, candidate: ReadSide) -> tuple[str, ...]:
    """A different device, with what both data sheets allow."""
    first, second = (side.gpu or side.device for side in (base, candidate))
    if first is None or second is None or first == second:
        return ()
    return device_difference(first, second)


def known_variation(base: ReadSide, candidate: ReadSide, given: float | None) -> Variations:
    """Start-to-start variation: as the user states it, else from earlier runs of the same work alongside the two."""
    if given is not None:
        stated = StartVariation(share=given, freedom=GIVEN, source="--start-variation")
        return lambda metric: stated
    groups = [_same_work(side) for side in (base, candidate)]
    # A run alongside both sides is of both groups where they did the same.
    unlike = groups[1] if groups[0] != groups[1] else []
    return lambda metric: _pooled([groups[0], unlike], metric)


def _same_work(side: ReadSide) -> list[RunManifest]:
    """This run and others in its folder with the same configuration, machine, software and commit."""
    if side.manifest is None or len(side.folders) != 1 or side.levels:
        return []
    folder = side.folders[0].resolve()
    places = sorted(place.parent for place in folder.parent.glob(f"*/{MANIFEST_FILE}"))[-MOST_STARTS:]
    found = []
    for place in places:
        try:
            other = read_manifest(place)
        except ManifestError:
            # It is not a start of this work; `llm-perf runs` says what is wrong with it.
            continue
        if other.status == "ok" and not setting_changes(side.manifest, other):
            found.append(other)
    return found


def _pooled(groups: Sequence[Sequence[RunManifest]], metric: str) -> StartVariation | None:
    square, freedom, starts = 0.0, 0, 0
    for group in groups:
        values = [one.value for manifest in group if isinstance(one := clean_metric(manifest, metric), Known)]
        if len(values) > 1 and all(value > 0 for value in values):
            logs = [math.log(value) for value in values]
            square += (len(logs) - 1) * variance(logs)
            freedom, starts = freedom + len(logs) - 1, starts + len(logs)
    if starts < FEWEST_STARTS:
        return None
    return StartVariation(share=math.sqrt(square / freedom), freedom=freedom, source=f"{starts} runs of the same work")


def _whole_passes(folders: list[Path]) -> list[Path]:
    """Passes without those that an interruption cut short; all of them where that leaves none."""
    whole = [folder for folder in folders if not _is_cut_short(folder)]
    return whole or folders


def _is_cut_short(folder: Path) -> bool:
    try:
        manifest = read_manifest(folder)
    except ManifestError:
        return False
    return manifest.status in ("interrupted", "running") and not _pass(read_run_files(manifest, folder))


def _load_results(path: Path) -> list[Path]:
    """Result files of load generators: the file itself, or all JSON files of a directory, one start each."""
    from llm_perf_opt.capture.readers.kinds import LOAD, kind_of

    if path.is_dir():
        files = sorted(path.glob("*.json"))
        return files if files and all(kind_of(file) == LOAD for file in files) else []
    return [path] if path.is_file() and path.suffix == ".json" and kind_of(path) == LOAD else []


def _load(path: Path, files: Sequence[Path]) -> ReadSide:
    found = foreign_levels(files)
    problem = None if any(found.passes) else "no request succeeded"
    return ReadSide(
        input=SideInput(
            name=str(path),
            problem=problem,
            about=about_load(path, made_by=found.made_by, model=found.model),
        ),
        manifest=None,
        timeline=None,
        levels=found.passes,
        clocks={},
        kind=LOAD_RESULT,
        gpu=None,
    )


def _each_once(values: Mapping[str, float]) -> dict[str, list[RepeatedValue]]:
    return {name: _once(value) for name, value in values.items()}


def _runs(path: Path, folders: list[Path]) -> ReadSide:
    manifests = [read_manifest(folder) for folder in folders]
    files = [read_run_files(manifest, folder) for manifest, folder in zip(manifests, folders, strict=True)]
    first = files[0]
    passes = [one for one in (_pass(each) for each in files) if one]
    levels = [one for one in map(served_levels, manifests) if one]
    captures = {
        _stage(one.source): one.content
        for each in reversed(files)
        for one in (each.trace, each.capture)
        if isinstance(one, Found)
    }
    # Where both are there, nsys's first: it changes the program less.
    captures = dict(reversed(captures.items()))
    capture = next(iter(captures.values()), None)
    return ReadSide(
        input=SideInput(
            name=str(path),
            passes=passes,
            about=about_runs(path, manifests),
            bounds_ms=_bounds(first),
            operators=[found for each in files if (found := _operators(each))],
            modules=first.metrics.content.modules or {} if isinstance(first.metrics, Found) else {},
            capture=capture,
            damage=_damage(path, folders, files),
            repeats_start=all(runs_a_program(m) for m in manifests),
            shared=tuple(dict.fromkeys(text for m in manifests for text in shared_gpus(m.environment))),
            problem=_problem(manifests, passes or levels, capture),
        ),
        manifest=manifests[0],
        timeline=first.timelines[0].content if first.timelines else None,
        captures=captures,
        timelines={_stage(one.source): one.content for one in first.timelines},
        levels=levels,
        clocks=_clocks(files),
        kind="",
        gpu=None if capture is None else capture.gpu.name,
        device=devices_of(manifests) or None,
        folders=tuple(folders),
    )


def _damage(path: Path, folders: Sequence[Path], files: Sequence[RunFiles]) -> tuple[str, ...]:
    """What is missing or unreadable, with the pass it is of where the side has several."""
    return tuple(
        text if folder == path else f"{folder.name}: {text}"
        for folder, each in zip(folders, files, strict=True)
        for text in each.damage
    )


def _stage(source: str) -> str:
    """The stage that wrote a file of a run: the folder it lies in."""
    return PurePosixPath(source).parts[0]


def _pass(files: RunFiles) -> dict[str, list[RepeatedValue]]:
    """The samples by metric; where a run has medians alone, those.

    The phases of a program that ran once share that one start: they are one value, and not as many as there are.
    """
    found: dict[str, list[RepeatedValue]] = {}
    for line in files.samples:
        for name, value in line.values.items():
            if name != HOST_PROBE:
                found.setdefault(name, []).append(_value(line, value))
    for line in files.added_samples:
        for name, value in line.values.items():
            if name != HOST_PROBE:
                found.setdefault(name, []).append(_value(line, value))
    if found and runs_a_program(files.manifest) and len({line.repeat for line in files.samples}) == 1:
        found = {name: _once(median(item.value for item in values)) for name, values in found.items()}
    if found:
        peak = clean_metric(files.manifest, PEAK_MEMORY)
        found.pop(PEAK_MEMORY, None)
        return {**found, **({PEAK_MEMORY: _once(peak.value)} if isinstance(peak, Known) else {})}
    known = {name: clean_metric(files.manifest, name) for name in ("ttft_ms", *WALL_METRIC.values(), WALL)}
    return {name: _once(one.value) for name, one in known.items() if isinstance(one, Known)}


def _once(value: float) -> list[RepeatedValue]:
    return [RepeatedValue(sample_id="median", repeat=0, value=value)]


def _value(line: SampleLine, value: float) -> RepeatedValue:
    return RepeatedValue(sample_id=line.sample_id, repeat=line.repeat, value=value)


def _problem(manifests: Sequence[RunManifest], passes: Sequence[object], capture: CaptureAnalysis | None) -> str | None:
    """Why this side must not win. A run that was interrupted after its clean pass has all its times."""
    for manifest in manifests:
        if manifest.status == "interrupted" and len(passes) == len(manifests):
            continue
        if manifest.status != "ok":
            failed = [f"{s.name}: {s.reason}" for s in manifest.stages if s.status == "failed"]
            return f"the run {manifest.run_id} is {manifest.status}" + (f" ({'; '.join(failed)})" if failed else "")
    if not passes and (capture is None or not capture.gpu.kernel_count):
        return "neither clean times nor kernels were recorded"
    return None


def _bounds(files: RunFiles) -> dict[str, float]:
    if not isinstance(files.static, Found):
        return {}
    found = {}
    for phase, record in files.static.content.phases.items():
        for kind, value in (("achievable", record.bound_ms.achievable), ("datasheet", record.bound_ms.datasheet)):
            if value is not None:
                found[f"{phase}, {kind}"] = value
    return found


def _operators(files: RunFiles) -> dict[str, tuple[int, int]]:
    """Calls and own time, on the device where there is any."""
    if not isinstance(files.operators, Found):
        return {}
    rows = files.operators.content
    on_device = any(row.self_device_ns for row in rows)
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        calls, time_ns = found.get(row.name, (0, 0))
        found[row.name] = (calls + row.calls, time_ns + ((row.self_device_ns if on_device else row.self_cpu_ns) or 0))
    return found


def _clocks(files: list[RunFiles]) -> dict[str, float]:
    """How fast the machine ran: medians while the GPU was at work, and of the fixed CPU work between samples."""
    samples = [
        sample
        for each in files
        if isinstance(each.clocks, Found)
        for sample in each.clocks.content.samples
        if (sample.utilisation_pct or 0) > BUSY_PCT
    ]
    clock = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz]
    power = [s.power_w for s in samples if s.power_w]
    probes = [line.values[HOST_PROBE] for each in files for line in each.samples if HOST_PROBE in line.values]
    found = {
        "GPU clock, MHz (median under load)": clock,
        "GPU power, W (median under load)": power,
        "fixed CPU workload, ms (median between samples)": probes,
    }
    return {name: median(values) for name, values in found.items() if values}


def _capture(path: Path) -> ReadSide:
    from llm_perf_opt.capture.readers.kinds import capture_files, kind_of
    from llm_perf_opt.pipeline.analyze.read import read_captures

    files = capture_files(path)
    with tempfile.TemporaryDirectory(prefix="llm-perf-compare-") as scratch:
        found = read_captures(files, [kind_of(file) for file in files], Path(scratch))
    return capture_side(path, found)


def capture_side(path: Path, found: "AnalyzedCaptures") -> ReadSide:
    """Captures that were analyzed, as a side."""
    capture = found.analysis
    problem = None if capture.gpu.kernel_count or capture.ranges else "no kernel and no range was recorded"
    if found.ncu is not None and not capture.gpu.kernel_count:
        capture, problem = _with_kernels(capture, found.ncu), None
    return ReadSide(
        input=SideInput(
            name=str(path),
            capture=capture,
            problem=problem,
            about=about_capture(
                path,
                kind=found.kind,
                gpu=capture.gpu.name,
                producer=next((source.producer for source in capture.sources if source.producer), None),
            ),
        ),
        manifest=None,
        timeline=timeline_window(found.measured[0].timeline) if found.measured else None,
        clocks={},
        kind=found.kind,
        gpu=capture.gpu.name,
    )


def _with_kernels(capture: CaptureAnalysis, ncu: NcuAnalysis) -> CaptureAnalysis:
    """ncu's kernels as rows; of their spread only its largest possible value is known, half of max less min."""
    timed = [(k, k.duration_ns) for k in ncu.kernels if k.duration_ns is not None]
    total = sum(mean * k.launches for k, mean in timed)
    rows = tuple(
        KernelRow(
            name=k.kernel,
            short_name=k.short,
            kernel_class=classify_kernel(k.kernel),
            instances=k.launches,
            total_ns=round(mean * k.launches),
            avg_ns=mean,
            med_ns=mean,
            min_ns=round(k.duration_min_ns if k.duration_min_ns is not None else mean),
            max_ns=round(k.duration_max_ns if k.duration_max_ns is not None else mean),
            stddev_ns=((k.duration_max_ns or mean) - (k.duration_min_ns or mean)) / 2,
            time_pct=100 * mean * k.launches / total,
        )
        for k, mean in timed
    )
    gpu = replace(
        capture.gpu,
        name=ncu.device,
        kernel_count=sum(row.instances for row in rows),
        kernel_ns=sum(row.total_ns for row in rows),
    )
    return replace(capture, kernels=rows, gpu=gpu)


def _natural(path: Path) -> tuple[int, str]:
    """Numbered directories in the order of their numbers."""
    return (int(path.name), "") if path.name.isdigit() else (0, path.name)
