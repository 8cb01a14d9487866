"""Ranks of one job: who is which, what communication costs, who waits for whom."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.capture.ranks.collectives import (
    Arrivals,
    LongestCollective,
    bus_factor,
    recorded_args,
)
from llm_perf_opt.capture.ranks.identify import identify
from llm_perf_opt.capture.ranks.rank_analysis import RanksAnalysis, analyze_ranks
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.timeline import Origin
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.model.hardware.hardware import find_by_device_name, load_catalogue
from tests.support.fixtures_dir import REPO, shared_fixtures
from tests.support.nsys_builder import PID, Export
from tests.support.trace_builder import event, write_trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _rank(
    path: Path, rank: int | None, kernels: Sequence[tuple[str, int, int]], *, more: str = "", ahead: bool = False
) -> Path:
    """A trace of kernels `(name, start µs, length µs)`, each launched right before it starts, or all `ahead`."""
    events = []
    for number, (name, start, length) in enumerate(kernels, start=1):
        events.append(
            event(
                "cuda_runtime", "cudaLaunchKernel", f"{number if ahead else start - 1}.000", "0.500", correlation=number
            )
        )
        kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        events.append(
            event(kind, name, f"{start}.000", f"{length}.000", pid=0, tid=7, correlation=number, device=rank or 0)
        )
    job = "" if rank is None else f', "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 4}}'
    return write_trace(path, events, after=f'"traceName": "t"{job}{more}')


def _analyze(files: Sequence[Path]) -> RanksAnalysis:
    found = analyze_ranks([read_torch_trace(path).timeline for path in files])
    assert found is not None
    return found


def test_communication_is_overlapped_exposed_or_beside_copies(tmp_path: Path) -> None:
    """Communication runs from 100 to 200: 30 alongside a kernel, 20 alongside a copy, 50 alone."""
    kernels = [("gemm", 50, 80), (ALL_REDUCE, 100, 100), ("Memcpy HtoD", 150, 20), ("gemm", 210, 40)]
    (row,) = _analyze([_rank(tmp_path / "t.json", 0, kernels)]).rows
    time = row.time
    assert (time.span_ns, time.busy_ns, time.idle_ns) == (200_000, 190_000, 10_000)
    assert (time.computation_ns, time.communication_ns, time.copy_ns) == (120_000, 100_000, 20_000)
    assert (time.overlapped_ns, time.exposed_ns, time.exposed_pct) == (30_000, 50_000, 25.0)
    assert (time.hta_overlap_pct, time.hta_idle_pct) == (30.0, 5.0)
    assert (time.hta_compute_pct, time.hta_non_compute_pct) == (60.0, 35.0)


def test_a_rank_that_comes_late_to_every_collective_is_the_straggler(tmp_path: Path) -> None:
    early = [(ALL_REDUCE, 100, 100), (ALL_REDUCE, 300, 100), ("gemm", 400, 10)]
    late = [(ALL_REDUCE, 170, 30), (ALL_REDUCE, 360, 40), ("gemm", 400, 10)]
    files = [_rank(tmp_path / f"{rank}.json", rank, kernels) for rank, kernels in enumerate((early, late))]
    found = _analyze(files)
    assert (found.files_are, found.how, found.world_size) == ("ranks", "distributedInfo of each trace", 4)
    assert [row.rank for row in found.rows] == [0, 1]
    assert [row.arrivals for row in found.rows] == [
        Arrivals(matched=2, waited_ns=130_000, came_last=0, held_up_ns=0),
        Arrivals(matched=2, waited_ns=0, came_last=2, held_up_ns=130_000),
    ]
    assert found.straggler == 1
    (row,) = found.collectives
    assert (row.collective, row.ranks, row.count, row.matched) == ("all-reduce", 2, 4, 2)
    assert (row.skew_median_ns, row.skew_max_ns) == (65_000.0, 70_000)
    assert found.notes[-1] == "2 of 4 ranks were given: waiting and skew are among these alone"


def test_waiting_for_a_rank_that_comes_late_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    early = [(ALL_REDUCE, 100 + 200 * i, 100) for i in range(3)]
    late = [(ALL_REDUCE, 170 + 200 * i, 30) for i in range(3)]
    ranks = [
        _rank(tmp_path / f"{rank}.json", rank, [*own, ("gemm", 600, 10)], ahead=True)
        for rank, own in enumerate((early, late))
    ]
    assert main(["analyze", "--json", *map(str, ranks)]) == 0
    (found,) = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "late_ranks"]
    assert ("rank 1" in found["title"], found["share"]) == (True, pytest.approx(0.22, abs=0.005))
    assert [(": waited 0.210 ms" in text, "arrived last in 3" in text) for text in found["evidence"][:2]] == [
        (False, True),
        (True, False),
    ]
    assert (found["confidence"], round(found["max_gain"], 2)) == ("medium", 1.28)


def _late(files: Sequence[Path], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["analyze", "--json", *map(str, files)]) == 0
    return [f["title"] for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "late_ranks"]


def test_one_rank_alone_does_not_show_that_another_is_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small messages that take long, and one collective many times as long as its like: neither says why."""
    said = {"Collective name": "allreduce", "In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float"}
    events = []
    for i in range(4):
        at = 10_000 * i
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at}", "1", correlation=i + 1))
        length = "5000" if i else "20"
        events.append(event("kernel", ALL_REDUCE, f"{at + 2}", length, pid=0, tid=7, correlation=i + 1, **said))
    assert _late([write_trace(tmp_path / "small.json", events)], capsys) == []
    lengths = [900_000 if i == 5 else 3_000 for i in range(11)]
    kernels = [(ALL_REDUCE, 10 + sum(lengths[:i]) + 7_000 * i, length) for i, length in enumerate(lengths)]
    assert _late([_rank(tmp_path / "uneven.json", 0, kernels)], capsys) == []


@pytest.mark.parametrize(("place", "is_first"), [(0, True), (5, False)])
def test_a_collective_many_times_as_long_as_its_like_is_an_outlier(tmp_path: Path, place: int, is_first: bool) -> None:
    lengths = [900_000 if i == place else 3_000 for i in range(11)]
    kernels = [(ALL_REDUCE, 10 + sum(lengths[:i]) + 7_000 * i, length) for i, length in enumerate(lengths)]
    (row,) = _analyze([_rank(tmp_path / "t.json", 0, kernels)]).collectives
    assert (row.outliers, row.outliers_ns, row.only_first_is_outlier) == (1, 897_000_000, is_first)


def test_collectives_of_unknown_sizes_may_differ(tmp_path: Path) -> None:
    """Gradient buckets alongside the all-reduce of a loss: a thousand times as long, and none is an outlier."""
    kernels = [(ALL_REDUCE, 10_000 * i, 9_000 if i % 8 == 0 else 9) for i in range(1, 41)]
    (row,) = _analyze([_rank(tmp_path / "t.json", 0, kernels)]).collectives
    assert (row.max_ns, row.outliers, row.outliers_ns) == (9_000_000, 0, 0)


def _gathers(path: Path, rank: int, longest_us: int) -> Path:
    """Three all-gathers of 64 MB for two ranks in the layers; the head has a longer one whose end overlaps a kernel."""
    said = {
        "Collective name": "all_gather",
        "In msg nelems": 16_777_216,
        "Out msg nelems": 33_554_432,
        "dtype": "BFloat16",
        "Group size": 2,
    }
    events, at = [], 1_000
    for number, length in enumerate((2_000, 2_200, longest_us, 2_100), start=1):
        layer = "OutputProjection" if length == longest_us else "Attention"
        events += [
            event("user_annotation", layer, f"{100 * number}", "90"),
            event("user_annotation", "nccl:_all_gather_base", f"{100 * number + 10}", "70"),
            event("cpu_op", "c10d::_allgather_base_", f"{100 * number + 5}", "80"),
            event("cpu_op", "record_param_comms", f"{100 * number + 15}", "60"),
            event("cuda_runtime", "cudaLaunchKernel", f"{100 * number + 20}", "5", correlation=number),
            event("kernel", ALL_GATHER, f"{at}", f"{length}", pid=0, tid=20, correlation=number, device=rank, **said),
        ]
        at += length + 100
    events.append(event("cuda_runtime", "cudaLaunchKernel", "900", "5", correlation=9))
    # The longest runs from 5,400 µs on.
    events.append(event("kernel", "gemm", "6000", "1500", pid=0, tid=7, correlation=9, device=rank))
    job = f'"traceName": "t", "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}}'
    return write_trace(path, events, after=job)


ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_the_longest_collective_is_named_with_its_size_and_range(tmp_path: Path) -> None:
    files = [_gathers(tmp_path / f"{rank}.json", rank, 44_000 + 100 * rank) for rank in (0, 1)]
    traces = [read_torch_trace(path, detailed=True) for path in files]
    timelines = [trace.timeline for trace in traces]
    args = [recorded_args(t.timeline, t.detail) if t.detail is not None else None for t in traces]
    found = analyze_ranks(timelines, recorded=args)
    assert found is not None
    expected = LongestCollective(
        collective="all-gather",
        kernel="ncclDevKernel_AllGather_RING_LL",
        rank=1,
        source="1.json",
        start_ns=5_400_000,
        length_ns=44_100_000,
        exposed_ns=42_600_000,
        median_ns=2_150_000.0,
        message_bytes=67_108_864,
        dtype="BFloat16",
        group_size=2,
        range_name="OutputProjection",
        operator="c10d::_allgather_base_",
        floor_ns=None,
        how="unknown: the link between these GPUs is not known",
    )
    assert found.longest == expected
    hardware = find_by_device_name(load_catalogue(REPO / "conf" / "hardware"), "NVIDIA GeForce RTX 4090")
    with_link = analyze_ranks(timelines, recorded=args, hardware=hardware)
    assert with_link is not None
    assert with_link.longest == replace(
        expected, floor_ns=1_048_576, how="its bytes at 32 GB/s (PCIe 4 x16 of rtx4090, one direction)"
    )


def test_the_longest_collective_of_a_published_rank_has_its_range() -> None:
    folder = shared_fixtures()
    path = None if folder is None else folder / "wild3" / "s06_llama_tp2_dim1024_4090.json.gz"
    if path is None or not path.is_file():
        pytest.skip("the capture is not at hand")
    found = _analyze([path])
    assert found.longest is not None
    assert round(found.longest.length_ns / 1e6, 1) == 59.7
    assert found.longest.range_name is not None


def test_collectives_are_matched_by_their_ends_though_clocks_differ_and_one_is_missing(tmp_path: Path) -> None:
    """The second rank's clock is 5 ms ahead; the third recorded one collective more, before the others began."""
    first = [(ALL_REDUCE, 1000 * n, 100) for n in (1, 2, 3)]
    second = [(ALL_REDUCE, 5000 + 1000 * n + 60, 40) for n in (1, 2, 3)]
    third = [(ALL_REDUCE, 1000 * n + 10, 90) for n in (0, 1, 2, 3)]
    third[0] = (ALL_REDUCE, 10, 50)
    files = [_rank(tmp_path / f"{i}.json", i, kernels) for i, kernels in enumerate((first, second, third))]
    found = _analyze(files)
    assert [(row.arrivals.matched, row.arrivals.waited_ns) for row in found.rows if row.arrivals] == [
        (3, 180_000),
        (3, 0),
        (3, 150_000),
    ]


def test_collectives_that_end_apart_are_not_compared(tmp_path: Path) -> None:
    files = [
        _rank(tmp_path / "0.json", 0, [(ALL_REDUCE, 100, 100), (ALL_REDUCE, 900, 10)]),
        _rank(tmp_path / "1.json", 1, [(ALL_REDUCE, 400, 100), (ALL_REDUCE, 4000, 10)]),
    ]
    found = _analyze(files)
    assert [row.arrivals for row in found.rows] == [None, None]
    assert (found.collectives[0].matched, found.collectives[0].skew_max_ns, found.straggler) == (0, None, None)


@pytest.mark.parametrize(
    ("names", "ranks", "kind", "how"),
    [
        (("a.json", "b.json"), (0, 1), "ranks", "distributedInfo of each trace"),
        (("17-TP-0.trace.json", "17-TP-1.trace.json"), (None, None), "ranks", "file names"),
        (("TP-0-DP-0.json", "TP-0-DP-1.json"), (None, None), "ranks", "file names"),
        (("TP-0.1.json", "TP-0.2.json"), (None, None), "repeats", "nothing in them says that they are ranks"),
        (("a.json", "b.json"), (3, 3), "repeats", "distributedInfo: all say rank 3"),
        (("x_rank0.json", "x_rank1.json"), (None, None), "ranks", "file names"),
        (("run.0.json", "run.1.json"), (None, None), "repeats", "nothing in them says that they are ranks"),
    ],
)
def test_captures_say_what_they_are(
    tmp_path: Path, names: Sequence[str], ranks: Sequence[int | None], kind: str, how: str
) -> None:
    files = [_rank(tmp_path / n, r, [("gemm", 10, 5)]) for n, r in zip(names, ranks, strict=True)]
    found = identify([read_torch_trace(path).timeline for path in files])
    assert (found.kind, found.how) == (kind, how)


def test_what_is_said_decides_and_numbers_in_names_become_ranks(tmp_path: Path) -> None:
    files = [_rank(tmp_path / f"run2.{n}.json", None, [("gemm", 10, 5)]) for n in (4, 7)]
    timelines = [read_torch_trace(path).timeline for path in files]
    assert identify(timelines, "ranks").ranks == (4, 7)
    assert identify(timelines, "repeats").kind == "repeats"


def test_a_directory_of_captures_is_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "job", tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        _rank(folder / f"rank{rank}.json", rank, [("gemm", 10, 5 + rank), (ALL_REDUCE, 20, 10)])
    assert main(["analyze", "-v", str(folder), "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "rank 1, GPU 1" in text
    assert "the 2 captures were taken as ranks of one job (distributedInfo of each trace)" in text
    (stage,) = read_manifest(out).stages
    assert {"Ranks", "Communication"} <= {section.title for section in stage.sections}
    page = (out / "report.html").read_text()
    assert "Waiting between ranks" in page
    capsys.readouterr()
    assert main(["analyze", str(folder), "--as", "repeats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["files_are"] == "repeats"


def test_what_is_no_trace_of_a_rank_is_left_out_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        _rank(tmp_path / f"1-TP-{rank}.trace.json.gz", rank, [("gemm", 10, 5)])
    (tmp_path / "server_args.json").write_text('{"model_path": "x"}')
    (tmp_path / "merged-1.trace.json.gz").write_bytes((tmp_path / "1-TP-0.trace.json.gz").read_bytes())
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["sources"]) == 2
    left_out = "left out of {}, no trace of one process: merged-1.trace.json.gz, server_args.json\n"
    assert printed.err == left_out.format(tmp_path)


def test_repetitions_are_told_apart_by_their_files_and_do_not_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(_rank(tmp_path / f"{n}.json", 3, [("gemm", 10, 5), (ALL_REDUCE, 20, 10)])) for n in ("old", "new")]
    assert main(["analyze", "-v", *files]) == 0
    text = capsys.readouterr().out
    assert "Repetitions\n" in text
    assert "old.json, GPU 3" in text
    assert "taken as repetitions of one run (distributedInfo: all say rank 3); --as ranks says otherwise" in text
    assert main(["analyze", "--json", *files]) == 0
    found = json.loads(capsys.readouterr().out)["ranks"]
    assert [(c["count"], c["matched"]) for c in found["collectives"]] == [(2, 0)]
    assert [row["arrivals"] for row in found["rows"]] == [None, None]


def test_captures_of_different_hosts_are_ranks(tmp_path: Path) -> None:
    one = read_torch_trace(_rank(tmp_path / "a.json", None, [("gemm", 10, 5)])).timeline
    hosts = [replace(one, origin=Origin(host=name)) for name in ("node1", "node2")]
    found = identify(hosts)
    assert (found.kind, found.ranks, found.how) == ("ranks", (0, 1), "each was recorded on another host")


def test_one_process_on_one_gpu_has_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--json", str(_rank(tmp_path / "t.json", 0, [("gemm", 10, 5)]))]) == 0
    assert "ranks" not in json.loads(capsys.readouterr().out)


def test_processes_and_gpus_of_one_nsys_capture_have_rows_of_their_own(tmp_path: Path) -> None:
    """One process on GPU 0 and 1 at overlapping times, another on GPU 2."""
    export = Export()
    export.kernel("k", 0, 100, 1)
    export.kernel("k", 50, 150, 2, device=1)
    export.kernel("k", 400, 500, 3, pid=2 * PID, device=2)
    found = analyze_ranks([read_nsys_sqlite(export.write(tmp_path / "two.sqlite"))])
    assert found is not None
    assert [(r.process, r.devices, r.time.busy_ns, r.time.kernel_ns) for r in found.rows] == [
        ("process (1)", (0, 1), 150, 200),
        ("process (2)", (2,), 100, 100),
    ]
    assert [(d.device, d.time.busy_ns) for d in found.devices] == [(0, 100), (1, 100)]


def test_bus_bandwidth_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 8) for name in ("all-reduce", "all-gather", "all-to-all", "broadcast", "barrier")] == [
        1.75,
        0.875,
        0.875,
        1.0,
        None,
    ]
    assert bus_factor("all-reduce", None) is None


def _wild(*names: str) -> list[Path]:
    folder = shared_fixtures()
    files = [] if folder is None else [folder / "wild" / name for name in names]
    if not files or not all(path.is_file() for path in files):
        pytest.skip(f"{names} are not at hand")
    return files


def test_two_published_ranks_have_the_shares_hta_gives_them() -> None:
    found = _analyze(_wild("hta_rank0.json.gz", "hta_rank1.json.gz"))
    shares = [
        (t.hta_idle_pct, t.hta_compute_pct, t.hta_non_compute_pct, t.hta_overlap_pct)
        for t in (row.time for row in found.rows)
    ]
    assert shares[0] == pytest.approx((55.2, 17.2, 27.6, 14.95), abs=0.05)
    assert shares[1] == pytest.approx((52.9, 22.1, 25.0, 19.93), abs=0.05)
    assert (found.files_are, found.world_size) == ("ranks", 128)


def test_expert_parallel_communication_runs_beside_computation() -> None:
    (row,) = _analyze(_wild("deepseek_train_overlap.json.gz")).rows
    assert (row.time.kernel_count, row.time.span_ns) == (963, 129_012_000)
    assert row.time.hta_overlap_pct == pytest.approx(96.3, abs=0.1)
    assert row.time.exposed_pct == pytest.approx(3.2, abs=0.1)


def test_a_published_capture_of_two_processes_has_a_row_for_each(tmp_path: Path) -> None:
    import lzma

    (packed,) = _wild("nsysai_h100_2gpu_autograd_nvtx.sqlite.xz")
    path = tmp_path / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    found = analyze_ranks([read_nsys_sqlite(path)])
    assert found is not None
    assert [(r.process, r.devices, r.time.kernel_count) for r in found.rows] == [
        ("python3 (111)", (0,), 1721),
        ("python3 (112)", (1,), 1721),
    ]


@pytest.mark.parametrize("communicates", [True, False])
def test_communicating_processes_of_one_capture_are_ranks(tmp_path: Path, communicates: bool) -> None:
    """Two processes with a GPU each in one capture: the second comes 60 µs late to each of five collectives."""
    export = Export()
    for rank in range(2):
        pid, late = PID * (rank + 1), 60_000 * rank
        for i in range(5):
            at, number = 400_000 * i, 10 * i + 1
            for offset, name, begin, end in (
                (0, "gemm", 20_000, 100_000 + late),
                (1, ALL_REDUCE if communicates or rank else "gemm", 100_000 + late, 200_000),
            ):
                export.call(at + 1_000 * offset, at + 1_000 * offset + 500, number + offset, tid=pid | 1)
                export.kernel(name, at + begin, at + end, number + offset, pid=pid, device=rank)
    found = analyze_ranks([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])
    assert found is not None
    if not communicates:
        assert [(row.rank, row.arrivals) for row in found.rows] == [(None, None), (None, None)]
        return
    assert [(row.rank, row.devices, row.time.kernel_count) for row in found.rows] == [(0, (0,), 10), (1, (1,), 10)]
    assert [row.arrivals for row in found.rows] == [
        Arrivals(matched=5, waited_ns=300_000, came_last=0, held_up_ns=0),
        Arrivals(matched=5, waited_ns=0, came_last=5, held_up_ns=300_000),
    ]
    assert (found.straggler, found.how.split(" communicate")[0]) == (1, "the processes of one capture")
