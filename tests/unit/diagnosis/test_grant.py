"""Two claims on one time: the more specific wins, and no nanosecond is promised twice."""

from dataclasses import replace

import pytest

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.diagnosis.cause import Cause, load_causes
from llm_perf_opt.diagnosis.diagnose import MIN_LEFT, grant, verdict_of
from llm_perf_opt.diagnosis.diagnosis_document import Coverage, Program
from llm_perf_opt.diagnosis.ledger import Cell, Claim, Finding, balanced
from llm_perf_opt.diagnosis.scope import Scope


def _kernel(name: str, kernel_class: str, own_ns: int) -> KernelTime:
    return KernelTime(name=name, short_name=name, kernel_class=kernel_class, count=1, time_ns=own_ns, own_ns=own_ns)


def _scope(cells: dict[str, int], kernels: tuple[KernelTime, ...] = ()) -> Scope:
    wall = sum(cells.values())
    return Scope(
        id="steady",
        kind="steady",
        place="the steady state",
        each="the steady state",
        wall_ns=wall,
        clean=True,
        ledger=balanced(wall, [Cell(id=name, time_ns=ns) for name, ns in cells.items()]),
        source="capture.sqlite",
        kernels=kernels,
    )


def _cause(name: str, specificity: int) -> Cause:
    return replace(next(one for one in load_causes() if one.id == "host_work"), id=name, specificity=specificity)


def _granted(scope: Scope, *claims: tuple[Cause, Claim]) -> dict[str, int]:
    return {one.cause.id: one.granted_ns for one in grant(claims, scope)}


def test_the_more_specific_claim_takes_a_cell_first() -> None:
    scope = _scope({"idle.launch": 100, "idle.host": 50})
    vague = (_cause("vague", 1), Claim(cells={"idle.launch": 100, "idle.host": 50}))
    precise = (_cause("precise", 3), Claim(cells={"idle.launch": 80}))
    assert _granted(scope, vague, precise) == {"precise": 80, "vague": 70}
    assert _granted(scope, precise, vague) == {"precise": 80, "vague": 70}


def test_a_claim_that_is_left_with_little_is_another_s() -> None:
    scope = _scope({"idle.launch": 100})
    left = int(100 * MIN_LEFT)
    vague = (_cause("vague", 1), Claim(cells={"idle.launch": 100}))
    assert _granted(scope, vague, (_cause("precise", 2), Claim(cells={"idle.launch": 100 - left}))) == {
        "precise": 100 - left,
        "vague": left,
    }
    assert _granted(scope, vague, (_cause("precise", 2), Claim(cells={"idle.launch": 101 - left}))) == {
        "precise": 101 - left
    }


def test_of_two_as_specific_claims_the_larger_wins_whatever_their_order() -> None:
    scope = _scope({"idle.launch": 100})
    small, large = ((_cause(name, 2), Claim(cells={"idle.launch": ns})) for name, ns in (("a", 60), ("b", 100)))
    assert _granted(scope, small, large) == _granted(scope, large, small) == {"b": 100}


def test_kernels_and_the_cell_they_are_in_are_the_same_time() -> None:
    gemm, tail = _kernel("gemm", "GEMM", 70), _kernel("tail", "GEMM", 30)
    scope = _scope({"gpu.compute.GEMM": 100}, (gemm, tail))
    by_kernel = (_cause("by_kernel", 3), Claim(kernels={"gemm": 70}))
    by_cell = (_cause("by_cell", 1), Claim(cells={"gpu.compute.GEMM": 100}))
    assert _granted(scope, by_cell, by_kernel) == {"by_kernel": 70, "by_cell": 30}
    again = (_cause("again", 2), Claim(kernels={"gemm": 70, "tail": 30}))
    assert _granted(scope, by_kernel, again) == {"by_kernel": 70, "again": 30}


def test_a_claim_that_is_refused_gives_back_what_it_had_taken() -> None:
    scope = _scope({"gpu.compute.GEMM": 100, "idle.launch": 100}, (_kernel("gemm", "GEMM", 100),))
    first = (_cause("first", 3), Claim(cells={"idle.launch": 100}))
    refused = (_cause("refused", 2), Claim(kernels={"gemm": 20}, cells={"idle.launch": 90}))
    last = (_cause("last", 1), Claim(kernels={"gemm": 100}))
    assert _granted(scope, first, refused, last) == {"first": 100, "last": 100}


def test_the_bound_of_a_claim_shrinks_with_what_it_got() -> None:
    scope = _scope({"idle.launch": 100})
    claims = (
        (_cause("precise", 3), Claim(cells={"idle.launch": 60})),
        (_cause("vague", 1), Claim(cells={"idle.launch": 100}, floor_ns=50, floor="overlap")),
    )
    vague = grant(claims, scope)[1]
    assert (vague.stake_ns, vague.floor_ns, vague.weight) == (40, 20, pytest.approx(20))


def test_a_claim_about_memory_takes_no_time() -> None:
    scope = _scope({"idle.launch": 100})
    timeless = (_cause("timeless", 3), Claim(is_timeless=True))
    assert _granted(scope, timeless, (_cause("other", 1), Claim(cells={"idle.launch": 100}))) == {
        "timeless": 0,
        "other": 100,
    }


@pytest.mark.parametrize(("share", "kind"), [(0.05, "one_time"), (0.15, "finding")])
def test_a_capture_of_mostly_start_up_is_not_summed_up_by_a_small_finding(share: float, kind: str) -> None:
    recurring = Finding(
        rule="exposed_memcpy",
        title="Copies",
        evidence=(),
        remedy="copy less",
        max_gain=1.1,
        confidence="high",
        source="capture.sqlite",
        scope="steady",
        share=share,
    )
    once = replace(recurring, rule="compilation", title="Start-up", share=0.7, max_gain=None, is_one_time=True)
    program = Program(framework="other", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=())
    coverage = Coverage(recorded=(), missing=(), unrecorded_share=0.0)
    scope = _scope({"idle.startup": 70, "gpu.compute.GEMM": 30})
    found = verdict_of([recurring, once], [scope], program, coverage)
    assert (found.kind, found.rule) == (kind, "compilation" if kind == "one_time" else "exposed_memcpy")
