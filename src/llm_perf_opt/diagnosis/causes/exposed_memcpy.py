"""Copies between host and device with no kernel overlapped."""

import re

from llm_perf_opt.capture.rows import CopyRow
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.evidence import CaptureEvidence
from llm_perf_opt.diagnosis.ledger import COPY, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

MIN_PHASE_SHARE = 0.1
CROSSING = ("h2d", "d2h", "other")
SHOWN, MIN_PLACE_SHARE = 3, 0.1
# A direction with this part of the time is named.
MUCH = 0.2
# 16 lanes of 8 GT/s, 128 of 130 bits: what the bus of 2010 carries one way. Copies of this size should come near it.
PCIE3_BYTES_PER_S = 16 * 8e9 * 128 / 130 / 8
LARGE_COPY_BYTES, SLOW_SHARE = 1_000_000, 0.5
# Copies of less are counted, not weighed: each costs the same regardless of its size.
SMALL_COPY_BYTES = 64_000
MOSTLY, MOSTLY_LOADING = 0.5, 0.8
# A program of fewer kernels has no loop after loading: its copies are a part of what it does.
A_LOOP = 50
# What brings parameters to the device layer by layer.
_OFFLOADS = re.compile(r"FSDP::\w*pre_forward|FullyShardedDataParallel.*pre_forward|offload|PartitionedParameter")
NAMES = {"h2d": "H2D", "d2h": "D2H", "other": "host-device"}


def judge(scope: Scope, _: Program) -> Claim | None:
    cells = {cell.id: cell.time_ns for cell in scope.ledger.below(COPY) if _crosses(cell.id)}
    total = sum(cells.values())
    if scope.evidence is None:
        if total < MIN_PHASE_SHARE * scope.wall_ns:
            return None
        return Claim(values={"kind": "host-device"}, cells=cells, evidence=(Fact(key="time", values={"time": total}),))
    return _of_capture(scope, scope.evidence, cells)


def _crosses(cell: str) -> bool:
    return cell.split(".")[2] in (*CROSSING, "all")


def _of_capture(scope: Scope, evidence: CaptureEvidence, cells: dict[str, int]) -> Claim | None:
    total = sum(cells.values())
    gaps = evidence.report.gaps.longest
    loading_ns = sum(gap.copy_ns for gap in gaps if gap.is_first)
    ends_ns = loading_ns + sum(gap.copy_ns for gap in gaps if gap.is_last)
    is_once = evidence.kernel_count >= A_LOOP and ends_ns >= MOSTLY * total
    is_loading = is_once and loading_ns >= MOSTLY_LOADING * ends_ns
    # Of a capture whose steady state is judged apart, only what lies outside of it is left to say.
    if scope.kind == "capture" and not is_once:
        return None
    rows = [row for row in evidence.copies if row.way.split(".")[0] in CROSSING]
    rows.sort(key=lambda row: -row.total_ns)
    most = max(cells, key=lambda cell: (cells[cell], cell)).split(".")
    busy = scope.ledger.busy_ns
    places = [
        place for place in evidence.copy_places if place.time_ns >= MIN_PLACE_SHARE * sum(r.total_ns for r in rows)
    ]
    is_offload = bool(places) and _OFFLOADS.search(places[0].name) is not None
    # Copies that take longer than all kernels cannot hide behind them, and how few are needed is not known.
    can_hide = total <= busy
    traits = (
        ("once", is_once),
        ("offload", is_offload),
        ("small", bool(rows) and 0 < _mean_bytes(rows[0]) < SMALL_COPY_BYTES),
        ("pageable", most[-1] == "pageable"),
    )
    return Claim(
        title="alone" if not evidence.kernel_count else "loading" if is_loading else "ends" if is_once else "title",
        values={"kind": _kinds(cells)},
        cells=cells,
        floor_ns=0 if can_hide else None,
        floor="overlap" if can_hide else None,
        evidence=(
            Fact(key="time", values={"time": total}),
            *kinds_of_copies(rows),
            *_slow(rows[:SHOWN]),
            *_at_peak(rows[:SHOWN], evidence),
            *(
                Fact(key="place", values={"owner": place.name, "count": place.count, "time": place.time_ns})
                for place in places[:SHOWN]
            ),
            *((Fact(key="overlap", values={"time": busy}),) if 0 < busy < total and not is_once else ()),
        ),
        traits=frozenset(trait for trait, is_true in traits if is_true),
        confidence=confidence_of(sum(row.instances for row in rows), share=1.0),
        is_one_time=is_once,
    )


def _kinds(cells: dict[str, int]) -> str:
    """The directions that take much of the time, with the kind of host memory where it is one."""
    total = sum(cells.values())
    ways = [cell.split(".")[2:] for cell in sorted(cells, key=lambda cell: -cells[cell])]
    much = [way for way in ways if cells[".".join((COPY, *way))] >= MUCH * total]
    memory = {way[1] if len(way) > 1 else "" for way in much}
    names = " and ".join(dict.fromkeys(NAMES[way[0]] for way in much))
    return names + (f" ({memory.pop()})" if len(memory) == 1 and "" not in memory else "")


def kinds_of_copies(rows: list[CopyRow]) -> tuple[Fact, ...]:
    """Number, time and size of copies by kind."""
    return tuple(Fact(key="kind", values=_sizes(row)) for row in rows[:SHOWN])


def _at_peak(rows: list[CopyRow], evidence: CaptureEvidence) -> tuple[Fact, ...]:
    """How long the same bytes take at the peak of the way they take."""
    floors = [evidence.copy_floors[row.kind] for row in rows]
    return tuple(
        Fact(key="peak", values={"kind": floor.kind, "time": floor.floor_ns, "how": floor.how})
        for floor in floors
        if floor.floor_ns is not None
    )


def _mean_bytes(row: CopyRow) -> float:
    return (row.size_bytes or 0) / max(row.instances, 1)


def _sizes(row: CopyRow) -> dict[str, str | int | float]:
    size = ""
    if row.size_bytes is not None and row.total_ns:
        mean = _mean_bytes(row)
        size = f", {format_bytes(row.size_bytes)} at {row.size_bytes / row.total_ns:.1f} GB/s"
        if 0 < mean < SMALL_COPY_BYTES:
            size = f", {format_bytes(mean)} each: their number costs the time, not their size"
    return {"kind": row.kind, "count": row.instances, "total": row.total_ns, "size": size}


def _slow(rows: list[CopyRow]) -> tuple[Fact, ...]:
    """Large copies that are slower than an old bus is."""
    for row in rows:
        if row.bytes_per_s is None or row.size_bytes is None:
            continue
        if row.size_bytes >= LARGE_COPY_BYTES * row.instances and row.bytes_per_s < SLOW_SHARE * PCIE3_BYTES_PER_S:
            why = ": pageable host memory copies this slowly" if row.way.endswith("pageable") else ": check the link"
            return (
                Fact(
                    key="slow",
                    values={
                        "kind": row.kind,
                        "rate": row.bytes_per_s,
                        "part": row.bytes_per_s / PCIE3_BYTES_PER_S,
                        "peak": PCIE3_BYTES_PER_S,
                        "why": why,
                    },
                ),
            )
    return ()
