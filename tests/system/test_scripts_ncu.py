"""The stand-alone ncu scripts: the Python and the shell version do the same, byte for byte."""

import csv
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.support.fake_ncu import calls, install
from tests.support.fixtures_dir import DATA, REPO, shared_fixtures

RELEASE = REPO / "scripts" / "ncu" / "release"
PY = [sys.executable, str(RELEASE / "ncu-profile-kernels.py")]
SH = ["bash", str(RELEASE / "ncu-profile-kernels.sh")]
BOTH = pytest.mark.parametrize("tool", [PY, SH], ids=["py", "sh"])
SECTIONS = ["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"]
ODD_ARGUMENTS = [
    "./bench",
    "--text=a: b #c",
    'quo"te',
    "it's",
    "back\\slash",
    "",
    "tab\tnew\nline",
    "ü€😀",
    "-n",
    "*",
    "$HOME",
]


def run(
    tool: list[str], folder: Path, *args: str, kernels: str = "foo(int)|bar<4>(T1)"
) -> subprocess.CompletedProcess[str]:
    record = install(folder / "bin")
    record.unlink(missing_ok=True)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAKE_NCU_KERNELS": kernels}
    return subprocess.run([*tool, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def tree(folder: Path) -> dict[str, str]:
    """Every file but the fake's own, with the moment of the run taken out."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and "bin" not in p.parts)
    return {str(p.relative_to(folder)): re.sub(r'^time: ".*"', "time: X", p.read_text()) for p in files}


def write_config(folder: Path, *names: str) -> Path:
    path = folder / "top.yaml"
    entries = "".join(f"- name: '{n}'\n  regex: '^{re.escape(n)}$'\n  description: 'x'\n" for n in names)
    path.write_text(f"# made by hand\nkernels:\n{entries}")
    return path


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), RELEASE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "args",
    [
        ["--kernel-regex", "foo.*"],
        ["--kernel-config", "top.yaml"],
        ["--kernel-config", "top.yaml", "--topk", "1", "--force-overwrite", "--num-kernel-call-skip", "007"],
        ["--kernel-config=top.yaml", "--output-dir=out dir", "--extra-sections", "WarpStateStats", "Occupancy"],
        ["--kernel-regex", "never seen", "--num-kernel-call-profile", "3"],
    ],
)
def test_python_and_shell_give_ncu_the_same_arguments_and_write_the_same_files(tmp_path: Path, args: list[str]) -> None:
    seen = []
    for name, tool in (("py", PY), ("sh", SH)):
        folder = tmp_path / name
        folder.mkdir()
        write_config(folder, "foo(int)", "bar<4>(T1)", "absent(x)")
        done = run(tool, folder, *args, "--", *ODD_ARGUMENTS)
        seen.append((done.returncode, done.stdout, done.stderr, calls(folder / "bin" / "calls.jsonl"), tree(folder)))
    assert seen[0] == seen[1]


@BOTH
def test_one_regex_is_profiled_with_the_default_sections_and_exported(tmp_path: Path, tool: list[str]) -> None:
    done = run(tool, tmp_path, "--kernel-regex", "foo.*", "--output-dir", "out", "--", "./bench", "--size", "2048")
    folder = f"out/kernel_0001_{hashlib.md5(b'foo.*').hexdigest()}"
    sections = [part for s in SECTIONS for part in ("--section", s)]
    imported = ["--import", f"{folder}/ncu.ncu-rep", "--page", "details", "--csv"]
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path / "bin" / "calls.jsonl") == [
        ["--version"],
        ["--target-processes", "all", "--kernel-name-base", "demangled", "--kernel-name", "regex:foo.*",
         "--launch-skip", "200", "--launch-count", "1", *sections, "--export", f"{folder}/ncu", "--force-overwrite",
         "./bench", "--size", "2048"],
        imported,
        *([*imported, "--section", s] for s in SECTIONS),
    ]  # fmt: skip
    assert sorted(p.name for p in (tmp_path / folder).iterdir()) == sorted(
        ["ncu.ncu-rep", "ncu.log", "ncu.details.csv", *(f"ncu.section_{s}.csv" for s in SECTIONS)]
    )


@BOTH
def test_command_yaml_holds_any_argument(tmp_path: Path, tool: list[str]) -> None:
    run(tool, tmp_path, "--kernel-regex", "foo", "--", *ODD_ARGUMENTS)
    record = yaml.safe_load((tmp_path / "ncu-kernels" / "command.yaml").read_text())
    assert record.pop("time")
    assert record == {
        "ncu_version": "2025.3.1.0",
        "sections": SECTIONS,
        "launch_skip": 200,
        "launch_count": 1,
        "command": ODD_ARGUMENTS,
        "kernels": [
            {"rank": 1, "name": "foo", "regex": "foo", "dir": f"kernel_0001_{hashlib.md5(b'foo').hexdigest()}",
             "status": "profiled"}
        ],
    }  # fmt: skip


@BOTH
def test_bytes_that_are_no_text_still_give_valid_yaml(tmp_path: Path, tool: list[str]) -> None:
    record = install(tmp_path / "bin")
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAKE_NCU_KERNELS": "foo"}
    argv = [os.fsencode(a) for a in [*tool, "--kernel-regex", "foo", "--"]] + [b"a\xff\xc3b", b"\xe2\x82"]
    subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=True)
    assert record.exists()
    data = yaml.safe_load((tmp_path / "ncu-kernels" / "command.yaml").read_text())
    assert data["command"] == ["a\xff\xc3b", "\xe2\x82"]


@BOTH
def test_a_kernel_never_seen_is_missing_and_the_exit_code_says_so(tmp_path: Path, tool: list[str]) -> None:
    config = write_config(tmp_path, "foo(int)", "absent(x)")
    done = run(tool, tmp_path, "--kernel-config", str(config), "--", "./bench")
    states = [k["status"] for k in yaml.safe_load((tmp_path / "ncu-kernels" / "command.yaml").read_text())["kernels"]]
    assert (done.returncode, states) == (1, ["profiled", "missing"])
    assert done.stderr == (
        "ncu-profile-kernels: missing: absent(x)\n"
        "ncu-profile-kernels: a missing kernel has at most 200 matching launches, or its regex does not fit\n"
    )


@BOTH
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--kernel-regex", "a"], "no command: put it behind --"),
        (["--kernel-regex", "a", "--"], "no command behind --"),
        (["--", "./bench"], "give one of --kernel-config and --kernel-regex"),
        (["--kernel-regex", "a", "--kernel-config", "b", "--", "x"], "give one of --kernel-config and --kernel-regex"),
        (["--kernel-regex", "a", "--topk", "0", "--", "x"], "--topk: a whole number from 1 on is needed (got '0')"),
        (["--kernel-regex", "a", "--ncu-config", "b", "--", "x"], "unrecognized arguments: --ncu-config"),
        (["--kernel-config", "absent.yaml", "--", "x"], "absent.yaml: could not be read"),
        (["--kernel-config", "bad.yaml", "--", "x"], "bad.yaml:"),
        (["--kernel-config", "empty.yaml", "--", "x"], "empty.yaml: no list `kernels` with an entry in it"),
        (["--kernel-config", "half.yaml", "--", "x"], "half.yaml: every kernel needs a name and a regex"),
    ],
)
def test_bad_usage_and_bad_yaml_end_with_2_before_ncu_is_started(
    tmp_path: Path, tool: list[str], args: list[str], message: str
) -> None:
    (tmp_path / "bad.yaml").write_text("kernels: [\n- name: 'unclosed\n")
    (tmp_path / "empty.yaml").write_text("kernels:\n")
    (tmp_path / "half.yaml").write_text("kernels:\n- name: 'foo'\n")
    done = run(tool, tmp_path, *args)
    assert (done.returncode, (tmp_path / "bin" / "calls.jsonl").exists()) == (2, False)
    assert done.stderr.startswith(f"ncu-profile-kernels: {message}")


@BOTH
def test_earlier_results_are_kept_unless_forced(tmp_path: Path, tool: list[str]) -> None:
    args = ["--kernel-regex", "foo", "--", "./bench"]
    codes = [run(tool, tmp_path, *a).returncode for a in (args, args, ["--force-overwrite", *args])]
    assert codes == [0, 2, 0]


def test_the_default_sections_are_those_of_the_default_preset() -> None:
    preset = yaml.safe_load((REPO / "conf/profiling/ncu/ncu.default.yaml").read_text())["ncu_cli"]
    shell = re.search(r'DEFAULT_SECTIONS="([^"]*)"', (RELEASE / "ncu-profile-kernels.sh").read_text())
    assert shell is not None
    assert script("ncu-profile-kernels").DEFAULT_SECTIONS == preset["sections"] == shell[1].split() == SECTIONS
    assert preset["metrics"] is None


@BOTH
def test_the_scripts_read_what_the_extractor_writes(tmp_path: Path, tool: list[str]) -> None:
    summary = DATA / "ncu_decode_kern_sum.csv"
    subprocess.run(
        [sys.executable, str(RELEASE / "extract-top-kernels.py"), str(summary), "--topk", "5", "-o", "top.yaml"],
        cwd=tmp_path, check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    names = [row["Name"] for row in csv.DictReader(summary.open())]
    done = run(tool, tmp_path, "--kernel-config", "top.yaml", "--", "./bench", kernels="|".join(names))
    record = yaml.safe_load((tmp_path / "ncu-kernels" / "command.yaml").read_text())
    assert done.returncode == 0, done.stderr
    assert [k["name"] for k in record["kernels"]] == names[:5]


def test_the_extractor_reproduces_the_published_list() -> None:
    shared = shared_fixtures()
    if shared is None:
        pytest.skip("the captures are not here")
    summary = shared / "rtx5090" / "nsys_kern_sum.all.csv"
    argv = [sys.executable, str(RELEASE / "extract-top-kernels.py"), str(summary), "--topk", "20"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    published = yaml.safe_load((shared / "rtx5090" / "top-kernels.yaml").read_text())
    assert yaml.safe_load(done.stdout) == published


def test_the_extractor_orders_by_time_and_refuses_what_is_no_summary(tmp_path: Path) -> None:
    extractor = script("extract-top-kernels")
    rows = [
        {"Time (%)": "50.0", "Total Time (ns)": "1,000", "Instances": "2", "Name": "a"},
        {"Time (%)": "50.0", "Total Time (ns)": "1,001", "Instances": "3", "Name": "b's"},
    ]
    assert [k["name"] for k in extractor.top_kernels(rows, "time_pct", 2)] == ["a", "b's"]
    assert [k["name"] for k in extractor.top_kernels(rows, "time_ns", 1)] == ["b's"]
    assert yaml.safe_load(extractor.to_yaml(extractor.top_kernels(rows, "time_ns", 1), source="s", sort_by="t")) == {
        "kernels": [{"name": "b's", "regex": "^b's$", "description": "Kernel #1 - 50.0% of GPU time, 3 calls"}]
    }
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    assert extractor.main([str(wrong)]) == 2
    assert extractor.main([str(tmp_path / "absent.csv")]) == 2


def test_the_scripts_import_neither_hydra_nor_torch_nor_the_package() -> None:
    for name in ("ncu-profile-kernels.py", "extract-top-kernels.py"):
        imported = re.findall(r"^\s*(?:import|from) (\w+)", (RELEASE / name).read_text(), re.MULTILINE)
        assert {m for m in imported if m not in sys.stdlib_module_names} <= {"yaml"}
    assert shutil.which("bash") is not None
    assert not re.search(r"\b(?:yq|jq|python3?) ", (RELEASE / "ncu-profile-kernels.sh").read_text().split("set -u")[1])


def test_a_folder_of_results_is_analysed_with_right_units(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "kernel_0001_abc"
    folder.mkdir(parents=True)
    header = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"\n'
    rows = [
        ("GPU Speed Of Light Throughput", "Duration", "us", "2.00"),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "81.00"),
        ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "10.00"),
        ("Command line profiler metrics", "dram__bytes_read.sum", "Mbyte", "1.50"),
        ("Command line profiler metrics", "dram__bytes_write.sum", "Kbyte", "500.00"),
    ]
    body = "".join(f'"0","f(int, int)","{s}","{m}","{u}","{v}",\n' for s, m, u, v in rows)
    (folder / "ncu.details.csv").write_text(header + body)
    (tmp_path / "results" / "kernel_0002_def").mkdir()
    argv = [sys.executable, str(REPO / "scripts/ncu/analysis/analyze_ncu_dir.py"), str(tmp_path / "results")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "kernel_0002_def: neither a CSV page nor a report of ncu in it" in done.stderr
    out = tmp_path / "results" / "analysis"
    (row,) = csv.DictReader((out / "kernels.csv").open())
    # 2,000,000 bytes in 2 us are 1 TB/s.
    assert (row["duration_ns"], row["dram_bytes"], float(row["dram_bytes_per_s"]), row["bound"]) == (
        "2000.0", "2000000.0", 1e12, "memory"
    )  # fmt: skip
    assert sorted(p.name for p in out.iterdir()) == [
        "histograms.svg", "kernels.csv", "kernels.json", "kernels.md", "roofline.svg"
    ]  # fmt: skip
    assert ">memory throughput, % (n = 1)<" in (out / "histograms.svg").read_text()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert subprocess.run([*argv[:2], str(empty)], capture_output=True, timeout=60).returncode == 2
