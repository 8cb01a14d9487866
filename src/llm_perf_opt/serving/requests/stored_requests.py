"""The requests and steps that a load left in its run directory, and their explanation from these files."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.errors import ParseError
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.load_results import BENCH, BENCH_FILE, REQUESTS_FILE, BenchDocument, CaptureWindow
from llm_perf_opt.serving.requests.adapters.choose import BOUNDS
from llm_perf_opt.serving.requests.request_causes import LevelRecords, explain_level
from llm_perf_opt.serving.requests.request_records import SLOW_FILE, SlowDocument, StepTrace
from llm_perf_opt.serving.requests.request_trace import Declined, read_steps
from llm_perf_opt.serving.requests.step_kernels import CapturedWork

STEP_FILES = "steps-*.jsonl"
WINDOW_FILE = "window_requests.jsonl"
WINDOW = "window"


class _Level(msgspec.Struct):
    """The one key of a line that is not of the record."""

    level: str


def is_load_run(path: Path) -> bool:
    """Whether a folder is the run of `llm-perf bench` with its requests."""
    return (path / BENCH / REQUESTS_FILE).is_file() and (path / BENCH / BENCH_FILE).is_file()


def explain_run(run_dir: Path, notes: Sequence[str] = ()) -> SlowDocument:
    """Explain the slowest requests of every level, and of the load of a capture, from the run's own files."""
    folder = run_dir / BENCH
    document, levels = _levels(folder)
    traces, more = _traces(folder)
    explained = [explain_level(level, traces) for level in levels if level.answered]
    window = None if document.window is None or not traces else _window(folder, document.window)
    if window is not None and document.window is not None and window.answered:
        captures, said = _captures(run_dir, document.window)
        explained.append(explain_level(window, traces, captures))
        more += said
    return SlowDocument(
        engine=traces[0].engine if traces else None,
        version=traces[0].version if traces else None,
        levels=tuple(explained),
        notes=(*notes, *more),
    )


def write_slow(run_dir: Path, document: SlowDocument) -> Path:
    return write_json(run_dir / BENCH / SLOW_FILE, document)


def _window(folder: Path, window: CaptureWindow) -> LevelRecords | None:
    """The requests that were sent while the server was captured."""
    path = folder / WINDOW_FILE
    try:
        lines = path.read_bytes().splitlines()
        records = tuple(msgspec.json.decode(line, type=RequestRecord) for line in lines)
    except (OSError, msgspec.MsgspecError) as error:
        raise ParseError(f"{path}: the requests of the capture could not be read ({error})") from error
    return LevelRecords(key=WINDOW, label=f"{window.label}, captured", begun_s=window.begun_s, records=records)


def _captures(run_dir: Path, window: CaptureWindow) -> tuple[list[CapturedWork], list[str]]:
    """The work of each capture of the window, and why there is none of others."""
    found, notes = [], []
    for file in window.captures:
        try:
            work = CapturedWork.of(_timeline(run_dir / file), file=file, epoch_offset_ns=window.epoch_offset_ns)
        except ParseError as error:
            notes.append(f"{file}: no kernels of steps from it ({error})")
            continue
        if work is None:
            notes.append(f"{file}: it does not know the time of day, so that its kernels cannot be assigned to steps")
        else:
            found.append(work)
    return found, notes


def _timeline(path: Path) -> Timeline:
    return read_nsys_sqlite(path) if path.suffix == ".sqlite" else read_torch_trace(path).timeline


def _levels(folder: Path) -> tuple[BenchDocument, list[LevelRecords]]:
    records: defaultdict[str, list[RequestRecord]] = defaultdict(list)
    try:
        document = msgspec.json.decode((folder / BENCH_FILE).read_bytes(), type=BenchDocument)
        for line in (folder / REQUESTS_FILE).read_bytes().splitlines():
            records[msgspec.json.decode(line, type=_Level).level].append(msgspec.json.decode(line, type=RequestRecord))
    except (OSError, msgspec.MsgspecError) as error:
        raise ParseError(f"{folder}: the requests of this run could not be read ({error})") from error
    return document, [
        LevelRecords(key=level.key, label=level.label, begun_s=level.begun_s, records=tuple(records[level.key]))
        for level in document.levels
    ]


def _traces(folder: Path) -> tuple[list[StepTrace], list[str]]:
    """What the engine's processes wrote, and what is to be reported about it."""
    traces, notes = [], []
    for path in sorted(folder.glob(STEP_FILES)):
        try:
            with path.open("rb") as file:
                traces.append(read_steps(file))
        except Declined as error:
            notes.append(f"the engine declined to record its steps: {error}; {BOUNDS}")
    return traces, notes
