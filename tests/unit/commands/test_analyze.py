"""`llm-perf analyze` as a user calls it."""

import csv
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import PID, Export, h200_export
from tests.support.trace_builder import event, step, write_trace

KERNEL_KEYS = {
    "name", "instances", "total_ns", "avg_ns", "med_ns", "min_ns", "max_ns", "stddev_ns", "time_pct",
}  # fmt: skip
RANGE_KEYS = {"name", "instances", "wall_ns", "kernel_count", "gpu_busy_ns", "gpu_idle_ns", "idle"}


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return h200_export(tmp_path_factory.mktemp("h200"))


def _capture(path: Path, length: int = 30) -> Path:
    export = Export()
    export.range("decode", 0, 100)
    export.call(5, 8, 1)
    export.kernel("k", 20, 20 + length, 1)
    return export.write(path)


def test_json_is_one_object_with_the_promised_keys(h200: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--json", str(h200)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"sources", "gpu", "kernels", "ranges", "findings"} <= set(found)
    assert all(set(k) >= KERNEL_KEYS for k in found["kernels"])
    assert all(set(r) >= RANGE_KEYS for r in found["ranges"])
    assert sum(k["instances"] for k in found["kernels"]) == found["gpu"]["kernel_count"] == 19_611
    assert sum(k["time_pct"] for k in found["kernels"]) == pytest.approx(100.0)
    decode = next(r for r in found["ranges"] if r["name"] == "decode")
    assert (decode["last"]["kernel_count"], decode["last"]["gpu_busy_ns"]) == (5_553, 15_602_626)
    assert [f["rule"] for f in found["findings"]] == [
        "launch_bound",
        "compilation",
    ]


def test_the_tables_name_the_numbers_that_matter(h200: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(h200), "--top", "3"]) == 0
    out = capsys.readouterr().out
    assert "15.603 of 189.45" in out
    verdict, _, rest = out.partition("\n")
    assert verdict.startswith("Launch-bound decode_step: GPU idle 90 % of each decode_step. ")
    assert rest.index("findings") < rest.index("Time ledger") < rest.index("15.603 of 189.45")
    assert "decode_step: up to 9.6× over the steady state; confidence high" in out
    assert "lower bound: kernels run back to back" in out and "(one-time cost); confidence high" in out
    assert re.search(r"the steady state \(decode_step\): 228\.2 ms.*?CPU launch overhead +204\.5 +89\.62", out, re.S)
    assert out.count("nvjet_sm90") == 2


def test_a_run_directory_is_written_as_if_the_stage_had_run(h200: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["analyze", "-v", str(h200), "-o", str(out)]) == 0
    manifest = read_manifest(out)
    (stage,) = manifest.stages
    assert (manifest.status, stage.name, stage.status) == ("ok", "nsys", "ok")
    assert {f.path.name for f in stage.files} >= {
        "analysis.json",
        "gpu_idle.csv",
        "nvtx_ranges.csv",
        "summary.csv",
        "summary_cuda_gpu_kern_sum.csv",
    }
    assert stage.metrics["kernel_count"].value == 19_611
    assert stage.metrics["decode_gpu_busy_ns"].value == 15_602_626
    assert (out / "report.md").is_file()
    with (out / "nsys" / "nvtx_ranges.csv").open() as file:
        rows = {row["range"]: row for row in csv.DictReader(file)}
    assert (rows["decode"]["instances"], rows["decode"]["last_gpu_busy_ns"]) == ("4", "15602626")
    with (out / "nsys" / "gpu_idle.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 32


def test_an_existing_directory_is_not_written_into(
    h200: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["analyze", str(h200), "-o", str(tmp_path)]) == 2
    assert "exists and is not an empty directory" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_trace_gives_operators_and_modules_besides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace.json.gz", step())
    out = tmp_path / "run"
    assert main(["analyze", "--json", str(path), "-o", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [o["name"] for o in found["operators"]] == ["aten::addmm", "aten::linear", "aten::copy_"]
    assert (found["modules"], found["ranges"][0]["name"]) == ([], "decode")
    (stage,) = read_manifest(out).stages
    assert stage.name == "torch_profiler"
    table = (out / "torch_profiler" / "operators.csv").read_text().splitlines()
    assert table[1] == "aten::addmm,1,25250,30250,20500,20500"


def test_several_captures_are_repetitions_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(_capture(tmp_path / f"run.{i}.sqlite", length=10 * i)) for i in (1, 2)]
    assert main(["analyze", "--json", *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(s["path"], s["kernel_ns"]) for s in found["sources"]] == [(files[0], 10), (files[1], 20)]
    assert [(k["name"], k["instances"], k["total_ns"]) for k in found["kernels"]] == [("k", 2, 30)]


def test_the_table_of_ranges_says_over_how_many_processes_it_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, other = str(_capture(tmp_path / "a.sqlite")), str(_capture(tmp_path / "b.sqlite"))
    export = Export()
    for rank in (1, 2):
        export.range("decode", 0, 1_000_000 * rank, tid=rank * PID | 1)
        export.call(5, 8, rank, tid=rank * PID | 1)
        export.kernel("k", 20, 50, rank, pid=rank * PID)
    both = str(export.write(tmp_path / "both.sqlite"))
    said = {}
    for name, files in (("one", [alone]), ("two files", [alone, other]), ("two ranks", [both])):
        assert main(["analyze", "-v", *files]) == 0
        lines = capsys.readouterr().out.splitlines()
        said[name] = [line.strip() for line in lines if line.strip().startswith("sums over")]
    assert said == {
        "one": [],
        "two files": ["sums over 2 processes in 2 captures"],
        "two ranks": ["sums over 2 processes; elapsed time with the range open: decode 2.000 ms"],
    }


def test_the_modules_of_several_traces_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = event("python_function", "nn.Module: Linear_0", "5.000", "60.000")
    other = event("python_function", "nn.Module: Norm_0", "70.000", "500.000")
    files = [write_trace(tmp_path / "1.json", [*step(), module]), write_trace(tmp_path / "2.json", [module, other])]
    assert main(["analyze", "--json", *map(str, files)]) == 0
    assert json.loads(capsys.readouterr().out)["modules"] == [
        {
            "name": "nn.Module: Norm_0",
            "calls": 1,
            "wall_ns": 500_000,
            "kernel_count": 0,
            "kernel_ns": 0,
            "gpu_busy_ns": 0,
        },
        {
            "name": "nn.Module: Linear_0",
            "calls": 2,
            "wall_ns": 120_000,
            "kernel_count": 1,
            "kernel_ns": 20_500,
            "gpu_busy_ns": 20_500,
        },
    ]


def test_a_kernel_summary_has_kernels_and_no_made_up_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sum.csv"
    path.write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "100.0,90,3,30.0,30.0,10,50,20.0,k\n"
    )
    assert main(["analyze", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(k["name"], k["total_ns"]) for k in found["kernels"]] == [("k", 90)]
    assert (found["gpu"]["busy_ns"], found["gpu"]["kernel_ns"], found["ranges"]) == (None, 90, [])


@pytest.mark.parametrize("place", ["nsys/run_gpukernsum.csv", "tmp/stage2/r/nsys/summary_cuda_gpu_kern_sum.csv"])
def test_an_old_run_is_read_from_its_kernel_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "100.0,90,3,30.0,30.0,10,50,20.0,k\n"
    )
    assert main(["analyze", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(k["name"], k["total_ns"]) for k in found["kernels"]] == [("k", 90)]
    assert [source["path"] for source in found["sources"]] == [str(path)]


def test_a_directory_that_is_no_old_run_says_what_to_give_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(tmp_path)]) == 2
    nothing = "a directory without a kernel summary of nsys, allowed: capture files, or a run of an older version"
    assert capsys.readouterr().err == f"error: {tmp_path}: {nothing}\n"
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["analyze", str(tmp_path)]) == 2
    reported = "a run that has its reports (report.md); to analyse a capture of it, give the file"
    assert capsys.readouterr().err == f"error: {tmp_path}: {reported}, such as nsys/run.sqlite\n"


def test_ncu_files_are_analysed_alone_and_joined_with_a_timeline(
    h200: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_bytes(lzma.decompress((DATA / "ncu_raw.csv.xz").read_bytes()))
    assert main(["analyze", "--json", str(raw)]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["ncu"]["launches"], alone["kernels"], alone["ncu"]["match_rate"]) == (24, [], None)
    out = tmp_path / "run"
    assert main(["analyze", "--json", str(h200), str(raw), "-o", str(out)]) == 0
    joined = json.loads(capsys.readouterr().out)
    assert joined["ncu"]["match_rate"] == 1.0
    assert [s.name for s in read_manifest(out).stages] == ["nsys", "ncu"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.sqlite", "t.json"], "nsys captures and torch traces together would count kernels twice"),
        (["s.csv", "s2.csv"], "kernel summaries cannot be added up"),
        (["none.sqlite"], "No such file"),
        (["raw.qdstrm"], "QdstrmImporter"),
        (["letter.txt"], "not a supported capture"),
        (["empty.sqlite"], "the file is empty"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str], words: str
) -> None:
    _capture(tmp_path / "a.sqlite")
    write_trace(tmp_path / "t.json", step())
    for name in ("s.csv", "s2.csv"):
        (tmp_path / name).write_text("Time (%),Total Time (ns),Instances,Name\n")
    for name in ("raw.qdstrm", "letter.txt"):
        (tmp_path / name).write_text("Dear reader")
    (tmp_path / "empty.sqlite").touch()
    assert main(["analyze", *(str(tmp_path / name) for name in names)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert (err.startswith("error: "), err.count("\n")) == (True, 1)


def test_the_kernel_summary_alone_equals_that_of_the_whole_analysis(
    h200: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "--json", str(h200)]) == 0
    whole = json.loads(capsys.readouterr().out)["kernels"]
    assert main(["analyze", "--json", "--kernels-only", str(h200)]) == 0
    alone = json.loads(capsys.readouterr().out)["kernels"]
    assert [{**k, "stddev_ns": pytest.approx(k["stddev_ns"])} for k in whole] == alone
    assert main(["analyze", "--kernels-only", "--top", "2", str(h200)]) == 0
    assert capsys.readouterr().out.count("nvjet_sm90") == 2


def test_the_kernel_summary_alone_leaves_out_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = Export()
    export.kernel("k", 20, 50, 1)
    export.kernel("k", 60, None, 2)
    export.kernel("other", 90, 80, 3)
    path = export.write(tmp_path / "a.sqlite")
    assert main(["analyze", "--json", "--kernels-only", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(k["name"], k["instances"], k["total_ns"]) for k in found["kernels"]] == [("k", 1, 30)]
    assert found["notes"] == ["left out: 2 rows of CUPTI_ACTIVITY_KIND_KERNEL without a usable start and end"]
    assert main(["analyze", "--kernels-only", str(path), str(path)]) == 2


def test_a_file_without_a_telling_name_is_known_by_its_first_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(_capture(tmp_path / "a.sqlite"), tmp_path / "capture")
    assert main(["analyze", "--json", str(tmp_path / "capture")]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["kind"] == "nsys"


def test_a_report_without_nsys_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report")
    assert main(["analyze", str(report)]) == 1
    assert "`nsys export --type sqlite a.nsys-rep`" in capsys.readouterr().err
    _capture(tmp_path / "a.sqlite")
    assert main(["analyze", "--json", str(report)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"][0] == f"{report}: nsys is not installed, its export a.sqlite was read instead"


@pytest.mark.real_nsys
def test_a_damaged_report_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1." + b"\0" * 500)
    assert main(["analyze", str(report)]) == 2
    assert "`nsys export` failed (exit code 1" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["/dev/null/x", "file/x", "/proc/nope"])
def test_a_directory_that_cannot_be_made_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    (tmp_path / "file").touch()
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0 and nothing else")
    assert main(["analyze", str(broken), "-o", str(tmp_path / output)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: -o {tmp_path / output}: cannot be made (")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"], ["--kernels-only"], ["--json", "--kernels-only"]])
def test_a_full_disk_under_the_output_is_one_line_and_exit_code_1(tmp_path: Path, options: list[str]) -> None:
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "analyze", "-v", str(_capture(tmp_path / "a.sqlite")), *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    said = "error: reading or writing failed ([Errno 28] No space left on device)\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"], ["--json", "--kernels-only"]])
def test_names_the_terminal_cannot_show_are_escaped(tmp_path: Path, options: list[str]) -> None:
    export = Export()
    export.kernel("naïve_λ_kernel", 20, 50, 1)
    argv = [
        sys.executable,
        "-m",
        "llm_perf_opt.cli",
        "analyze",
        "-v",
        str(export.write(tmp_path / "a.sqlite")),
        *options,
    ]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(argv, env=env, capture_output=True, timeout=60, check=True)
    if options:
        assert [k["name"] for k in json.loads(done.stdout)["kernels"]] == ["naïve_λ_kernel"]
    else:
        assert b"na\\xefve_\\u03bb_kernel" in done.stdout


def test_a_file_name_that_is_no_text_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.sqlite")
    shutil.copy(_capture(tmp_path / "a.sqlite"), name)
    assert main(["analyze", name]) == 2
    said = f"error: {tmp_path}/b\\udcff.sqlite: the name is not UTF-8; rename the file and give that\n"
    assert capsys.readouterr().err == said


def test_a_trace_whose_kernels_were_lost_says_so_with_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = [event("cuda_runtime", "cudaLaunchKernel", f"{i}0.0", "5.0", correlation=i) for i in range(1, 4)]
    path = write_trace(tmp_path / "t.json", [*launches, event("cuda_driver", "cuLaunchKernel", "60.0", "5.0")])
    assert main(["analyze", "-v", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(
        "No GPU work was recorded. GPU activity was traced, but the records of 4 launches were lost: call "
        "torch.cuda.synchronize() before the recording ends, and record a shorter window."
    )
    assert "4 of 4 calls that launch GPU work have no work in the capture" in said


def test_an_empty_window_is_called_empty_and_not_a_missing_activity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [event("overhead", "Activity Buffer Request", "1.0", "5.0", pid=-1, tid=0)]
    calls = [event("cuda_runtime", "cudaDeviceSynchronize", "10.0", "5.0", correlation=1)]
    for name, listed in (("overhead", events), ("calls", calls)):
        assert main(["analyze", "-v", str(write_trace(tmp_path / f"{name}.json", listed))]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(
            "No GPU work was recorded. GPU activity was traced, but nothing was launched in the recorded window: it "
            "is empty. Check the profiler's schedule and its step() calls, and whether another process does the GPU "
            "work."
        )
        assert "ProfilerActivity.CUDA" not in said
        assert "GPU activity was recorded, and nothing was launched in the recorded window" in said


# Prints the modules of ours of which a function ran; class bodies and comprehensions are none.
ENTERED = """
import sys
from llm_perf_opt.cli import main
entered = set()
def note(frame, event, _):
    code = frame.f_code
    if "llm_perf_opt" in code.co_filename and code.co_flags & 2 and code.co_name[0] != "<":
        entered.add(code.co_filename)
sys.setprofile(note)
code = main(sys.argv[1:])
sys.setprofile(None)
print(len(entered), *sorted(entered), file=sys.stderr, sep="\\n")
sys.exit(code)
"""


@pytest.mark.slow
def test_a_reader_of_the_code_follows_a_capture_through_at_most_40_modules(tmp_path: Path) -> None:
    capture = tmp_path / "llama.sqlite"
    capture.write_bytes(lzma.decompress((DATA / "h200" / "llama.sqlite.xz").read_bytes()))
    argv = [sys.executable, "-c", ENTERED, "analyze", str(capture)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert "Launch-bound decode_step" in done.stdout
    count, *modules = done.stderr.splitlines()
    assert int(count) <= 40, modules
