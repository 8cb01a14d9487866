"""Sets of intervals: their lengths, and how much of them lies inside windows."""

import numpy as np
import pytest

from llm_perf_opt.capture import intervals
from llm_perf_opt.capture.intervals import FEW_WINDOWS, Intervals, covered_ns, union
from llm_perf_opt.capture.readers.nsys_database import narrow, one_for_all

# Times of a capture are nanoseconds since the machine started or since 1970: the sum of a few thousand runs over.
SINCE_1970 = 1_700_000_000_000_000_000


def _spans(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    pick = np.random.default_rng(seed)
    start = SINCE_1970 + pick.integers(0, 10 * count, count)
    return start, start + pick.integers(0, 30, count)


@pytest.mark.parametrize("count", [0, 1, 2, 5_000])
@pytest.mark.parametrize("in_order", [True, False])
def test_the_length_of_a_union_needs_no_union(count: int, in_order: bool) -> None:
    start, end = _spans(count, seed=count)
    if in_order:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    whole = union(start, end)
    assert covered_ns(start, end) == whole.total == sum((whole.end - whole.start).tolist())


@pytest.mark.parametrize("windows", [1, FEW_WINDOWS, 500])
@pytest.mark.parametrize("is_asked_before", [True, False])
def test_what_lies_inside_windows_is_the_same_with_and_without_kept_sums(windows: int, is_asked_before: bool) -> None:
    parts, reference = (union(*_spans(5_000, seed=1)) for _ in range(2))
    pick = np.random.default_rng(windows)
    since = SINCE_1970 + pick.integers(-1_000, 51_000, windows)
    until = since + pick.integers(0, 9_000, windows)
    if is_asked_before:
        parts.covered_before(since)
    expected = reference.covered_before(until) - reference.covered_before(since)
    assert parts.inside(since, until).tolist() == expected.tolist()
    assert ("_before" in vars(parts)) == is_asked_before


def test_nothing_lies_inside_of_an_empty_set() -> None:
    none = np.zeros(0, np.int64)
    assert Intervals(start=none, end=none).inside(np.array([1]), np.array([5])).tolist() == [0]


def test_columns_take_no_more_memory_than_their_numbers_need() -> None:
    assert narrow(np.array([-(2**31), 2**31 - 1])).dtype == np.int32
    assert narrow(np.array([2**31])).tolist() == [2**31]
    same = one_for_all(np.full(1_000, 7, np.int32))
    assert same.strides == (0,) and same.tolist() == [7] * 1_000
    assert one_for_all(np.array([1, 2])).tolist() == [1, 2] and not len(one_for_all(np.zeros(0, np.int64)))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 500])
def test_the_part_of_a_long_set_is_added_up_block_by_block(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "BLOCK_ROWS", 7)
    whole = union(*_spans(count, seed=count))
    since, until = _spans(100, seed=1)
    inside = np.minimum(whole.end, until[:, None]) - np.maximum(whole.start, since[:, None])
    assert whole.inside(since, until).tolist() == np.maximum(inside, 0).sum(axis=1).tolist()
