"""Which kernels ncu looks at, which launches, and the plan."""

import csv
import lzma
import re
from pathlib import Path

import pytest

from llm_perf_opt.capture.kernels.ncu_records import NsysKernel
from llm_perf_opt.capture.operators import all_kernels, range_kernels
from llm_perf_opt.capture.readers.ncu_csv import parse_ncu_csv
from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.ncu.select import (
    LaunchSpan,
    earlier_headroom,
    everything_but,
    expected_launches,
    fewest_numbers,
    kernel_pattern,
    launch_numbers,
    launch_sequence,
    launch_spans,
    plan_capture,
    range_filter,
    select_kernels,
    summary_kernels,
    timeline_kernels,
)
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import Export, h200_export

SUMMARY = DATA / "ncu_decode_kern_sum.csv"


def kernel(name: str, total_ns: float, instances: int = 100) -> NsysKernel:
    return NsysKernel(name=name, instances=instances, total_ns=total_ns)


def decode() -> list[NsysKernel]:
    return summary_kernels(SUMMARY)


def choose(kernels: list[NsysKernel], **changes: object) -> list[str]:
    keys: dict[str, object] = {"source": "s", "max_kernels": 10, "coverage": 1.0, "exclude": ()}
    return [k.name for k in select_kernels(kernels, **{**keys, **changes}).kernels]  # type: ignore[arg-type]


def test_kernels_come_by_time_until_the_coverage_or_the_limit_is_reached() -> None:
    kernels = [kernel("a", 50), kernel("b", 30), kernel("c", 15), kernel("d", 5), kernel("idle", 0)]
    assert choose(kernels) == ["a", "b", "c", "d"]
    assert choose(kernels, coverage=0.8) == ["a", "b"]
    assert choose(kernels, max_kernels=1) == ["a"]


def test_a_kernel_near_its_roof_gives_way_to_one_with_more_to_gain() -> None:
    kernels = [kernel("ns::near()", 60), kernel("ns::far()", 40)]
    assert choose(kernels, headroom={"near()": 0.1, "far()": 0.9}) == ["ns::far()", "ns::near()"]


def test_nccl_and_initialisation_are_left_out_but_stay_in_the_denominator() -> None:
    fill = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int)"
    kernels = [kernel("ncclDevKernel_AllReduce_Sum_bf16", 60), kernel(fill, 20), kernel("gemm", 20)]
    found = select_kernels(kernels, source="s", max_kernels=9, coverage=1.0, exclude=("nccl.*",))
    assert ([k.name for k in found.kernels], found.share) == (["gemm"], 0.2)
    assert found.excluded == (kernels[0].name, fill)
    inside = select_kernels(
        kernels, source="s", max_kernels=9, coverage=1.0, exclude=("nccl.*",), leave_out_initialisation=False
    )
    assert [k.name for k in inside.kernels] == [fill, "gemm"]


def test_the_heaviest_decode_kernels_cover_nine_tenths_of_the_time() -> None:
    found = select_kernels(decode(), source="s", max_kernels=30, coverage=0.9, exclude=())
    assert len(found.kernels) == 17
    assert found.share == pytest.approx(0.902, abs=0.001)
    assert found.total_ns == 15_608_322


def test_the_pattern_fits_what_nsys_and_ncu_call_the_chosen_kernels_and_nothing_else() -> None:
    kernels = decode()
    chosen = [k.name for k in kernels[:12]]
    pattern, base = kernel_pattern(chosen, "demangled")
    fits = re.compile(pattern)
    assert base == "demangled"
    assert [k.name for k in kernels if fits.search(k.name)] == chosen
    text = lzma.decompress((DATA / "ncu_raw.csv.xz").read_bytes()).decode()
    profiled = {launch.kernel for launch in parse_ncu_csv(text, source="raw")}
    # Eight of the twelve were profiled in that capture.
    assert len([name for name in profiled if fits.search(name)]) == 8


def test_the_name_base_of_the_configuration_is_kept_where_it_can_be() -> None:
    names = ["void a::f<(int)4>(T1)", "void a::f<(int)8>(T1)", "g"]
    assert kernel_pattern(names, "function") == ("^(f|g)$", "function")
    assert kernel_pattern(names, "mangled")[1] == "demangled"
    assert kernel_pattern([f"void f{i}<{'x, ' * 400}y>(T1)" for i in range(60)], "demangled")[1] == "function"


def test_everything_but_the_excluded_is_one_pattern() -> None:
    pattern = everything_but(("nccl.*", "ncclDevKernel.*"))
    assert pattern is not None
    assert re.search(pattern, "gemm") and not re.search(pattern, "void ncclDevKernel_AllReduce()")
    assert everything_but(()) is None


def test_launches_are_spread_and_never_the_first_ones() -> None:
    assert launch_numbers(1) == (5, 40, 320, 2560, 20480, 163840)
    assert launch_numbers(2)[:4] == (5, 6, 40, 41)
    assert launch_numbers(1, steps=1)[:4] == (2, 4, 8, 16)
    # Kernels of 1, 16 and 64 launches per step, with as many or none in prefill: each is met, counted from either end.
    for steps in (1, 3, 7, 15):
        for per_step in (1, 16, 64):
            for before in (0, per_step):
                inside = range(before + 1, before + steps * per_step + 1)
                if steps > 1 or per_step > 1 or before:
                    assert any(number in inside for number in launch_numbers(1, steps)), (steps, per_step, before)


def test_known_counts_need_the_fewest_numbers() -> None:
    # A decoder of 16 layers, 63 steps: once a step, once a layer, four times a layer; some in prefill as well.
    spans = [LaunchSpan(before=b, inside=i) for b, i in ((1, 63), (0, 63), (16, 1008), (0, 1008), (64, 4032))]
    numbers = fewest_numbers(spans, 1)
    assert numbers == (51, 3226)
    for span in spans:
        assert any(span.before < n <= span.before + span.inside for n in numbers), span
        assert any(n <= span.inside for n in numbers), span
    assert fewest_numbers(spans[:4], 2) == (51, 52)
    # One step: a kernel launched in prefill is met in decode by the count of the whole program.
    assert fewest_numbers([LaunchSpan(before=16, inside=1)], 1) == (17,)
    assert fewest_numbers([LaunchSpan(before=0, inside=1)], 1) == (1,)


def test_launch_counts_come_from_the_timeline_of_the_same_work(tmp_path: Path) -> None:
    record = StageRecord(
        name="nsys", status="ok", files=(StageFile(role="nsys_sqlite", path=h200_export(tmp_path)),), metrics={}
    )
    kernels, _, inside = timeline_kernels(record, "decode*")
    assert inside
    spans = launch_spans(record, "decode*", kernels, 1.0)
    assert spans is not None and len(spans) == len(kernels)
    assert all(span.inside > 0 for span in spans) and any(span.before > 0 for span in spans)
    assert launch_spans(record, "decode*", [kernel("never seen", 1)], 1.0) is None
    assert launch_spans(None, "decode*", kernels, 1.0) is None


def test_the_plan_multiplies_kernels_launches_and_passes() -> None:
    kernels = [kernel("a", 1, instances=8), kernel("b", 1, instances=256), kernel("c", 1, instances=2)]
    launches = expected_launches(kernels, launch_numbers(1))
    assert launches == 1 + 2 + 1
    plan = plan_capture(kernels=3, launches=launches, set_name="roofline")
    assert (plan.passes, plan.seconds) == (18, pytest.approx(4 * 18 * 0.09))
    assert plan.sentence() == "plan: 3 kernels, up to 4 launches × 18 passes, about 6 s beyond the program's own time"
    assert plan_capture(kernels=None, launches=2, set_name=None, passes=9.0).passes == 9


def test_the_kernels_of_decode_are_those_launched_inside_it(tmp_path: Path) -> None:
    from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(h200_export(tmp_path))
    inside = range_kernels(timeline, lambda name: name in ("decode", "decode_step"))
    # Two warm-up passes of 4 steps carry no range `warmup` in this capture, so they count: 24 steps in all.
    assert sum(k.instances for k in all_kernels(timeline)) == 19_611
    assert sum(k.instances for k in inside) == 16_660
    assert len(inside) == 31


def test_the_filter_of_ranges_follows_the_include() -> None:
    wanted = range_filter(["decode*", "sam"])
    assert wanted is not None
    assert [n for n in ("decode", "decode_step", "sam", "sample", "prefill") if wanted(n)] == [
        "decode",
        "decode_step",
        "sam",
    ]
    nested = range_filter("decode/decode_step")
    assert nested is not None and nested("decode_step") and not nested("decode")
    assert range_filter("regex:decode.*/") is None
    assert range_filter(None) is None


def test_without_a_usable_nsys_result_there_is_nothing_to_choose_from(tmp_path: Path) -> None:
    failed = StageRecord(name="nsys", status="failed", reason="x")
    empty = StageRecord(name="nsys", status="ok")
    gone = StageRecord(name="nsys", status="ok", files=(StageFile(role="kernel_summary", path=tmp_path / "gone.csv"),))
    assert [timeline_kernels(r, "decode") for r in (None, failed, empty, gone)] == [([], None, None)] * 4


def test_of_several_captures_the_one_with_the_wanted_range_is_chosen_from(tmp_path: Path) -> None:
    files = []
    for name in ("prefill", "decode"):
        export = Export()
        export.range(name, 0, 100)
        export.call(5, 8, 1)
        export.kernel(f"{name}_kernel", 20, 50, 1)
        files.append(StageFile(role="nsys_sqlite", path=export.write(tmp_path / f"run-{name}.sqlite")))
    record = StageRecord(name="nsys", status="ok", files=tuple(files))
    kernels, source, inside = timeline_kernels(record, "decode")
    assert ([k.name for k in kernels], source, inside) == (["decode_kernel"], "nsys/run-decode.sqlite", True)
    assert launch_sequence(record, "decode") == ["decode_kernel"]


def test_the_summary_stands_in_for_a_missing_export() -> None:
    record = StageRecord(name="nsys", status="ok", files=(StageFile(role="kernel_summary", path=SUMMARY),))
    kernels, source, inside = timeline_kernels(record, "decode*")
    with SUMMARY.open() as file:
        first = next(csv.DictReader(file))
    assert (kernels[0].name, kernels[0].instances) == (first["Name"], int(first["Instances"]))
    assert (len(kernels), source, inside) == (31, "nsys/ncu_decode_kern_sum.csv", None)


def test_a_file_that_is_no_summary_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    for text, problem in (
        ("a,b\n1,2\n", "not a kernel summary of nsys"),
        ('Total Time (ns),Instances,Name\n5,1,"cut', "the file is damaged"),
    ):
        other.write_text(text)
        with pytest.raises(ParseError, match=rf"^{re.escape(str(other))}.*{problem}"):
            summary_kernels(other)
    broken = tmp_path / "kernels.json"
    broken.write_text('{"kernels": [{"no": 1}]}')
    with pytest.raises(ParseError, match="not a result of this stage"):
        earlier_headroom(broken)
    assert earlier_headroom(tmp_path / "absent.json") == ({}, None)
