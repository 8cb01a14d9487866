"""Kernel summary and kernels per NVTX range of an nsys export, against `nsys stats`, pandas and sqlite3.

    python benchmarks/nsys_sqlite.py [--kernels 2000000] [--rounds 5] [--pandas PYTHON] [--peers-once] [--only WORD]
                                     [--base CHECKOUT]

Scales the H200 capture of the tests to many kernels, then runs every contender in its own process, one after the
other in each round. Time is that of the whole process (median of the rounds), on the clock and on the processor, on all
cores and on one; memory is its peak resident size.
Totals are compared: a contender that disagrees is marked. `--pandas` names an interpreter that has pandas. With `--only
nsys` nothing but `nsys stats` runs alongside ours; with `--peers-once` a peer runs twice in all (once on one core).
`--base` names a checkout of an older version to run alongside this one. Writes benchmarks/results/nsys_sqlite.json.
Aims, in every measure of time: summary and ranges at least 10 times faster than `nsys stats`, ranges in a third of its
memory, twice the capture in at most 2.3 times the processor time, and not more than 10 % above that of the older
version.
"""

import argparse
import json
import lzma
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from contest import BASE, as_before, chosen, contest, keeps_pace, rows_of, share_of_base, spent_by, times_faster

REPO = Path(__file__).resolve().parent.parent
FIXTURE = REPO / "tests" / "data" / "h200" / "llama.sqlite.xz"
RESULTS = Path(__file__).parent / "results" / "nsys_sqlite.json"
SCALED = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
AIM_SUMMARY = AIM_RANGES = 10.0
AIM_MEMORY = 1 / 3
AIM_GROWTH = 2.3

SUMMARY_OURS = """
import sys; from pathlib import Path
from llm_perf_opt.capture.readers.nsys_summary import summarize_kernels
kernels, _ = summarize_kernels(Path(sys.argv[1]))
print(sum(k.instances for k in kernels), sum(k.total_ns for k in kernels))
"""
RANGES_OURS = """
import sys; from pathlib import Path
from llm_perf_opt.system.arrays import load_numpy; load_numpy()
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
analysis = analyze_timelines([read_nsys_sqlite(Path(sys.argv[1]))])
rows = [r for r in analysis.ranges if r.name in ("prefill", "decode_step")]
print(sum(r.kernel_count for r in rows), sum(r.kernel_ns for r in rows))
"""
SUMMARY_PANDAS = """
import sqlite3, sys; import pandas as pd
kernels = pd.read_sql("SELECT k.start, k.end, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s "
                      "ON s.id = k.demangledName", sqlite3.connect(sys.argv[1]))
kernels["time"] = kernels.end - kernels.start
table = kernels.groupby("name").time.agg(["sum", "count", "mean", "median", "min", "max", "std"])
print(table["count"].sum(), table["sum"].sum())
"""
SUMMARY_SQLITE = """
import sqlite3, statistics, sys
from collections import defaultdict
times = defaultdict(list)
for name, time in sqlite3.connect(sys.argv[1]).execute(
    "SELECT demangledName, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL"
):
    times[name].append(time)
def deviation(t):
    mean = sum(t) / len(t)
    return (sum((x - mean) ** 2 for x in t) / max(len(t) - 1, 1)) ** 0.5
table = {n: (len(t), sum(t), statistics.median(t), min(t), max(t), deviation(t)) for n, t in times.items()}
print(sum(t[0] for t in table.values()), sum(t[1] for t in table.values()))
"""
RANGES_PANDAS = """
import sqlite3, sys; import numpy as np, pandas as pd
db = sqlite3.connect(sys.argv[1])
kernels = pd.read_sql("SELECT start, end, correlationId, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL", db)
calls = pd.read_sql("SELECT start AS at, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME", db)
ranges = pd.read_sql("SELECT start, end, text, globalTid FROM NVTX_EVENTS WHERE eventType = 59", db)
both = kernels.merge(calls, on="correlationId").sort_values("at")
ranges = ranges[ranges.text.isin(["prefill", "decode_step"])].sort_values("start")
at = np.searchsorted(ranges.start.values, both["at"].values, "right") - 1
inside = (at >= 0) & (both["at"].values < ranges.end.values[np.maximum(at, 0)])
both = both[inside].assign(range=ranges.text.values[at[inside]])
both["time"] = both.end - both.start
table = both.groupby(["range", "demangledName"]).time.agg(["sum", "count", "mean", "median", "min", "max", "std"])
print(table["count"].sum(), table["sum"].sum())
"""


def scale(path: Path, kernels: int) -> None:
    """The fixture repeated in time, with correlation ids that stay unique."""
    path.write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        have = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        copies = -(-kernels // have) - 1
        low = db.execute("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
        tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
        shift = max(db.execute(f"SELECT max(end) FROM {t}").fetchone()[0] for t in tables) - low + 1_000_000
        ids = db.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0] + 1
        for table in SCALED:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = {
                "start": f'"start" + n * {shift}',
                "end": f'"end" + n * {shift}',
                "correlationId": f"correlationId + n * {ids}",
            }
            values = ", ".join(moved.get(c, f'"{c}"') for c in columns)
            names = ", ".join(f'"{c}"' for c in columns)
            db.execute(
                f"WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < {copies}) "
                f"INSERT INTO {table} ({names}) SELECT {values} FROM i CROSS JOIN (SELECT * FROM {table})"
            )
    db.close()


def contenders(path: Path, pandas: str | None, base: Path | None) -> dict[str, dict[str, list[str]]]:
    nsys = shutil.which("nsys")
    found: dict[str, dict[str, list[str]]] = {"summary": {}, "ranges": {}}
    found["summary"]["llm-perf (nsys_summary)"] = [sys.executable, "-c", SUMMARY_OURS, str(path)]
    found["ranges"]["llm-perf (whole analysis)"] = [sys.executable, "-c", RANGES_OURS, str(path)]
    if base is not None:
        found["summary"][BASE] = [*as_before(base, "nsys_sqlite.py", "SUMMARY_OURS"), str(path)]
        found["ranges"][BASE] = [*as_before(base, "nsys_sqlite.py", "RANGES_OURS"), str(path)]
    found["summary"]["sqlite3 into Python lists"] = [sys.executable, "-c", SUMMARY_SQLITE, str(path)]
    if nsys is not None:
        reports = subprocess.run([nsys, "stats", "--help-reports"], capture_output=True, text=True, check=False).stdout
        old = "gpukernsum" in reports
        names = ("gpukernsum", "nvtxkernsum") if old else ("cuda_gpu_kern_sum", "nvtx_kern_sum")
        for kind, name in zip(found, names, strict=True):
            found[kind][f"nsys stats {name}"] = [nsys, "stats", "--report", name, "--format", "csv", str(path)]
    if pandas is not None:
        found["summary"]["pandas.read_sql"] = [pandas, "-c", SUMMARY_PANDAS, str(path)]
        found["ranges"]["pandas + searchsorted"] = [pandas, "-c", RANGES_PANDAS, str(path)]
    return found


def answer(name: str, out: str) -> tuple[int, int]:
    """Launches and nanoseconds a contender found."""
    if not name.startswith("nsys"):
        launches, total = out.split()
        return int(launches), int(float(total))
    import csv
    import io

    lines = out[out.index("NVTX Range" if "NVTX Range" in out else "Time (%)") :]
    rows = [
        r for r in csv.DictReader(io.StringIO(lines)) if r.get("NVTX Range", "x") in ("x", "prefill", "decode_step")
    ]
    count = "Kern Inst" if "Kern Inst" in rows[0] else "Instances"
    return sum(int(r[count]) for r in rows), sum(int(r["Total Time (ns)"]) for r in rows)


def run(path: Path, args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = {}
    for kind, listed in contenders(path, args.pandas, args.base).items():
        entries = chosen(listed, args.only)
        found = contest(entries, args.rounds, one_core=True, peers_once=args.peers_once)
        ours = next(name for name in entries if name.startswith("llm-perf"))
        expected = answer(ours, found[ours].out)
        table[kind] = [
            {**row, "agrees": not outcome.failed and answer(row["how"], outcome.out) == expected}
            for row, outcome in zip(rows_of(found), found.values(), strict=True)
        ]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pandas", help="an interpreter that has pandas")
    parser.add_argument("--peers-once", action="store_true", help="run a peer once on all cores and once on one")
    parser.add_argument("--base", type=Path, metavar="CHECKOUT", help="an older version to run alongside this one")
    parser.add_argument("--only", action="append", metavar="WORD", help="only contenders with this word in their names")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaled.sqlite"
        scale(path, args.kernels)
        load = [round(os.getloadavg()[0], 1)]
        table = run(path, args)
        double = Path(folder) / "double.sqlite"
        scale(double, 2 * args.kernels)
        argv = [sys.executable, "-c", RANGES_OURS]
        pairs = [(spent_by([*argv, str(path)]).cpu, spent_by([*argv, str(double)]).cpu) for _ in range(args.rounds)]
        size_mb = path.stat().st_size / 2**20
    growth = statistics.median(b / a for a, b in pairs)
    result: dict[str, Any] = {
        "kernels": args.kernels,
        "size_mb": round(size_mb),
        "rounds": args.rounds,
        "peers_once": args.peers_once,
        "load_average": [*load, round(os.getloadavg()[0], 1)],
        **table,
    }
    result["growth_when_doubled"] = round(growth, 2)
    met = growth <= AIM_GROWTH
    for kind, aim in (("summary", AIM_SUMMARY), ("ranges", AIM_RANGES)):
        ours = next(r for r in table[kind] if r["how"].startswith("llm-perf"))
        theirs = next((r for r in table[kind] if r["how"].startswith("nsys stats")), None)
        if (share := share_of_base(table[kind])) is not None:
            result[f"{kind}_share_of_base"] = share
            met = met and keeps_pace(share)
        if theirs is not None:
            result[f"{kind}_times_faster"] = times_faster(ours, theirs)
            result[f"{kind}_memory_share"] = round(ours["peak_mb"] / theirs["peak_mb"], 2)
            met = met and min(result[f"{kind}_times_faster"].values()) >= aim
    if "ranges_memory_share" in result:
        met = met and result["ranges_memory_share"] <= AIM_MEMORY
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
