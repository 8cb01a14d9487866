"""The contract of all entry points: the same capture gives the same answer, whoever reads it."""

import lzma
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llm_perf_opt.api import load as api
from llm_perf_opt.capture.readers import trace_workers
from llm_perf_opt.capture.readers.kinds import TORCH, kind_of
from llm_perf_opt.core.names import ANALYSIS_FILE, DIAGNOSIS_FILE
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis
from llm_perf_opt.pipeline.analyze.analyze_run import write_run
from llm_perf_opt.pipeline.analyze.read import read_captures
from llm_perf_opt.pipeline.bench.profile_window import NsysWindow
from llm_perf_opt.pipeline.bench.server_capture import LookPlace, nsys_stage
from llm_perf_opt.pipeline.console import PlainConsole
from llm_perf_opt.profiling.nsys.nsys_session import analyze_exports
from llm_perf_opt.profiling.trace_tables import write_trace_files
from llm_perf_opt.report.write import view_run
from llm_perf_opt.system.redact import Redactor
from tests.support.fixtures_dir import DATA
from tests.support.verdicts import captures

# No stage records on an Ascend NPU, and a trace made from an nsys export is refused by all.
NOT_READ = ("ascend", "power_iteration_chrome")
AT_HAND = {
    name: path
    for name, path in captures()
    if path.name.endswith((".sqlite.xz", ".json.gz"))
    and not name.startswith("h200/")
    and not any(part in name for part in NOT_READ)
}
MARKS: Mapping[str, tuple[pytest.MarkDecorator, ...]] = {"tests": (), "planted": (pytest.mark.slow,)}
LONG = (pytest.mark.long,)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name.split("/")[0], LONG)) for name in AT_HAND],
)
def test_every_entry_point_gives_the_same_answer_for_a_capture(name: str, tmp_path: Path) -> None:
    path = _unpacked(AT_HAND[name], tmp_path)
    kind = kind_of(path)
    found = read_captures([path], [kind], tmp_path / "scratch")
    detailed = read_captures([path], [kind], tmp_path / "scratch", detailed=True)
    stages = _of_torch(path) if kind == TORCH else _of_nsys(path, tmp_path)
    by_python = api.analyze(path).analysis
    assert by_python is not None
    answers = {"analyze": found.analysis, "analyze -o": detailed.analysis, "Python API": by_python, **stages}
    expected = _answer(found.analysis, path)
    assert expected.verdict.text
    for entry, analysis in answers.items():
        assert _answer(analysis, path) == expected, entry
        assert analysis.diagnosis and analysis.findings == analysis.diagnosis.claims
    # The page and diagnosis.json say what analysis.json says.
    write_run(tmp_path / "run", [path], detailed, overrides=(), context=lambda folder, now: [])
    written = msgspec.json.decode((tmp_path / "run" / DIAGNOSIS_FILE).read_bytes(), type=Diagnosis)
    assert _normal(written, path) == expected
    assert _normal(api.load_run(tmp_path / "run").diagnosis, path) == expected
    view = view_run(tmp_path / "run")
    assert view.headline.verdict == expected.verdict.text
    assert [f.rule for f in view.findings] == [f.rule for f in expected.claims if f.rule != "profiler_overhead"]


def test_what_is_left_out_of_a_long_trace_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for name, path in AT_HAND.items() if name == "tests/llama.trace.json.gz")
    whole = read_captures([path], [TORCH], tmp_path).analysis
    monkeypatch.setattr(trace_workers, "is_long", lambda path: True)
    short = read_captures([path], [TORCH], tmp_path).analysis
    assert whole.diagnosis and short.diagnosis
    assert short.diagnosis.verdict == whole.diagnosis.verdict


def _of_torch(path: Path) -> Mapping[str, CaptureAnalysis]:
    write_trace_files(path, by_shape=True, pass_note="")
    return {"torch stage": _read(path.parent / ANALYSIS_FILE)}


def _of_nsys(path: Path, folder: Path) -> Mapping[str, CaptureAnalysis]:
    stage = analyze_exports([path], {}).analysis
    place = LookPlace.of(folder / "bench", PlainConsole(), [], Redactor())
    record = nsys_stage(place, NsysWindow(exports=(path,), notes=()), server="openai", label="load")
    window = record.file("analysis_json")
    assert window is not None
    return {"nsys stage": stage, "bench window": _read(window)}


def _read(path: Path) -> CaptureAnalysis:
    return msgspec.json.decode(path.read_bytes(), type=CaptureAnalysis)


def _answer(analysis: CaptureAnalysis, path: Path) -> Diagnosis:
    assert analysis.diagnosis
    return _normal(analysis.diagnosis, path)


def _normal(diagnosis: Diagnosis, path: Path) -> Diagnosis:
    """As it was written; a run names its captures by their file names, `analyze` by the paths given."""
    found = msgspec.json.decode(msgspec.json.encode(diagnosis), type=Diagnosis)
    name, given = path.name, str(path)
    return replace(
        found,
        scopes=tuple(replace(scope, source=scope.source.replace(given, name)) for scope in found.scopes),
        claims=tuple(
            replace(
                claim,
                source=claim.source.replace(given, name),
                sources=tuple(source.replace(given, name) for source in claim.sources),
            )
            for claim in found.claims
        ),
    )


def _unpacked(path: Path, folder: Path) -> Path:
    """A copy in its own folder: entry points write alongside what they read."""
    local = folder / "capture" / path.name.removesuffix(".xz")
    local.parent.mkdir()
    if path.suffix == ".xz":
        with lzma.open(path) as packed, local.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    else:
        shutil.copy(path, local)
    return local


SUMMARY = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    "75.0,3000,3,1000.0,1000.0,900,1100,50.0,nvjet_tst_128x64_TNT\n"
    "25.0,1000,1,1000.0,1000.0,1000,1000,0.0,my_kernel(int)\n"
)


@pytest.mark.parametrize(("kind", "hottest"), [("ncu", "nvjet_sm90_tst_64x8"), ("summary", "nvjet_tst_128x64")])
def test_kernels_without_a_timeline_are_an_answer_of_their_own(tmp_path: Path, kind: str, hottest: str) -> None:
    if kind == "summary":
        path = tmp_path / "kernels.csv"
        path.write_text(SUMMARY, encoding="utf-8")
    else:
        path = _unpacked(DATA / "ncu_raw.csv.xz", tmp_path)
    found = read_captures([path], [kind_of(path)], tmp_path / "scratch")
    expected = _answer(found.analysis, path).verdict
    assert (expected.kind, (expected.hottest_kernel or "").startswith(hottest)) == ("kernels_only", True)
    assert "There is no timeline" in expected.text
    write_run(tmp_path / "run", [path], found, overrides=(), context=lambda folder, now: [])
    assert msgspec.json.decode((tmp_path / "run" / DIAGNOSIS_FILE).read_bytes(), type=Diagnosis).verdict == expected
    assert view_run(tmp_path / "run").headline.verdict == expected.text
