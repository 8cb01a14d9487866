"""The CPU does not launch kernels fast enough: gaps no longer than a launch takes, between many kernels."""

from collections.abc import Sequence

from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, replays_graphs, runs_on
from llm_perf_opt.diagnosis.gaps.gap_report import WaitRow
from llm_perf_opt.diagnosis.gaps.gap_verdict import allocates
from llm_perf_opt.diagnosis.ledger import LAUNCH, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

MIN_IDLE_SHARE, MIN_LAUNCH_SHARE, MIN_KERNELS = 0.5, 0.5, 20
# Synchronizations after which the queue is refilled for this part of the launch gaps are the reason of them; or so
# many, and one for this many launches: more than the one that reads a step's result.
MIN_REFILL_SHARE, MIN_WAITS, MIN_WAITS_EACH = 0.5, 10, 1 / 20
# A range with this part of the launch gaps is the place.
MOSTLY = 0.5
SHOWN = 3


def judge(scope: Scope, program: Program) -> Claim | None:
    launch, idle = scope.ledger.ns(LAUNCH), scope.ledger.idle_ns
    is_bound = idle >= MIN_IDLE_SHARE * scope.wall_ns and launch >= MIN_LAUNCH_SHARE * idle
    if scope.evidence is None:
        return _of_phase(scope, launch, idle) if is_bound else None
    return _of_capture(scope, scope.evidence, launch, is_bound=is_bound, is_engine="engine" in program.traits)


def _of_phase(scope: Scope, launch_ns: int, idle_ns: int) -> Claim | None:
    from llm_perf_opt.diagnosis.facts import GRAPHS, GpuFacts, Known

    phase = scope.phase
    if phase is None or not isinstance(phase.gpu, GpuFacts) or not isinstance(phase.wall, Known):
        return None
    gpu = phase.gpu
    if gpu.kernel_count < MIN_KERNELS:
        return None
    traits = {"graphs"} if gpu.is_graph or GRAPHS in scope.already else set()
    if phase.name == "prefill" and scope.run is not None and GRAPHS in scope.run.already("decode"):
        traits.add("decode_graphs")
    share = idle_ns / scope.wall_ns
    return Claim(
        title="named",
        values={"idle": share},
        cells={LAUNCH: launch_ns},
        floor_ns=0,
        floor="zero",
        evidence=(
            Fact(
                key="clean",
                values={"busy": scope.ledger.busy_ns, "how": phase.wall.how, "launch": launch_ns},
            ),
            Fact(
                key="each",
                values={
                    "kernels": gpu.kernel_count,
                    "mean": 1e6 * gpu.busy_ms / gpu.kernel_count,
                    "every": scope.wall_ns / gpu.kernel_count,
                },
            ),
        ),
        traits=frozenset(traits),
        confidence=confidence_of(gpu.instances, share=min(share, launch_ns / idle_ns)),
    )


def _of_capture(
    scope: Scope, evidence: CaptureEvidence, launch_ns: int, *, is_bound: bool, is_engine: bool
) -> Claim | None:
    gaps, queue = evidence.report.gaps, evidence.report.queue
    if min(evidence.kernel_count, gaps.short_count) < MIN_KERNELS:
        return None
    rows = evidence.outermost([row for row in evidence.ranges if _is_bound(row)])
    rows.sort(key=lambda row: -_launching_ns(row))
    main = rows[0] if rows and _launching_ns(rows[0]) >= MOSTLY * launch_ns else None
    waits = _waits_between(evidence, launch_ns)
    values: dict[str, str | int | float] = {"idle": scope.ledger.idle_ns / scope.wall_ns}
    facts = [Fact(key="gaps", values={"launch": launch_ns, "gaps": gaps.short_count, "long_from": gaps.long_from_ns,
                                      "kernels": evidence.kernel_count})]  # fmt: skip
    if main is not None:
        one = main.typical
        values |= {
            "place": main.name,
            "each": f"each {main.name}" if main.instances > 1 else "it",
            "idle": (one.gpu_idle_ns or 0) / one.wall_ns,
        }
        facts = [*_range_facts(main), *facts]
        if len(rows) > 1:
            facts.append(Fact(key="also", values={"ranges": ", ".join(row.name for row in rows[1 : 1 + SHOWN])}))
    if waits:
        count = sum(row.count for row in waits)
        values |= {"waits": count, "call": waits[0].call}
        where = f" in {waits[0].places[0]}" if waits[0].places else ""
        refill = sum(row.refill_ns for row in waits)
        facts.append(Fact(key="waits", values={"refill": refill, "where": where}))
    if queue is not None:
        facts.append(Fact(key="queue", values={"empty": queue.empty_share, "depth": queue.depth_median}))
    bound = ["named" if main is not None or scope.is_named else "bound"] if is_bound or main is not None else []
    is_graph = evidence.has_graphs or (main is not None and replays_graphs(main))
    return Claim(
        title="_".join([*bound, *(["waits"] if waits else [])]) or "title",
        values=values,
        cells={LAUNCH: launch_ns},
        floor_ns=0,
        floor="zero",
        evidence=tuple(facts),
        traits=frozenset(
            trait
            for trait, is_true in (
                ("graphs", is_graph),
                ("waits", bool(waits) and not is_graph and not is_engine),
            )
            if is_true
        ),
        confidence=confidence_of(gaps.short_count, share=launch_ns / max(scope.ledger.idle_ns, 1)),
        range_name=None if main is None else main.name,
        also_ranges=tuple(row.name for row in rows[1:]) if main is not None else (),
    )


def _range_facts(row: RangeRow) -> tuple[Fact, Fact]:
    """The kernels of a range, and how often one starts in its typical instance."""
    typical = row.typical
    busy = typical.gpu_busy_ns or 0
    of_range: dict[str, str | int | float] = {
        "range": row.name,
        "busy": busy,
        "range_wall": typical.wall_ns,
        "instances": row.instances,
    }
    of_kernel = {
        "kernels": typical.kernel_count,
        "mean": busy / typical.kernel_count,
        "every": typical.wall_ns / typical.kernel_count,
    }
    return Fact(key="range", values=of_range), Fact(key="each", values=of_kernel)


def _launching_ns(row: RangeRow) -> int:
    """Of all instances, as the typical one is: the first ones carry costs of their own."""
    if row.idle is None or row.typical.idle is None:
        return 0
    return min(row.instances * row.typical.idle.launching_ns, row.idle.launching_ns)


def _is_bound(row: RangeRow) -> bool:
    one = row.typical
    if one.idle is None or one.gpu_idle_ns is None or one.wall_ns <= 0 or one.kernel_count < MIN_KERNELS:
        return False
    if runs_on(row):
        return False
    waits = one.gpu_idle_ns >= MIN_IDLE_SHARE * one.wall_ns
    return waits and one.idle.launching_ns >= MIN_LAUNCH_SHARE * one.gpu_idle_ns


def _waits_between(evidence: CaptureEvidence, launch_ns: int) -> Sequence[WaitRow]:
    """The waits after which the queue is empty, the costliest first, if they are many or cost most of the gaps."""
    rows = [row for row in evidence.report.waits if row.refill_ns > 0 and not allocates(row.call)]
    count, queue = sum(row.count for row in rows), evidence.report.queue
    is_often = queue is not None and count >= max(MIN_WAITS, MIN_WAITS_EACH * queue.launches)
    if not is_often and sum(row.refill_ns for row in rows) < max(MIN_REFILL_SHARE * launch_ns, 1):
        return ()
    return sorted(rows, key=lambda row: -row.refill_ns)
