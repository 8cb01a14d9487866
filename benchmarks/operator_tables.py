"""Operator table of a profiled decode loop: from the exported trace, against torch's key_averages().

    python benchmarks/operator_tables.py [--passes 250]

Profiles a small transformer on the CPU with shapes and memory, then builds the same table both ways in the same process
and checks that they are equal. Writes benchmarks/results/operator_tables.json. The aim is at least 20 times faster.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

AIM = 20.0
RESULTS = Path(__file__).parent / "results" / "operator_tables.json"


def record(passes: int) -> Any:
    """A finished profile of many forwards; about 1,200 events each."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        for _ in range(passes):
            model(torch.ones(2, 8, 64))
    return profiler


def ours(path: Path) -> dict[tuple[str, str | None], tuple[int, int, int]]:
    """Name and shapes to calls, self and total CPU time."""
    from llm_perf_opt.capture.operators import ProfiledOperators
    from llm_perf_opt.capture.readers.torch_trace import read_torch_trace

    trace = read_torch_trace(path, detailed=True)
    assert trace.detail is not None
    rows = ProfiledOperators(trace.timeline, trace.operators, trace.detail).rows(by_shape=True)
    return {(r.name, r.input_shapes): (r.calls, r.self_cpu_ns, r.total_cpu_ns) for r in rows}


def theirs(profiler: Any) -> dict[tuple[str, str | None], tuple[int, int, int]]:
    """The same from torch."""
    return {
        (e.key, str(e.input_shapes).replace(" ", "")): (
            e.count,
            round(e.self_cpu_time_total * 1000),
            round(e.cpu_time_total * 1000),
        )
        for e in profiler.key_averages(group_by_input_shape=True)
        # Memory freed outside any operator, which torch lists as if it were one.
        if e.key != "[memory]"
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=250)
    args = parser.parse_args()
    profiler = record(args.passes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        marks = [time.perf_counter()]
        profiler.export_chrome_trace(str(path))
        marks.append(time.perf_counter())
        table = ours(path)
        marks.append(time.perf_counter())
        torchs = theirs(profiler)
        marks.append(time.perf_counter())
        size = path.stat().st_size
    export_s, ours_s, theirs_s = (b - a for a, b in itertools.pairwise(marks))
    result = {
        "trace_bytes": size,
        "rows": len(table),
        "rows_equal": sum(table[key] == torchs[key] for key in table if key in torchs),
        "export_s": export_s,
        "ours_s": ours_s,
        "key_averages_s": theirs_s,
        "times_faster": theirs_s / ours_s,
        "times_faster_with_export": theirs_s / (ours_s + export_s),
        "aim": AIM,
        "equal": table == torchs,
        "met": theirs_s / ours_s >= AIM and table == torchs,
    }
    print(json.dumps(result, indent=2))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
