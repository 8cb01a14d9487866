"""One load test from its configuration to its report: start, warm up, load, stop, write.

Files and manifest are written after every level, so that whatever happens later loses nothing.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from llm_perf_opt.core.manifest import RunManifest, write_json, write_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.records import CommandRecord, Progress, RunStatus, StageFile, StageRecord, StageTraits
from llm_perf_opt.core.sections import Section
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.errors import ConfigError, ProfilingError, ToolError
from llm_perf_opt.pipeline.bench.bench_config import BenchConfig
from llm_perf_opt.pipeline.bench.profile_window import profile_args, record_with_engine, record_with_nsys
from llm_perf_opt.pipeline.bench.server_capture import LookPlace, nsys_stage
from llm_perf_opt.pipeline.bench.warm_up import WarmServer, read_traffic, warm_up
from llm_perf_opt.pipeline.console import Console, StageTurn, make_console
from llm_perf_opt.pipeline.provenance import (
    as_written,
    describe_environment,
    taken_values,
    write_provenance,
)
from llm_perf_opt.pipeline.resume import COULD_NOT_GO_ON, claim_chosen, refuse_foreign
from llm_perf_opt.pipeline.stores import SyncDocument, claim, upload
from llm_perf_opt.profiling.vendor.vendor_tools import probe_host
from llm_perf_opt.report.sections.load_pictures import draw_runs, draw_trade, with_pictures
from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections
from llm_perf_opt.report.sections.slow_requests import slow_lines, slow_sections
from llm_perf_opt.report.sections.startup_sections import startup_lines, startup_sections
from llm_perf_opt.report.write import write_reports
from llm_perf_opt.serving.block import result_block
from llm_perf_opt.serving.capacity import CapacitySearch, over_saturation
from llm_perf_opt.serving.engine import (
    RunningServer,
    ServerPlace,
    model_in,
    running_server,
    server_report,
    with_program,
)
from llm_perf_opt.serving.load_records import LoadRun
from llm_perf_opt.serving.load_results import (
    BENCH,
    BENCH_FILE,
    REQUESTS_FILE,
    BenchDocument,
    CapacityResult,
    CaptureWindow,
    LevelResult,
    level_result,
)
from llm_perf_opt.serving.load_run import run_level
from llm_perf_opt.serving.requests.adapters.choose import StepRecording, record_steps
from llm_perf_opt.serving.requests.request_records import SLOW_FILE, SlowDocument
from llm_perf_opt.serving.requests.stored_requests import STEP_FILES, WINDOW_FILE, explain_run, write_slow
from llm_perf_opt.serving.saturation import recommended, verdict
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
from llm_perf_opt.serving.startup.sampler import StartupSampler, StartupSamples
from llm_perf_opt.serving.startup.startup_causes import explain_startup
from llm_perf_opt.serving.startup.startup_records import STARTUP_FILE, StartupDocument
from llm_perf_opt.serving.telemetry import gpu_figures, is_local, missing_samples, sampled_gpus
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession
from llm_perf_opt.serving.vllm_file import vllm_json
from llm_perf_opt.system.files import write_whole
from llm_perf_opt.system.lock import locked
from llm_perf_opt.system.nvml import GpuSamples
from llm_perf_opt.system.process import Service, allowed_environment
from llm_perf_opt.system.redact import Redactor, given_secrets

SOURCE = f"{BENCH}/{BENCH_FILE}"


@dataclass(kw_only=True)
class BenchRun:
    """A load test under way: what has been measured so far, and how to write it down."""

    config: BenchConfig
    root: Path
    manifest: RunManifest
    redactor: Redactor
    console: Console
    server: str | None = None
    model: str | None = None
    runs: list[LoadRun] = field(default_factory=list)
    levels: list[LevelResult] = field(default_factory=list)
    capacity: CapacityResult | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    vllm_files: list[StageFile] = field(default_factory=list)
    commands: list[CommandRecord] = field(default_factory=list)
    others: list[StageRecord] = field(default_factory=list)
    recorded: tuple[TraceSession, ...] = ()
    gpus: tuple[int | str, ...] = ()
    reported: Mapping[str, str] = field(default_factory=dict)
    warm: WarmServer | None = None
    sent_to: SyncDocument | None = None
    slow: SlowDocument | None = None
    recording: StepRecording | None = None
    window: LoadRun | None = None
    window_document: CaptureWindow | None = None
    startup: StartupDocument | None = None
    slow_notes: list[str] = field(default_factory=list)
    load_id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        self.console.say(self.redactor.text(text))

    def fail(self, problem: str) -> None:
        self.problems.append(self.redactor.text(problem))

    @property
    def place(self) -> ServerPlace:
        return ServerPlace(
            out_dir=self.root / BENCH,
            cwd=self.config.user_dir,
            environ=os.environ,
            redactor=self.redactor,
            say=self.say,
        )

    def document(self) -> BenchDocument:
        found = BenchDocument(
            server=self.server,
            model=self.model,
            reported=self.reported,
            slo=self.config.load.slo,
            levels=tuple(self.levels),
            capacity=self.capacity,
            notes=tuple(self.notes),
            window=self.window_document,
        )
        best = recommended(found)
        return replace(found, recommended=None if best is None else best.key)

    def save(self, status: RunStatus) -> None:
        """Everything so far: results, requests, pictures, manifest."""
        document = self.document()
        folder = self.root / BENCH
        folder.mkdir(exist_ok=True)
        write_json(folder / BENCH_FILE, document)
        lines = [
            msgspec.json.encode({"level": run.level.key, **msgspec.to_builtins(record)})
            for run in self.runs
            for record in run.records
        ]
        write_whole(folder / REQUESTS_FILE, b"".join(line + b"\n" for line in lines))
        drawn = (*draw_trade(self.root, document), *draw_runs(self.root, self.runs))
        pictures = [StageFile(role="picture", path=self.root / p.path) for section in drawn for p in section.pictures]
        first, *others = bench_sections(document, source=SOURCE)
        reason = "; ".join(self.problems) or ("the run was interrupted" if status == "interrupted" else None)
        record = StageRecord(
            name=BENCH,
            status="ok" if reason is None else "failed",
            reason=reason,
            started_at=self.manifest.created_at,
            duration_s=round(time.monotonic() - self.started, 3),
            commands=tuple(self.commands),
            files=(
                StageFile(role="bench_json", path=folder / BENCH_FILE),
                StageFile(role="bench_requests", path=folder / REQUESTS_FILE),
                *self.vllm_files,
                *_slow_files(self),
                *([] if self.startup is None else [StageFile(role="startup_json", path=folder / STARTUP_FILE)]),
                *pictures,
            ),
            metrics=bench_metrics(document, source=SOURCE),
            notes=tuple(self.notes),
            traits=StageTraits(),
            sections=with_pictures((first, *_slow_sections(self), *_startup_sections(self), *others), *drawn),
        )
        config = {**self.config.resolved, "model": {"name": self.model or self.config.server.name}}
        self.manifest = replace(self.manifest, status=status, config=config, stages=(record, *self.others))
        write_manifest(self.root, self.manifest, self.redactor)


def run_bench(config: BenchConfig) -> BenchRun:
    """Run it and write its reports; `problems` of what it returns says what failed.

    An interrupt keeps what was measured and continues up.
    """
    config = replace(config, server=with_program(config.server, os.environ))
    # A file that cannot be read is bad input, not a failed run.
    recorded = read_traffic(config)
    wanted = config.run_dir.expanduser().resolve()
    root = claim_chosen(wanted)
    if root != wanted:
        print(f"{wanted}: another run has just started there; this one goes to {root}", file=sys.stderr)
    refuse_foreign(root)
    with locked(root, partial(print, file=sys.stderr)) as lock:
        run = _prepare(config, root, recorded)
        try:
            _run(run)
        except OSError as error:
            # A full disk, most likely: what was written stays, and the manifest says why there is no more.
            lock.free_room()
            reason = f"{COULD_NOT_GO_ON}: {error.strerror or error}"
            stages = [replace(s, status="failed", reason=reason) if s.name == BENCH else s for s in run.manifest.stages]
            write_manifest(root, replace(run.manifest, status="failed", stages=tuple(stages)), run.redactor)
            raise ProfilingError(f"{reason}; what was measured before is in {root}") from error
    return run


def _run(run: BenchRun) -> None:
    config = run.config
    run.say(f"run {run.root}")
    run.save("running")
    try:
        _measure(run)
        if config.capture.tool == "nsys" and not run.problems:
            _look_with_nsys(run)
    except ProfilingError as error:
        run.fail(str(error))
    except KeyboardInterrupt:
        _finish(run, "interrupted")
        raise
    finally:
        run.console.close()
    _finish(run, "failed" if run.problems else "ok")
    if run.sent_to is not None:
        done = upload(run.root, run.sent_to)
        run.say(f"sent to {done.url}: {done.files} files, {format_bytes(done.size_bytes)}")


def _prepare(config: BenchConfig, root: Path, recorded: tuple[TraceSession, ...]) -> BenchRun:
    if (root / MANIFEST_FILE).exists():
        raise ConfigError(f"artifacts.runs_dir: already holds a run (got {str(root)!r}), allowed: another directory")
    sent_to = None if config.sync is None else claim(config.sync, root)
    redactor = _redactor(config)
    host = probe_host(env=allowed_environment(os.environ), disk=root)
    environment = describe_environment(host, os.environ, config.user_dir)
    config = replace(config, resolved=as_written(config.resolved, config.from_environment))
    write_provenance(root, environment=environment, resolved=config.resolved, redactor=redactor)
    manifest = RunManifest(
        run_id=root.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        status="running",
        config=config.resolved,
        environment=environment,
        overrides=redactor.words(config.overrides),
        user_dir=str(config.user_dir),
    )
    run = BenchRun(config=config, root=root, manifest=manifest, redactor=redactor, console=make_console())
    run.recorded = recorded
    run.gpus = tuple(gpu.index for gpu in host.gpus)
    run.sent_to = sent_to
    return run


def _redactor(config: BenchConfig) -> Redactor:
    """What must not be written: secrets of our environment and of the server's, and those it is given as words."""
    server = config.server
    key = [] if server.api_key_env is None else [os.environ.get(server.api_key_env, "")]
    taken = taken_values(config.resolved, config.from_environment)
    given = given_secrets([*server.command, *server.args])
    return Redactor.of({**os.environ, **server.env}, more=[*key, *taken, *given, *_of_address(server.url)])


def _of_address(url: str | None) -> list[str]:
    """The password of a URL, as it is written and as it is meant."""
    user = "" if url is None else urlsplit(url).netloc.rpartition("@")[0]
    password = user.partition(":")[2]
    return [password, unquote(password)] if password else []


def _measure(run: BenchRun) -> None:
    """Every level against one server, then a capture of it where that was requested."""
    config = run.config
    traces = run.root / BENCH / "engine"
    is_engine = config.capture.tool == "engine"
    more = profile_args(config.server, traces) if is_engine else []
    recording = run.recording = _recording(run)
    place, args = run.place, [*more, *recording.args]
    sampler = StartupSampler(out_dir=place.out_dir, environ=os.environ, redactor=run.redactor)
    until_ready: Callable[[Service], AbstractContextManager[Any]]
    until_ready = sampler.until_ready if config.capture.startup else nullcontext
    with running_server(recording.section, place, more_args=args, until_ready=until_ready) as server:
        _explain_startup(run, server, sampler.samples)
        run.server, run.model = server.target.url, run.redactor.text(server.model)
        begun = time.monotonic()
        try:
            run.reported = server_report(server.target)
            run.warm = _warm(run, server)
            run.notes += run.warm.notes
            measure = _search if config.load.search == "capacity" else _measure_levels
            if measure(run, server, run.warm) and is_engine:
                _look_with_engine(run, server, traces)
        finally:
            if server.service is not None:
                duration_s = round(time.monotonic() - begun, 3)
                code, log = server.service.poll(), f"{BENCH}/server.log"
                argv = run.redactor.words(server.service.argv)
                run.commands.append(CommandRecord(argv=argv, exit_code=code, duration_s=duration_s, log=log))


def _recording(run: BenchRun) -> StepRecording:
    """The server as it has to be started for what is to be explained of it."""
    if run.config.capture.requests == "none":
        return StepRecording(section=run.config.server)
    recording = record_steps(run.config.server, run.root / BENCH, os.environ)
    if recording.declined is not None:
        run.slow_notes.append(recording.declined)
        run.say(f"capture.requests: {recording.declined}")
    return recording


def _explain_startup(run: BenchRun, server: RunningServer, samples: StartupSamples | None) -> None:
    """Where the time until ready went; what it says of memory is all in the log by then."""
    if samples is None or server.service is None:
        return
    log = server.service.log.read_text(encoding="utf-8", errors="replace")
    document = explain_startup(samples, engine=run.config.server.name, log=log, model=model_in(run.config.server.args))
    run.startup = document
    write_json(run.root / BENCH / STARTUP_FILE, document)
    for line in startup_lines(document):
        print(run.redactor.text(line), flush=True)


def _startup_sections(run: BenchRun) -> tuple[Section, ...]:
    return () if run.startup is None else startup_sections(run.startup, source=f"{BENCH}/{STARTUP_FILE}")


def _explain(run: BenchRun) -> None:
    """The slowest requests of what was measured; the files are those of the run."""
    run.slow = explain_run(run.root, run.slow_notes)
    write_slow(run.root, run.slow)
    for line in slow_lines(run.slow):
        print(run.redactor.text(line), flush=True)


def _slow_sections(run: BenchRun) -> tuple[Section, ...]:
    if run.slow is None:
        return ()
    files = [f"{BENCH}/{path.name}" for path in sorted((run.root / BENCH).glob(STEP_FILES))]
    return slow_sections(run.slow, source=f"{BENCH}/{SLOW_FILE}", files=files)


def _slow_files(run: BenchRun) -> list[StageFile]:
    if run.slow is None:
        return []
    folder = run.root / BENCH
    steps = [StageFile(role="engine_steps", path=path) for path in sorted(folder.glob(STEP_FILES))]
    window = [StageFile(role="window_requests", path=folder / WINDOW_FILE)] if run.window_document else []
    return [StageFile(role="slow_requests_json", path=folder / SLOW_FILE), *steps, *window]


def _look_with_engine(run: BenchRun, server: RunningServer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run.say(f"capture: {run.config.server.name} profiles itself")
    window = record_with_engine(server, run.config.capture, folder, lambda running: _load_window(run, running))
    found = window.files
    if window.trouble is not None:
        run.fail(window.trouble)
    if not found:
        run.notes.append(f"the server's own profiler left no file in {folder}; it may have written elsewhere")
    run.redactor.folder(folder)
    _keep_window(run, "engine", [path for path in found if path.name.endswith((".json", ".json.gz"))])
    for path in found:
        if path.name.endswith((".json", ".json.gz")):
            run.notes.append(f"recorded by the server's own profiler: llm-perf analyze {path}")


def _look_with_nsys(run: BenchRun) -> None:
    """The server once more, under nsys, with the last level's load in the window."""
    config = run.config
    tool = probe_host(env=allowed_environment(os.environ), disk=run.root).tool("nsys")
    if not tool.usable:
        raise ToolError(f"capture.tool=nsys: {tool.trouble}")
    records: list[CommandRecord] = []
    place = LookPlace.of(run.root, run.console, records, run.redactor)
    recording = run.recording or StepRecording(section=config.server)
    window = record_with_nsys(
        recording.section,
        config.capture,
        run.place,
        place,
        tool=tool,
        session=f"llm-perf-{os.getpid()}",
        more_args=recording.args,
        warm=lambda server: _warm_again(run, server),
        load=lambda server: _load_window(run, server),
    )
    _keep_window(run, "nsys", window.exports)
    run.others.append(nsys_stage(place, window, server=config.server.name, label=run.levels[-1].label))
    run.redactor.folder(place.out_dir)


def _warm(run: BenchRun, server: RunningServer) -> WarmServer:
    return warm_up(run.config, server, run.recorded, run.redactor.text)


def _warm_again(run: BenchRun, server: RunningServer) -> None:
    _warm(run, server)


def _load_window(run: BenchRun, server: RunningServer) -> None:
    """The last level's load for as long as the window is open; nothing of it is measured."""
    load = run.config.load
    short = replace(load, duration_s=run.config.capture.duration_s)
    warm = run.warm
    assert warm is not None
    one = run.window = LoadRun(level=run.runs[-1].level)
    # A window that had to be opened again has ids of its own.
    template = replace(warm.template, id_prefix=f"llmperf.{uuid.uuid4().hex[:8]}.window")
    run_level(one, server.target, template, warm.traffic_of("window"), short)
    if not any(record.status == "ok" for record in one.records):
        raise ToolError(f"capture: no request succeeded in the window ({one.stopped or 'none was sent'})")


def _keep_window(run: BenchRun, tool: Literal["nsys", "engine"], captures: Sequence[Path]) -> None:
    """What explains the requests of the window by its kernels: they themselves, the captures, and the two clocks."""
    one = run.window
    if one is None or run.config.capture.requests == "none":
        return
    lines = [msgspec.json.encode(record) for record in one.records]
    write_whole(run.root / BENCH / WINDOW_FILE, b"".join(line + b"\n" for line in lines))
    run.window_document = CaptureWindow(
        tool=tool,
        label=one.level.label,
        begun_s=one.begun_s,
        epoch_offset_ns=time.time_ns() - time.monotonic_ns(),
        captures=tuple(str(path.relative_to(run.root)) for path in captures),
    )


def _measure_levels(run: BenchRun, server: RunningServer, warm: WarmServer) -> bool:
    """The given levels, one after the other; False where the server is gone."""
    return all(_measure_level(run, server, warm, level, run.config.load) for level in warm.levels(run.config.load))


def _search(run: BenchRun, server: RunningServer, warm: WarmServer) -> bool:
    """Levels that lead to the capacity; False where the server is gone."""
    load = run.config.load
    search = CapacitySearch(by=load.search_by, slo=load.slo)
    while (level := search.next()) is not None:
        # Arrivals of their own for every level: the same ones would be wrong in the same way each time.
        seeded = replace(load, seed=load.seed + len(run.runs))
        planned = (
            0 if level.rate is None else min(load.requests, int(level.rate * load.duration_s) * warm.traffic.most_turns)
        )
        lives = _measure_level(run, server, warm, level, seeded, planned=planned)
        if not lives or not run.levels[-1].completed:
            return False
        search.add(run.runs[-1], run.levels[-1])
        run.capacity = search.result(run.runs, run.levels, seed=load.seed)
        run.save("running")
    return True


@contextmanager
def _written(run: BenchRun, one: LoadRun, load: LoadSection, gpus: Sequence[GpuSamples]) -> Iterator[None]:
    """Whatever ends a level, what was measured of it is written down."""
    try:
        yield
    finally:
        run.console.close()
        one.stopped = None if one.stopped is None else run.redactor.text(one.stopped)
        result = level_result(one, load.slo, gpus=gpu_figures(gpus))
        run.levels.append(result)
        run.notes = list(dict.fromkeys([*run.notes, *missing_samples(gpus)]))
        _write_vllm(run, one, result)
        _judge(run, result)
        run.save("running")


def _measure_level(
    run: BenchRun, server: RunningServer, warm: WarmServer, level: LoadLevel, load: LoadSection, *, planned: int = 0
) -> bool:
    """One level, written down however it ends; False where the server is gone.

    `planned` requests of a search may be cut short where the level has missed the SLO by far.
    """
    run.console.stage_started(StageTurn(name=f"{BENCH}, {level.label}"))
    one = LoadRun(level=level)
    run.runs.append(one)
    with sampled_gpus(run.gpus if is_local(server.target.url) else ()) as gpus, _written(run, one, load, gpus):
        run_level(
            one,
            server.target,
            replace(warm.template, id_prefix=f"llmperf.{run.load_id}.{len(run.runs)}"),
            warm.traffic_of(f"{level.key}-{len(run.runs)}"),
            load,
            on_tick=lambda elapsed, done: run.console.tick(elapsed, Progress(text=f"{done} requests done")),
            is_decided=lambda seen: over_saturation(seen, load.slo, planned=planned) if planned else None,
        )
    result = run.levels[-1]
    # What was requested goes to stdout, progress to stderr.
    print(run.redactor.text(result_block(result, slo=load.slo)), flush=True)
    return server.target.trouble() is None


def _write_vllm(run: BenchRun, one: LoadRun, result: LevelResult) -> None:
    """The level as a result file of `vllm bench serve`, for tools that read those."""
    path = run.root / BENCH / f"vllm_{len(run.levels)}.json"
    write_whole(path, vllm_json(one, result, run.config.load, model=run.model))
    run.vllm_files.append(StageFile(role="vllm_bench_json", path=path))


def _judge(run: BenchRun, result: LevelResult) -> None:
    if run.config.load.search == "capacity" and result.completed:
        # A search goes where requests fail.
        return
    limit = run.config.load.max_failed_share
    if result.stopped is not None:
        run.fail(f"{result.label}: {result.stopped}")
    if result.failed_share > limit and result.completed + result.failed + result.unfinished:
        common = next(iter(result.errors), "no error was reported")
        run.fail(
            f"{result.label}: {result.failed} failed and {result.unfinished} unfinished of {result.sent} requests, "
            f"more than load.max_failed_share={limit:g} allows; most often: {common}"
        )
    elif not result.completed:
        run.fail(f"{result.label}: no request was sent before the load ended")


def _finish(run: BenchRun, status: RunStatus) -> None:
    run.save(status)
    if run.config.capture.requests == "slowest" and run.levels:
        _explain(run)
        run.save(status)
    reports = write_reports(run.root)
    for problem in run.problems:
        run.say(f"failed: {problem}")
    said = verdict(run.document())
    if said is not None:
        print(run.redactor.text(said), flush=True)
    wanted = len(run.warm.levels(run.config.load)) if run.warm is not None else len(run.config.load.levels())
    of = "" if run.config.load.search == "capacity" else f" of {wanted}"
    late = sum(1 for level in run.levels if level.invalid is not None)
    invalid = f", {late} of them invalid because the client was late" if late else ""
    run.say(f"{status}: {len(run.levels)}{of} levels measured{invalid}")
    run.say(f"report: {reports[0]}")
