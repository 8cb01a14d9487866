"""A stand-in for ncu that records its arguments and speaks ncu's words; `install` puts it on a PATH.

It profiles a kernel when `--kernel-name` or `--kernel-id` fits one of FAKE_NCU_KERNELS and, with FAKE_NCU_NVTX
set, when that expression is among its `--nvtx-include`. FAKE_NCU_SAYS and FAKE_NCU_EXIT replace the profiling.
"""

import json
import lzma
import os
import re
import stat
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
SETS = ["basic", "detailed", "full", "roofline"]
SECTIONS = ["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats", "LaunchStats", "WarpStateStats"]


def install(folder: Path) -> Path:
    """Write the executable `ncu` into folder; returns the file its calls are recorded in."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "ncu"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {folder / "calls.jsonl"} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder / "calls.jsonl"


def calls(record: Path) -> list[list[str]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def main(record: str, argv: list[str]) -> int:
    with open(record, "a") as file:
        file.write(json.dumps(argv) + "\n")
    if "--version" in argv:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    elif "--list-sets" in argv:
        listing("Identifier Sections", [f"{name:<10} LaunchStats, Occupancy" for name in SETS])
    elif "--list-sections" in argv:
        listing("Identifier  Display Name", [f"{name:<30} {name}" for name in SECTIONS])
    elif "--query-metrics" in argv:
        listing(
            "Metric Name",
            ["dram__bytes  Counter byte", "gpu__time_duration  Counter ns", "sm__throughput  Throughput %"],
        )
    elif "--import" in argv:
        return print_page(argv)
    else:
        return profile(argv)
    return 0


def listing(header: str, rows: list[str]) -> None:
    print("-" * 40 + "\n" + header + "\n" + "-" * 40 + "\n" + "\n".join(rows))


def print_page(argv: list[str]) -> int:
    if not Path(value(argv, "--import")).exists():
        print(f"==ERROR== Could not open report file '{value(argv, '--import')}'.")
        return 1
    if "--section" in argv:
        print('"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"')
        print(f'"0","foo","{value(argv, "--section")}","Duration","us","1.0",')
        return 0
    page = "raw" if value(argv, "--page") == "raw" else "details"
    sys.stdout.write(lzma.decompress((DATA / f"ncu_{page}.csv.xz").read_bytes()).decode())
    return 0


def profile(argv: list[str]) -> int:
    if "FAKE_NCU_SAYS" in os.environ:
        print(os.environ["FAKE_NCU_SAYS"])
        return int(os.environ.get("FAKE_NCU_EXIT", "0"))
    names = os.environ.get("FAKE_NCU_KERNELS", "").split("|")
    pattern = ".*"
    if "--kernel-name" in argv:
        pattern = value(argv, "--kernel-name").removeprefix("regex:")
    elif "--kernel-id" in argv:
        pattern = value(argv, "--kernel-id").removeprefix("::regex:").rpartition(":")[0]
    includes = [argv[i + 1] for i, a in enumerate(argv) if a == "--nvtx-include"]
    in_range = "FAKE_NCU_NVTX" not in os.environ or not includes or os.environ["FAKE_NCU_NVTX"] in includes
    seen = [name for name in names if name and in_range and re.search(pattern, name)]
    print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
    for index, name in enumerate(seen):
        print(f'==PROF== Profiling "{name}" - {index}: 0%....50%....100% - 18 passes')
    if not seen:
        print("==WARNING== No kernels were profiled.")
        return 0
    report = Path(value(argv, "--export") + ".ncu-rep")
    report.write_bytes(b"NVR\0 not a real report")
    print(f"==PROF== Report: {report}")
    return 0


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
