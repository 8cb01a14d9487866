"""What a file is be: read, or refused by its own name; and what nsys says of its own work."""

import gzip
import lzma
import sqlite3
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.kinds import NCU, NSYS, SUMMARY, TORCH, kind_of
from llm_perf_opt.capture.readers.ncu_report import load_ncu
from llm_perf_opt.capture.readers.nsys_log import failure_words, import_notes
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.nsys_stats import read_stats
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.cli import main
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.nsys.scrub import export_problem
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event, write_trace

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
XPROF = b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1}]}'
XPROF_BARE = b'{"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}}]}'
STATS = b'[{"Time (%)": 1, "Total Time (ns)": 2, "Instances": 3, "Name": "k"}]'
MICROSECONDS = b"Time (%),Total Time (us),Instances,Avg (us),Name\n"
CALLS = b"Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n"
TAR = b"trace.json".ljust(257, b"\x00") + b"ustar\x00"
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
        ("a.nsight-cuprof-report", b"NVR\x00\x02", NCU),
        ("a.csv", b"\xef\xbb\xbf" + b'"ID","Kernel Name"\n', NCU),
        ("a.csv", b"the program speaks\n" * 4000, NCU),
        ("a.csv", MICROSECONDS.decode().encode("utf-16"), SUMMARY),
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
        ("a.csv", b'"Start","Duration","Grid X","Grid Y","Name"\n', "a trace of nvprof"),
        ("a.csv", b'"Kernel Name","Metric Name","Metric Unit","Minimum","Maximum","Average"\n', "a summary of ncu"),
        ("a.csv", b'"#","Source","Sampling Data (All)"\n', "the source page of ncu; make a page with `ncu --import"),
        ("a.csv", b" Time (%)  Total Time (ns)  Instances\n", "a report of nsys stats printed for reading"),
        ("a.csv", b"a,b\n1,2\n", r"neither a report of nsys stats nor a page of ncu \(its columns are 'a', 'b'\)"),
        ("a.csv", b"==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM\n", r"ncu failed and wrote no table \(ERR_NVG"),
        ("a.txt", b"==PROF== Connected to process 7\n", "what ncu printed for reading"),
        ("a.tar.gz", gzip.compress(TAR, mtime=0), "a tar archive; unpack it and give the files inside"),
        ("a.tar", TAR, "a tar archive"),
        ("a.sqlite.gz", gzip.compress(b"SQLite format 3\x00", mtime=0), "packed with gzip; unpack it"),
        ("a.xplane.pb", b"\x0a\x08", "a trace of XProf, the profiler of JAX and TensorFlow"),
        ("a.pb", b"\x0a\x80\x0d/device:GPU:0", "a trace of XProf"),
        ("a.pftrace", b"\x0a\x13\x50\x01", "a binary trace of Perfetto"),
        ("a.json", TRACE.decode().encode("utf-16"), "text in UTF-16, as PowerShell writes it; save it in UTF-8"),
        ("a.json", b'[{"count": 9}, {"name": "conv", "averageMs": 1.0, "percentage": 9.0}]', "layer times of TensorRT"),
        ("a.json", b"404: Not Found", r"not a supported capture \(it begins with '404: Not Found'\)"),
        ("a.nsys-rep", b"", "the file is empty; record, export or copy it again"),
        ("a.txt", b"hello", "not a supported capture"),
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


@pytest.mark.parametrize(
    ("categories", "tool"), [(("Session", "Node"), "one of ONNX Runtime: "), (("FEE",), "one of VizTracer: ")]
)
def test_a_chrome_trace_of_a_known_tool_is_called_by_its_name(
    tmp_path: Path, categories: tuple[str, ...], tool: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(f"[{', '.join(event(category, 'k', '1', '2') for category in categories)}]")
    with pytest.raises(ParseError, match=rf"not one of torch's profiler \({tool}its events"):
        read_torch_trace(path)


def test_a_trace_with_times_as_text_is_one_of_another_tool(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"ph": "X", "name": "MatMulV2", "pid": 31, "tid": 2, "ts": "1701.123", "dur": 12.3}]')
    with pytest.raises(ParseError, match=r"not one of torch's profiler \(its events have no category\)"):
        read_torch_trace(path)


def test_a_merge_of_several_ranks_is_refused_and_one_of_a_single_rank_read(tmp_path: Path) -> None:
    def rank(label: str) -> list[str]:
        made = [
            event("cuda_runtime", "cudaLaunchKernel", "1", "2", correlation=1),
            event("kernel", "k", "4", "2", pid=0, correlation=1),
        ]
        return [text.replace('"pid": 10', f'"pid": "[{label}] 10"') for text in made]

    one, both = tmp_path / "one.json", tmp_path / "merged.json"
    assert len(read_torch_trace(write_trace(one, rank("TP00"))).timeline.kernels) == 1
    with pytest.raises(ParseError, match="the traces of 2 ranks merged into one"):
        read_torch_trace(write_trace(both, [*rank("TP00"), *rank("TP01")]))


def test_an_empty_trace_that_does_not_say_who_wrote_it_is_not_torch_s(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [], "systemTraceEvents": ""}')
    with pytest.raises(ParseError, match="JSON, but no trace: it holds no complete event"):
        read_torch_trace(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("rocpd_string_0001", "a SQLite file of rocprofv3"),
        ("rocpd_op", "a SQLite file of rocmProfileData"),
        ("StringTable", "a SQLite file of nvprof"),
        ("CANN_API", "for Ascend, which is not read: give its trace_view.json"),
        ("x", "not an export"),
    ],
)
def test_the_database_of_another_tool_is_refused_by_its_name(tmp_path: Path, table: str, words: str) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE {table} (id INTEGER)")
    db.close()
    with pytest.raises(ParseError, match=words):
        read_nsys_sqlite(path)


def test_tables_that_powershell_wrote_are_read(tmp_path: Path) -> None:
    stats = tmp_path / "stats.csv"
    header = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
    stats.write_bytes(f'{header}\r\n100.0,2000,2,1000.0,1000.0,900,1100,100.0,"k(int)"\r\n'.encode("utf-16"))
    assert [(row.name, row.total_ns) for row in read_stats(stats).rows] == [("k(int)", 2000)]
    page = tmp_path / "page.csv"
    columns = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
    page.write_bytes(f'{columns}\n"0","k","GPU Speed Of Light","Duration","usecond","2"\n'.encode("utf-8-sig"))
    assert [launch.number("gpu__time_duration.sum") for launch in load_ncu(page)] == [2000.0]


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


@pytest.mark.parametrize(
    ("ends", "says", "code"),
    [
        ("exit 1", "Exportation error: too new", 2),
        ("kill -KILL $$", "Exportation error: too new", 1),
        ("exit 0", SAID, 0),
    ],
)
def test_an_export_that_failed_is_a_failure_though_it_left_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str, says: str, code: int
) -> None:
    """A report that nsys refuses is bad input; an nsys that something ended says nothing of the report."""
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
{ends}
"""
    (tools / "nsys").write_text(script)
    (tools / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"report")
    assert main(["analyze", "-v", str(report)]) == code
    printed = capsys.readouterr()
    if code:
        number = {2: 1, 1: -9}[code]
        assert f"`nsys export` failed (exit code {number}: Exportation error: too new)" in printed.err
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
