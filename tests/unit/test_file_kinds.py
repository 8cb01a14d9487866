"""What a file is told to be: read, or refused by its own name; and what nsys says of its own work."""

import gzip
import lzma
import sqlite3
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.nsys.scrub import export_problem
from llm_perf_opt.profiling.parsers.nsys_log import failure_words, import_notes
from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace
from llm_perf_opt.runners.analyze.kinds import NCU, NSYS, SUMMARY, TORCH, kind_of
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event, write_trace

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
XPROF = b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1}]}'
XPROF_BARE = b'{"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}}]}'
STATS = b'[{"Time (%)": 1, "Total Time (ns)": 2, "Instances": 3, "Name": "k"}]'
MICROSECONDS = b"Time (%),Total Time (us),Instances,Avg (us),Name\n"
CALLS = b"Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n"
TRACE = b'{"schemaVersion": 1, "traceEvents": []}'


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", TRACE, TORCH),
        ("a.json.gz", gzip.compress(TRACE, mtime=0), TORCH),
        ("a", TRACE, TORCH),
        ("a.json", STATS, SUMMARY),
        ("a.csv", MICROSECONDS, SUMMARY),
        ("a.tsv", MICROSECONDS.replace(b",", b"\t"), SUMMARY),
        ("a.txt", b"Processing [a.sqlite] with [x.py]...\n" + MICROSECONDS, SUMMARY),
        ("a.csv", CALLS, SUMMARY),
        ("a.csv", b'"ID","Kernel Name"\n', NCU),
        ("a.csv.xz", lzma.compress(b'"ID"\n'), NCU),
        ("a.db", b"SQLite format 3\x00", NSYS),
        ("a.nsys-rep", b"anything", NSYS),
    ],
)
def test_a_capture_is_known_by_its_name_and_beginning(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.nsys-rep", LFS, "a pointer of Git LFS, not the file itself; run `git lfs pull`"),
        ("a.json", LFS, "a pointer of Git LFS"),
        ("a.sqlite", b"\n<!DOCTYPE html>\n<html>", "a web page, not a capture"),
        ("a.sqlite", gzip.compress(b"x", mtime=0), "packed with gzip; unpack it"),
        ("a.sqlite.xz", lzma.compress(b"x"), "packed with xz; unpack it"),
        ("a.json", XPROF, "a trace of XProf, the profiler of JAX and TensorFlow"),
        ("a.json.gz", gzip.compress(XPROF_BARE, mtime=0), "a trace of XProf"),
        (
            "a.json",
            b'[{"name": "mm", "ph": "X", "pid": "CPU functions", "args": {}}]',
            "a trace of torch.autograd.profiler",
        ),
        ("a.json", b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "a profile for speedscope"),
        (
            "a.txt",
            b" Time (%)  Total Time (ns)  Instances\n",
            "a report of nsys stats printed for reading; make a kernel",
        ),
        ("a.json", b"[1, 2, 3]", "a JSON list of values, not of events: no trace"),
        ("a.json", b" [ ]", "a JSON list of values"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "HDF5 export of nsys; export the report with `nsys export --type sqlite`"),
        ("a.json", b'{"data":["[Unknown]","[kernel.kallsyms]"]}\n', "JSON or text export of nsys"),
        ("a.csv", b'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n', "a summary of rocprof"),
        ("a.csv", b'"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n', "a trace of rocprof"),
        ("a.csv", b'==12== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Name"\n', "a summary of nvprof"),
        ("a.txt", b"hello", "not a capture this command knows"),
    ],
)
def test_what_is_no_capture_is_refused_by_its_own_name(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ParseError, match=words):
        kind_of(path)


def test_a_chrome_trace_of_another_tool_is_refused_with_its_categories(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        f"[{event('cuda', 'k', '1', '2')}, {event('cuda_api', 'f', '0', '1')}, {event('cuda', 'k', '4', '2')}]"
    )
    with pytest.raises(ParseError) as caught:
        read_torch_trace(path)
    assert str(caught.value) == (
        f"{path}: a Chrome trace, but not one of torch's profiler (its events are of the categories 'cuda', "
        "'cuda_api'); give the capture it was made from (an nsys report or export), or a trace "
        "written by torch.profiler"
    )


@pytest.mark.parametrize("text", ['[{"model": "x", "latency_ms": 3}]', '{"traceEvents": [{"ph": "M", "name": "x"}]}'])
def test_json_without_any_event_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ParseError, match="JSON, but no trace: it holds no complete event"):
        read_torch_trace(path)


def test_a_bare_list_of_torch_events_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f"[{event('kernel', 'k', '1.000', '2.000', correlation=1)}]")
    assert len(read_torch_trace(path).timeline.kernels) == 1


def test_json_without_events_is_refused_with_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"results": [], "model": "x"}')
    with pytest.raises(ParseError, match=r"no list traceEvents at the top; its keys are 'results', 'model'\)"):
        read_torch_trace(path)


def test_sizes_as_text_and_blocking_calls_of_hip_are_understood(tmp_path: Path) -> None:
    calls = ["hipMemcpyWithStream", "hipMemcpy", "hipFree", "hipDeviceSynchronize", "hipMemcpyAsync", "hipLaunchKernel"]
    events = [event("cuda_runtime", name, f"{i}.000", "1.000", correlation=i) for i, name in enumerate(calls)]
    events.append(event("gpu_memcpy", "CopyDeviceToHost", "1.000", "2.000", pid=0, correlation=0, bytes="4096"))
    path = write_trace(tmp_path / "a.json", events, after='"hip_runtime_version": 60342134')
    timeline = read_torch_trace(path).timeline
    assert timeline.calls.waits.tolist() == [True, True, True, True, False, False]
    assert timeline.copies.size_bytes is not None
    assert timeline.copies.size_bytes.tolist() == [4096]
    assert timeline.producer == "torch profiler, HIP 6.3"


SAID = """Generating '/tmp/nsys-report-1.qdstrm'
Importer error status: Importation succeeded with non-fatal errors.
Cannot find string for an exterior index
**** Errors occurred while processing the raw events. ****
"""
FAILED = """[libprotobuf ERROR /build/agent/work/3/message_lite.cc:122] Can't parse message of type "SessionState"
Exportation error: /build/agent/work/3/ProtobufUtils.cpp(73): Throw in function void ReadMessage(int)
std::exception::what: ProtobufParseException
"""


def test_non_fatal_errors_of_an_import_become_one_note() -> None:
    assert import_notes(SAID) == [
        "nsys imported the capture with non-fatal errors (Cannot find string for an exterior index): some events "
        "may be missing"
    ]
    assert import_notes("Generated:\n    /tmp/run.nsys-rep\n") == []


def test_the_progress_of_an_export_is_not_taken_for_its_words() -> None:
    said = "Exporting 238 events: [1%      ]\rExporting 238 events: [==100%]\nExportation error: too new\n"
    assert failure_words(said) == "Exportation error: too new"


def test_a_failed_export_is_told_in_the_words_of_nsys() -> None:
    assert failure_words("") == "it printed nothing"
    assert export_problem(Path("a.nsys-rep"), False, 1, FAILED) == (
        "a.nsys-rep: `nsys export` failed (exit code 1: [libprotobuf ERROR Can't parse message of type "
        '"SessionState"; std::exception::what: ProtobufParseException); the report may be damaged or made by a newer '
        "nsys: export it with the version that made it and analyse the .sqlite"
    )


@pytest.mark.parametrize(("exit_code", "says"), [(1, "Exportation error: too new"), (0, SAID)])
def test_an_export_that_failed_is_a_failure_though_it_left_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exit_code: int, says: str
) -> None:
    export = Export()
    export.kernel("k", 0, 10, 1)
    export.call(0, 1, 1)
    made = export.write(tmp_path / "made.sqlite")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "says.txt").write_text(says)
    script = f"""#!/bin/sh
cat {tmp_path}/says.txt
for word in "$@"; do case "$word" in --output=*) cp {made} "${{word#--output=}}";; esac; done
exit {exit_code}
"""
    (tools / "nsys").write_text(script)
    (tools / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"report")
    assert main(["analyze", str(report)]) == exit_code
    printed = capsys.readouterr()
    if exit_code:
        assert "`nsys export` failed (exit code 1: Exportation error: too new)" in printed.err
    else:
        assert f"{report}: nsys imported the capture with non-fatal errors (Cannot find string" in printed.out


def test_what_nsys_found_wrong_itself_is_a_note(tmp_path: Path) -> None:
    export = Export()
    export.kernel("k", 0, 10, 1)
    export.call(0, 1, 1)
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
        rows = [
            (1, "all is well"),
            (3, "Wrong event order\nhas been detected"),
            (2, "Not all CUDA events might be there"),
        ]
        db.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, ?, ?)", rows)
    db.close()
    assert read_nsys_sqlite(path).notes == (
        "nsys says: Wrong event order has been detected",
        "nsys says: Not all CUDA events might be there",
    )


WILD = shared_fixtures()


@pytest.mark.skipif(WILD is None or not (WILD / "wild").is_dir(), reason="the published captures are not here")
def test_published_captures_of_other_tools_are_refused_or_read() -> None:
    assert WILD is not None
    with pytest.raises(ParseError, match="not one of torch's profiler"):
        read_torch_trace(WILD / "wild" / "nsightful_power_iteration_chrome.json.gz")
    rocm = read_torch_trace(WILD / "wild" / "tracelens_sglang_decode_mi300.json.gz").timeline
    waits = rocm.calls.end_ns[rocm.calls.waits] - rocm.calls.start_ns[rocm.calls.waits]
    assert (len(rocm.kernels), round(int(waits.max()) / 1e6)) == (555, 463)
