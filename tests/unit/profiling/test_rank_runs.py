"""Ranks of our own workload: how they are started, what each does, and what they say of each other."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.ranks.traffic import TrafficRow, bus_gb_s, measure_traffic
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.config.schema import RunSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.clean_ranks import clean_ranks
from llm_perf_opt.profiling.vendor.launch import launch_ranks
from llm_perf_opt.profiling.vendor.nsys import build_nsys_cmd, find_reports, start_in_turn
from llm_perf_opt.report.sections.rank_sections import traffic_section
from llm_perf_opt.workload.ranks import Rank, own_rank
from tests.support.nsys_builder import Export

WORK = ["python", "-m", "runner", "a b"]
TEXT = ("model=llama_tiny", "dataset=synthetic")


def test_ranks_are_processes_of_torchrun() -> None:
    assert launch_ranks(WORK, RunSection(), python="py") == WORK
    assert launch_ranks(WORK, RunSection(ranks=2), python="py") == [
        *("py", "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--no-python"),
        *WORK,
    ]


def test_on_several_nodes_srun_starts_a_torchrun_on_each_and_they_meet_on_the_first() -> None:
    argv = launch_ranks(WORK, RunSection(ranks=8, nodes=2), python="py")
    assert argv[:-1] == ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "sh", "-c"]
    assert argv[-1] == (
        "exec py -m torch.distributed.run --nproc-per-node=8 --nnodes=2 --rdzv-backend=c10d "
        '--rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1):29400" '
        "--rdzv-id=llm-perf --no-python python -m runner 'a b'"
    )
    named = launch_ranks(WORK, RunSection(ranks=8, nodes=2, rendezvous="n1:1234"), python="py")
    assert "--rdzv-endpoint=n1:1234 " in named[-1]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["run.ranks=2", "infer.tp=3"], "infer.tp: not the number of ranks (got 3), allowed: 1"),
        (["infer.tp=2"], "infer.tp: not the number of ranks (got 2), allowed: 1"),
        (["run.nodes=2"], "run.nodes: several nodes need ranks on each (got 2)"),
        (["run.ranks=2", "run.repeats=auto"], "run.repeats: ranks would disagree on when to stop"),
        (["run.ranks=2", "workload.command=[sleep]"], "run.ranks: your own program starts its ranks itself"),
        (["run.ranks=2", "infer.tp=2", "infer.cache=static"], "infer.tp: splits plain steps alone (got 2)"),
    ],
)
def test_what_does_not_fit_ranks_is_refused(overrides: Sequence[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        type_config(compose_config([*TEXT, *overrides]), user_dir=tmp_path)
    assert any(text.startswith(problem) for text in error.value.problems)


def test_ranks_share_the_samples_or_do_all_of_them_together() -> None:
    def part(rank: int, world: int, tp: int = 1) -> tuple[int, ...]:
        return Rank(rank=rank, local_rank=rank, world_size=world, tp=tp).part((10, 11, 12))

    assert [part(rank, 2) for rank in range(2)] == [(10, 12), (11,)]
    assert part(1, 2, tp=2) == (10, 11, 12)
    # None is idle, or the others would be measured on a machine with less to do.
    assert part(4, 8) == (11,)


def test_a_rank_is_who_torchrun_says_and_writes_beside_the_others(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_RUN_ID": "x", "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}
    rank = own_rank(env, tp=16)
    assert rank == Rank(rank=9, local_rank=1, world_size=16, tp=16)
    assert rank.folder(tmp_path) == tmp_path / "rank9" and rank.device("cuda:0") == "cuda:1"
    assert replace(rank, rank=0).folder(tmp_path) == tmp_path
    # A Slurm step has RANK-like variables of its own; only torchrun's count.
    assert own_rank({"RANK": "1", "SLURM_PROCID": "1"}, tp=1) is None


def test_each_rank_has_a_capture_of_its_own(tmp_path: Path) -> None:
    argv = build_nsys_cmd(tmp_path / "run", WORK, per_rank=True)
    assert f"--output={tmp_path}/run.rank%q{{RANK}}" in argv
    assert start_in_turn(["nsys"])[-1] == "nsys"
    for rank in (10, 9, 0):
        (tmp_path / f"run.rank{rank}.nsys-rep").touch()
    assert [path.name for path in find_reports(tmp_path / "run")] == [
        "run.rank0.nsys-rep", "run.rank9.nsys-rep", "run.rank10.nsys-rep",
    ]  # fmt: skip


def timeline(tmp_path: Path, *, reduce_ns: int) -> Timeline:
    builder = Export()
    builder.range("decode", 0, 10_000_000)
    builder.range("communication:all_reduce:4096", 1_000_000, 1_000_000 + reduce_ns)
    builder.range("communication:all_reduce:256", 4_000_000, 4_000_000 + reduce_ns)
    builder.range("communication:all_gather:2048", 8_000_000, 8_500_000)
    return read_nsys_sqlite(builder.write(tmp_path / f"{reduce_ns}.sqlite"))


def test_traffic_is_what_the_ranges_say(tmp_path: Path) -> None:
    rows = measure_traffic([timeline(tmp_path, reduce_ns=1_000_000), timeline(tmp_path, reduce_ns=2_000_000)], [0, 1])
    assert [(r.rank, r.operation, r.count, r.size_bytes, r.time_ns) for r in rows] == [
        (0, "all_gather", 1, 2048, 500_000), (0, "all_reduce", 2, 4352, 2_000_000),
        (1, "all_gather", 1, 2048, 500_000), (1, "all_reduce", 2, 4352, 4_000_000),
    ]  # fmt: skip
    assert [r.share_of_phases_pct for r in rows] == [25.0, 25.0, 45.0, 45.0]
    section = traffic_section(rows, None, link_gb_s=900.0, source="nsys/analysis.json")
    assert section.tables[0].columns == (
        "rank", "collective", "n", "message total", "time ms", "bus GB/s", "of link %",
    )  # fmt: skip
    assert section.paragraphs[0].startswith("Ranks spend up to 45.0 % of prefill and decode in calls")
    assert "450 GB/s, one direction" in section.paragraphs[2]


@pytest.mark.parametrize(("operation", "ranks", "factor"), [("all_reduce", 4, 1.5), ("all_gather", 4, 0.75)])
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, ranks: int, factor: float) -> None:
    row = TrafficRow(
        rank=0, operation=operation, count=1, size_bytes=8_000, time_ns=0, ranks=ranks, share_of_phases_pct=None
    )
    assert bus_gb_s(row, 1_000.0) == pytest.approx(8 * factor)
    assert bus_gb_s(row, 0.0) is None
    assert bus_gb_s(replace(row, operation="barrier"), 1_000.0) is None


def write_metrics(folder: Path, tpot_ms: float, rate: float, tp: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stats = {"mean": 1.0, "std": None, "p90": None, "p99": None, "n": 3}
    metrics = {
        "ttft_ms": {**stats, "p50": 5.0},
        "tpot_ms": {**stats, "p50": tpot_ms},
        "decode_tokens_per_s": {**stats, "p50": rate},
    }
    document = {
        "model": {"name": "m", "device_name": "GPU"},
        "deployment": {"tp": tp, "ranks": 3},
        "clean": {"metrics": metrics, "peak_memory_bytes": 10**9},
    }
    (folder / "metrics.json").write_text(json.dumps(document))


def test_clean_times_are_those_of_every_rank_and_of_the_slowest(tmp_path: Path) -> None:
    for rank, (tpot_ms, rate) in enumerate([(10.0, 100.0), (20.0, 50.0), (12.0, 80.0)]):
        write_metrics(tmp_path if rank == 0 else tmp_path / f"rank{rank}", tpot_ms, rate, tp=1)
    metrics, (section,) = clean_ranks(tmp_path, "s/metrics.json")
    assert {name: metric.value for name, metric in metrics.items()} == {
        "slowest_rank_ttft_ms": 5.0, "slowest_rank_tpot_ms": 20.0, "all_ranks_decode_tokens_per_s": 230.0,
    }  # fmt: skip
    assert metrics["slowest_rank_tpot_ms"].how == "clean pass, median of rank 1, the slowest of 3"
    assert [row[:4] for row in section.tables[0].rows] == [
        (0, "GPU", 5.0, 10.0), (1, "GPU", 5.0, 20.0), (2, "GPU", 5.0, 12.0),
    ]  # fmt: skip


def test_the_rates_of_ranks_that_are_one_model_are_not_added_up(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "rank1"):
        write_metrics(folder, 10.0, 100.0, tp=2)
    metrics, _ = clean_ranks(tmp_path, "s/metrics.json")
    assert "all_ranks_decode_tokens_per_s" not in metrics and np.isclose(
        float(metrics["slowest_rank_tpot_ms"].value or 0), 10.0
    )
    assert clean_ranks(tmp_path / "rank1", "s/metrics.json") == ({}, ())
