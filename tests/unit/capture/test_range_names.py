"""Numbered ranges are one range, every table obeys --top, and an answer does not outgrow its capture."""

import json
import lzma
import re
from pathlib import Path

import pytest

from llm_perf_opt.capture.ranges import merged_names
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import CopyRow, CounterRow
from llm_perf_opt.cli import main
from llm_perf_opt.diagnosis.analyze import RANGES_KEPT, analyze_timelines
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event, write_trace


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], ["ProfilerStep#N"] * 2),
        (["Step 190 to 200", "Step 200 to 210"], ["Step N to N"] * 2),
        (["aten::gt, op_id = 315032", "aten::gt, seq = 4, sizes = [[1, 2], []]", "aten::gt"], ["aten::gt"] * 3),
        (["aten::mm, seq = 9, op_id = 12"], ["aten::mm"]),
        (["x [[8, 16], []]", "x [3]"], ["x [N]"] * 2),
        (["layer.0", "layer.1", "layer_2"], ["layer.N", "layer.N", "layer_2"]),
        (["req 1a2b3c4d", "req 99ffee00"], ["req N"] * 2),
        (["at 0x7f00", "at 0x7f10"], ["at N"] * 2),
        (["f(sq32sk32785)", "f(sq32sk32817)"], ["f(sqNskN)"] * 2),
        ([f"w{i}" for i in range(9)], ["wN"] * 9),
        # Numbers that are part of a few names, a name that occurs once, and our own modules stay.
        (["conv1", "conv2", "fp16", "bf16"], ["conv1", "conv2", "fp16", "bf16"]),
        (["iter 5", "decode"], ["iter 5", "decode"]),
        (["module:layers.0", "module:layers.1"], ["module:layers.0", "module:layers.1"]),
    ],
)
def test_ranges_that_differ_by_numbers_ids_or_sizes_are_one(names: list[str], merged: list[str]) -> None:
    assert merged_names(names) == merged


def numbered_export(path: Path, count: int, name: str = "step {}") -> Path:
    """One kernel of 10 ns in each of many ranges of 100 ns."""
    export = Export()
    for i in range(count):
        export.range(name.format(i), 1000 * i, 1000 * i + 100)
        export.call(1000 * i + 1, 1000 * i + 2, i + 1)
        export.kernel("k", 1000 * i + 5, 1000 * i + 15, i + 1)
    return export.write(path)


def test_numbered_ranges_of_a_capture_become_one_row(tmp_path: Path) -> None:
    analysis = analyze_timelines([read_nsys_sqlite(numbered_export(tmp_path / "a.sqlite", 300))])
    assert [(r.name, r.instances, r.wall_ns, r.kernel_count, r.gpu_busy_ns) for r in analysis.ranges] == [
        ("step N", 300, 30_000, 300, 3_000)
    ]


def letters(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def test_more_names_than_a_reader_can_use_are_left_out_and_said(tmp_path: Path) -> None:
    export = Export()
    for i in range(RANGES_KEPT + 20):
        export.range(f"range {letters(i)}", 1000 * i, 1000 * i + 100)
    export.kernel("k", 5, 15, 1)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    assert len(analysis.ranges) == RANGES_KEPT
    assert analysis.notes[-1] == "20 ranges of other names, 0.002 ms in all, are left out: the shortest of them"


def test_top_limits_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = Export()
    for i in range(6):
        export.range(f"range {letters(i)}", 1000 * i, 1000 * i + 100)
        export.call(1000 * i + 1, 1000 * i + 2, i + 1)
        export.kernel(f"kernel_{letters(i)}", 1000 * i + 5, 1000 * i + 15, i + 1)
        export.copy(1000 * i + 20, 1000 * i + 30, 100 + i, kind=i)
    assert main(["analyze", str(export.write(tmp_path / "a.sqlite")), "--top", "2"]) == 0
    printed = capsys.readouterr().out
    rows = [
        len(re.findall(p, printed, re.MULTILINE))
        for p in (r"^range [a-z]{4} ", r"kernel_[a-z]{4}$", "^Copy [A-Za-z]+-to|^Copy of kind")
    ]
    # Ranges have two tables: their times, and their critical paths.
    assert rows == [2 + 2, 2, 2]
    assert "… and 4 more ranges (--top)" in printed
    assert "… and 4 more kernels (--top)" in printed


def test_copies_say_how_fast_they_were(tmp_path: Path) -> None:
    export = Export()
    export.copy(0, 100, 1, size_bytes=2_000, kind=1)
    export.copy(200, 300, 2, size_bytes=4_000, kind=1)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    assert analysis.copies == (
        CopyRow(
            kind="Copy Host-to-Device",
            instances=2,
            total_ns=200,
            size_bytes=6_000,
            avg_ns=100.0,
            min_ns=100,
            max_ns=100,
            bytes_per_s=30e9,
        ),
    )


PREFIX = "smsp__sass_thread_inst_executed_op_"


def test_counters_of_a_trace_are_summed_by_kernel_and_their_times_are_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = {f"{PREFIX}fadd_pred_on.sum": 1, f"{PREFIX}ffma_pred_on.sum": 10, "dram__bytes.sum": 64}
    events = [event("cuda_profiler_range", "gemm", f"{i}.000", "121431.000", pid=0, **args) for i in range(2)]
    path = write_trace(tmp_path / "a.json", [*events, event("cpu_op", "aten::mm", "0.000", "1.000")])
    trace = read_torch_trace(path)
    assert len(trace.timeline.kernels) == 0
    assert trace.counters == (
        CounterRow(
            name="gemm",
            short_name="gemm",
            kernel_class="GEMM",
            instances=2,
            counters={f"{PREFIX}fadd_pred_on.sum": 2.0, f"{PREFIX}ffma_pred_on.sum": 20.0, "dram__bytes.sum": 128.0},
            flop=42.0,
        ),
    )
    assert main(["analyze", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["instances"] for row in found["counters"]] == [2]
    assert not any("no GPU kernel was recorded" in note for note in found["notes"])
    assert f"{path}: 2 kernels recorded with hardware counters" in found["notes"][0]


WILD = shared_fixtures()


@pytest.mark.skipif(WILD is None or not (WILD / "wild").is_dir(), reason="the published captures are not here")
def test_the_published_counters_and_numbered_ranges_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert WILD is not None
    trace = read_torch_trace(WILD / "wild" / "hta_cupti_counters.json.gz")
    assert sum(row.instances for row in trace.counters) == 77
    path = tmp_path / "a.sqlite"
    path.write_bytes(lzma.decompress((WILD / "wild" / "nsysai_h100_2gpu_autograd_nvtx.sqlite.xz").read_bytes()))
    assert main(["analyze", str(path), "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert len(text) < 2_000_000
    assert len(found["ranges"]) < 100
    to_device = next(row for row in found["copies"] if row["kind"] == "Copy Host-to-Device (Pinned)")
    assert (round(to_device["total_ns"] / 1e9, 2), round(to_device["bytes_per_s"] / 1e9, 1)) == (1.84, 27.7)
