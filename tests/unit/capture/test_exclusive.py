"""Exclusive kernel time: each busy instant of a GPU belongs to one kernel."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.exclusive import exclusive_ns, gpu_of
from llm_perf_opt.capture.intervals import union
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.tables import communication_kernels
from llm_perf_opt.capture.timeline import Timeline, distinct
from tests.support.fixtures_dir import DATA, shared_fixtures


def _owned(*spans: tuple[int, int], talks: tuple[int, ...] = ()) -> list[int]:
    flags = np.array([at in talks for at in range(len(spans))], np.bool_)
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    return exclusive_ns(start, end, flags).tolist()


def test_the_kernel_that_started_first_owns_an_instant_until_it_ends() -> None:
    assert _owned((0, 10), (5, 20), (7, 9), (18, 30)) == [10, 10, 0, 10]


def test_the_order_of_rows_does_not_decide() -> None:
    assert _owned((5, 20), (18, 30), (7, 9), (0, 10)) == [10, 10, 0, 10]
    assert _owned((0, 10), (0, 4)) == [6, 4]
    assert _owned((0, 4), (0, 10)) == [4, 6]


def test_communication_owns_only_what_no_compute_runs_beside() -> None:
    """From 0 to 100; compute from 20 to 50, and from 90 on."""
    assert _owned((0, 100), (20, 50), (90, 120), talks=(0,)) == [60, 30, 30]
    assert _owned((0, 100), (10, 60), talks=(0, 1)) == [100, 0]


def test_no_kernels_own_nothing() -> None:
    assert _owned() == []


def _captures() -> list[Path]:
    found = sorted((DATA / "h200").iterdir())
    folder = shared_fixtures()
    if folder is not None:
        names = ("s06_llama_tp2_dim1024_4090.json.gz", "s09_shared_gpu_a100.json.gz", "s05_tiny_ddp_rank1_4090.json.gz")
        found += [folder / "wild3" / name for name in names]
        names = ("deepseek_train_overlap.json.gz", "hta_rank0.json.gz", "nsysai_h100_2gpu_autograd_nvtx.sqlite.xz")
        found += [folder / "wild" / name for name in names]
    return [path for path in found if path.is_file()]


def _read(path: Path, tmp_path: Path) -> Timeline:
    if path.suffix != ".xz":
        return read_torch_trace(path).timeline
    local = tmp_path / path.stem
    local.write_bytes(lzma.decompress(path.read_bytes()))
    return read_nsys_sqlite(local)


@pytest.mark.parametrize("path", _captures(), ids=lambda path: path.name)
def test_exclusive_times_add_up_to_the_busy_time_of_each_gpu(path: Path, tmp_path: Path) -> None:
    timeline = _read(path, tmp_path)
    kernels = timeline.kernels
    talks, gpu = communication_kernels(timeline), gpu_of(kernels)
    for one in distinct(gpu).tolist():
        mine = gpu == one
        start, end = kernels.start_ns[mine], kernels.end_ns[mine]
        owned = exclusive_ns(start, end, talks[mine])
        assert int(owned.sum()) == union(start, end).total
        assert bool((owned >= 0).all()) and bool((owned <= end - start).all())
