"""Stacks, metrics of OpenTelemetry and timelines of all ranks for other tools; a copy of a run for other people."""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.records import Metric, Spread, StageFile, StageRecord
from llm_perf_opt.diagnosis.host.stacks import read_stacks
from llm_perf_opt.pipeline.share import changed_places
from llm_perf_opt.report.render.html import unpack
from llm_perf_opt.report.render.otlp import render_otlp
from llm_perf_opt.report.render.stacks_export import StackProfile, WeightedStack, collapsed, speedscope
from tests.support.perfetto_rules import broken_rules
from tests.support.report_runs import clean, write_run
from tests.support.schemas import valid
from tests.support.trace_builder import event, step, write_trace

STACKS = """\
process 7:"python slow.py --x=1;2";thread (0x1): MainThread;<module> (slow.py:9);tidy (slow.py:3) 90
process 7:"python slow.py --x=1;2";thread (0x1): MainThread;<module> (slow.py:9) 10
process 7:"python slow.py --x=1;2";thread (0x2): worker;run (pool.py:4) 5
"""
NUMBERS = {
    "tpot_ms": Metric(value=20.0, unit="ms", how="clean pass", spread=Spread(p10=18.0, p90=22.0, n=9)),
    "peak_memory_bytes": Metric(value=1000, unit="bytes", how="highest"),
    "device_name": Metric(value="H200", unit="", how="torch"),
}


def sampled_run(folder: Path) -> Path:
    """A run with sampled stacks and without a trace."""
    path = folder / "host_samples" / "stacks.txt"
    path.parent.mkdir(parents=True)
    path.write_text(STACKS)
    record = StageRecord(name="host_samples", status="ok", files=(StageFile(role="host_stacks", path=path),))
    return write_run(folder, record)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made from a torch trace: two steps, each with an operator inside another."""
    folder = tmp_path_factory.mktemp("traced")
    trace = write_trace(folder / "t.json", [*step(0), *step(1000)])
    assert main(["analyze", "-v", str(trace), "-o", str(folder / "run")]) == 0
    return folder / "run"


def test_sampled_stacks_are_collapsed_by_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(sampled_run(tmp_path / "run")), "--to", "collapsed"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "MainThread of process 7 (samples);<module> (slow.py:9);tidy (slow.py:3) 90",
        "MainThread of process 7 (samples);<module> (slow.py:9) 10",
        "worker of process 7 (samples);run (pool.py:4) 5",
    ]


def test_a_speedscope_file_holds_a_profile_for_each_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["export", str(sampled_run(tmp_path / "run")), "--to", "speedscope", "-o", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in found["shared"]["frames"]]
    main_thread, worker = found["profiles"]
    assert (main_thread["type"], main_thread["unit"], main_thread["startValue"], main_thread["endValue"]) == (
        "sampled",
        "none",
        0,
        100,
    )
    shown = [[names[i] for i in sample] for sample in main_thread["samples"]]
    assert shown == [["<module> (slow.py:9)", "tidy (slow.py:3)"], ["<module> (slow.py:9)"]]
    assert main_thread["weights"] == [90, 10] and sum(worker["weights"]) == worker["endValue"] == 5


def test_operators_weigh_what_they_take_alone(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(traced), "--to", "collapsed", "--stacks", "operators"]) == 0
    weights = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    # linear of 40 µs holds addmm of 30.25 µs, which holds a launch of 5 µs; there are two steps.
    assert weights["aten::linear"] == str(2 * 9_750)
    assert weights["aten::linear;aten::addmm"] == str(2 * 25_250)
    assert weights["aten::linear;aten::addmm;cudaLaunchKernel"] == str(2 * 5_000)
    total = sum(map(int, weights.values()))
    # The wait begins inside the copy and ends after it: it counts up to the end of the copy.
    assert total == 2 * (40_000 + 10_000)


def test_stacks_of_a_trace_need_no_run(tmp_path: Path, traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = traced.parent / "t.json"
    assert main(["export", str(traced), "--to", "collapsed"]) == 0
    of_run = capsys.readouterr().out
    assert main(["export", str(trace), "--to", "collapsed"]) == 0
    assert capsys.readouterr().out == of_run
    out = tmp_path / "out.json"
    assert main(["export", str(trace), "--to", "speedscope", "-o", str(out), "--json"]) == 0
    assert valid("export", json.loads(capsys.readouterr().out))["numbers"] == {}
    assert json.loads(out.read_text())["name"] == trace.name
    assert main(["export", str(trace), "--to", "otlp"]) == 2
    assert f"--to otlp: takes the directory of a run (got the file {trace})" in capsys.readouterr().err


def test_what_a_run_does_not_have_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", StageRecord(name="x", status="ok", metrics=clean(tpot_ms=1.0)))
    assert main(["export", str(run), "--to", "speedscope"]) == 2
    assert "no stacks: the host was not sampled" in capsys.readouterr().err
    assert main(["export", str(sampled_run(tmp_path / "b")), "--to", "collapsed", "--stacks", "operators"]) == 2
    assert "has no such stacks (got operators), allowed: host" in capsys.readouterr().err


def test_frames_hold_nothing_that_breaks_a_line() -> None:
    stacks = (WeightedStack(frames=("a;b\nc", "d"), weight=3),)
    profile = StackProfile(name="one", source="host", unit="none", stacks=stacks)
    assert collapsed([profile]) == "a:b c;d 3\n"
    assert json.loads(speedscope([profile], name="n"))["profiles"][0]["weights"] == [3]
    assert read_stacks(STACKS)[0].samples == 90


def test_numbers_are_gauges_of_opentelemetry() -> None:
    parsing = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    text = render_otlp(NUMBERS, {"run": "a", "model": 'b"c'}, time_ns=1_700_000_000_000_000_000)
    request = parsing.Parse(text, service.ExportMetricsServiceRequest())
    (of_run,) = request.resource_metrics
    labels = {one.key: one.value.string_value for one in of_run.resource.attributes}
    assert labels == {"service.name": "llm-perf", "llm_perf.run": "a", "llm_perf.model": 'b"c'}
    memory, tpot = of_run.scope_metrics[0].metrics
    assert (memory.name, memory.unit) == ("llm_perf.peak_memory", "By")
    assert memory.gauge.data_points[0].as_double == 1000.0
    points = {p.attributes[0].value.string_value: (p.as_double, p.time_unix_nano) for p in tpot.gauge.data_points}
    assert (tpot.name, tpot.unit) == ("llm_perf.tpot", "s")
    assert points["median"] == (0.02, 1_700_000_000_000_000_000) and points["p10"][0] == pytest.approx(0.018)


class Collector(BaseHTTPRequestHandler):
    """Takes one request and answers with the status its server has."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.taken.append((self.path, dict(self.headers), self.rfile.read(length)))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def collector(status: int) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.taken, server.status = [], status  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.taken  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_collector_is_sent_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", StageRecord(name="torch_profiler", status="ok", metrics=clean(tpot_ms=20.0)))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b")
    with collector(200) as (address, taken):
        assert main(["export", str(run), "--to", "otlp", "--endpoint", address, "--json"]) == 0
    valid("export", json.loads(capsys.readouterr().out))
    ((path, headers, body),) = taken
    assert (path, headers["X-Team"], headers["Content-Type"]) == ("/v1/metrics", "a b", "application/json")
    assert json.loads(body)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["name"] == "llm_perf.tpot"
    with collector(404) as (address, _):
        assert main(["export", str(run), "--to", "otlp", "--endpoint", address]) == 1
    assert "answered 404" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "otlp", "-o", str(tmp_path / "m.json")]) == 0
    assert json.loads((tmp_path / "m.json").read_text())["resourceMetrics"]


def test_the_ranks_of_a_job_are_one_trace(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in range(3):
        job = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 3}}, '
        job += '"baseTimeNanoseconds": 1700000000000000000'
        write_trace(tmp_path / "job" / f"rank{rank}.json", step(1000 * (rank + 1)), after=job)
    out = tmp_path / "all.json.gz"
    assert main(["export", str(tmp_path / "job"), "--to", "perfetto", "-o", str(out)]) == 0
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert broken_rules(events) == []
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [re.match(r"rank \d, torch: rank\d\.json", name) is not None for name in groups.values()] == [True] * 3
    first = {pid: min(e["ts"] for e in events if e["ph"] == "X" and e["pid"] == pid) for pid in groups}
    # Each began 1 ms after the one before, on the clock of the day.
    assert sorted(first.values()) == pytest.approx([0.0, 1000.0, 2000.0])


def test_a_run_without_captures_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sampled_run(tmp_path / "run")
    assert main(["export", str(run), "--to", "perfetto", "-o", str(tmp_path / "x.gz")]) == 2
    assert "holds no capture any more; give the captures themselves" in capsys.readouterr().err


SECRET, GIVEN = "hf_" + "Qw9zRt7LmN4pXc2VbK8s" + "JdYh3GfT6a", "tr0ub4dor-and-3-horses"
HOST, HOME = "gpu-box-17.example.org", "/home/mallory"


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with secrets, a host name and a home directory planted in every kind of file."""
    monkeypatch.setenv("DB_PASSWORD", GIVEN)
    base = 1000
    events = [
        event("user_annotation", f"load {SECRET}", f"{base}.000", "900.000"),
        event("cuda_runtime", "cudaLaunchKernel", f"{base + 20}.000", "5.000", correlation=7),
        event("kernel", "gemm", f"{base + 30}.125", "800.500", pid=0, tid=7, correlation=7, device=0),
        *step(base + 1000),
    ]
    trace = write_trace(tmp_path / "t.json", events)
    run = tmp_path / "run"
    assert main(["analyze", "-v", str(trace), "-o", str(run)]) == 0
    data = json.loads((run / "manifest.json").read_text())
    data["environment"] |= {"hostname": HOST, "variables": {"HF_TOKEN": SECRET}}
    data |= {"user_dir": f"{HOME}/work", "overrides": [f"dataset.file={HOME}/p.jsonl"]}
    stage = data["stages"][0]
    folder = run / stage["name"]
    (folder / "log.txt").write_text(f"ssh {HOST}\npassword: {GIVEN}\nread {HOME}/p.jsonl with {SECRET}\n")
    (folder / "trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (folder / "predictions.jsonl").write_text('{"answer": "a private text"}\n')
    page = folder / "viz" / "page-1"
    page.mkdir(parents=True)
    for written in (folder / "viz" / "predictions.md", page / "page.md", page / "thumbnail.jpg"):
        written.write_text("a private text")
    (run / "tmp").mkdir()
    (run / "tmp" / "scratch.txt").write_text(SECRET)
    (run / "elsewhere.txt").symlink_to("/etc/passwd")
    stage["files"] += [
        {"role": "trace", "path": f"{stage['name']}/trace.json.gz"},
        {"role": "predictions", "path": f"{stage['name']}/predictions.jsonl"},
        {"role": "gallery", "path": f"{stage['name']}/viz/predictions.md"},
    ]
    (run / "manifest.json").write_text(json.dumps(data))
    return run


def test_a_host_name_too_short_to_be_looked_for_is_hidden_where_it_is_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", environment={"hostname": "vm"})
    (run / "env.json").write_text('{\n  "hostname": "vm"\n}\n')
    assert main(["export", "--share", str(run), "-o", str(tmp_path / "a.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        texts = [archive.read(f"run/{name}").decode() for name in ("manifest.json", "env.json")]
    assert [json.loads(texts[0])["environment"]["hostname"], json.loads(texts[1])["hostname"]] == ["xx", "xx"]


def planted(data: bytes) -> set[str]:
    found = {text for text in (SECRET, GIVEN, HOST, HOME, "mallory", "private text") if text.encode() in data}
    if data.startswith(b"\x1f\x8b"):
        found |= planted(gzip.decompress(data))
    return found


def test_a_shared_copy_holds_no_planted_secret_and_lists_what_was_removed(
    leaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shared.zip"
    capsys.readouterr()
    before = {path: path.read_bytes() for path in leaky.rglob("*") if path.is_file() and not path.is_symlink()}
    assert main(["export", "--share", str(leaky), "-o", str(out), "--json"]) == 0
    shared = valid("export", json.loads(capsys.readouterr().out))["shared"]
    with zipfile.ZipFile(io.BytesIO(out.read_bytes())) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert {name: planted(data) for name, data in contents.items() if planted(data)} == {}
    assert {"run/report.html", "run/manifest.json", "run/shared.json", "run/diagnosis.json"} <= contents.keys()
    assert valid("shared", json.loads(contents["run/shared.json"])) == shared
    reasons = {file["path"].rpartition("/")[2]: file["reason"] for file in shared["left_out"]}
    assert reasons == {
        "elsewhere.txt": "no regular file",
        "scratch.txt": "scratch",
        "trace.json.gz": "a capture (--with-captures adds it)",
        "predictions.jsonl": "prompts and answers",
        "predictions.md": "prompts and answers",
        "page.md": "prompts and answers",
        "thumbnail.jpg": "prompts and answers",
    }
    places = {file["path"]: file["places"] for file in shared["redacted"]}
    assert places["torch_profiler/log.txt"] == 4
    assert "manifest.json" in places
    assert b"shared copy: 7 files" in contents["run/report.html"]
    assert {path: path.read_bytes() for path in before} == before, "the run itself is as it was"


def test_the_copy_is_a_run_like_any_other(leaky: Path, tmp_path: Path) -> None:
    assert main(["export", "--share", str(leaky), "-o", str(tmp_path / "a.zip"), "--with-captures"]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "there")
    copy = tmp_path / "there" / "run"
    assert not any(planted(path.read_bytes()) for path in copy.rglob("*") if path.is_file())
    assert all(file.path.is_file() for stage in read_manifest(copy).stages for file in stage.files)
    assert main(["report", str(copy)]) == 0
    assert main(["analyze", str(copy / "torch_profiler" / "trace.json.gz"), "--json"]) == 0


def test_a_page_alone_is_shared_without_secrets_and_dead_links(leaky: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["export", "--share", str(leaky), "-o", str(out)]) == 0
    page = out.read_bytes()
    assert planted(page) == planted(unpack(page)) == set()
    assert b"shared copy: 7 files" in page
    targets = re.findall(r"""(?:href|src)=["']?([^"' >]+)""", page.decode())
    assert [target for target in targets if not target.startswith(("#", "data:", "https:"))] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "one of --to and --share is needed"),
        (["run", "--share"], "-o: a file is needed"),
        (["run", "--share", "-o", "x.tar"], "a name that ends with .zip or .html (got 'x.tar')"),
        (["run", "--share", "--with-captures", "-o", "x.html"], "--with-captures: has an effect"),
        (["run", "other", "--to", "otlp"], "one run at a time (got 2)"),
        (["run", "--to", "speedscope", "--stacks", "host"], "--stacks: has an effect with --to collapsed only"),
        (["run", "--to", "otlp", "--endpoint", "file:///etc"], "--endpoint: the http or https address"),
        (["run", "--to", "prometheus", "--json"], "goes to the same place, allowed: with -o FILE"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err


def test_places_are_counted() -> None:
    assert changed_places(b"a=secret b=other c=x", b"a=xxxxxx b=xxxxx c=x") == 2
    assert changed_places(b"same", b"same") == 0
    assert changed_places(b"axbxc", b"xxxxx") == 1
