"""What the ranks of our own workload sent each other; around each call is `communication:OPERATION:BYTES`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.timeline import Timeline, distinct
from llm_perf_opt.core.names import COMMUNICATION, DECODE, PREFILL

_NAME = re.compile(rf"{COMMUNICATION}:(\w+):(\d+)")
# Bytes on the wire of each rank by bytes of the message, for n ranks, as nccl-tests has it.
_BUS_FACTOR = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n}
_BUS_FACTOR["reduce_scatter"] = _BUS_FACTOR["all_gather"]


@dataclass(frozen=True, kw_only=True)
class TrafficRow:
    """One kind of collective on one rank: calls, the bytes of their messages, and the time the calls took on the host.

    `share_of_phases_pct`: all communication calls of this rank, of its time in prefill and decode.
    """

    rank: int
    operation: str
    count: int
    size_bytes: int
    time_ns: int
    ranks: int
    share_of_phases_pct: float | None


def measure_traffic(timelines: Sequence[Timeline], ranks: Sequence[int]) -> tuple[TrafficRow, ...]:
    """Rows for each rank and kind of collective; none where the workload opened no such range."""
    out: list[TrafficRow] = []
    for timeline, rank in zip(timelines, ranks, strict=True):
        length = timeline.ranges.end_ns - timeline.ranges.start_ns
        found: dict[str, list[int]] = {}
        for code in distinct(timeline.ranges.name):
            match = _NAME.fullmatch(timeline.names[int(code)])
            if match is None:
                continue
            mine = timeline.ranges.name == code
            row = found.setdefault(match[1], [0, 0, 0])
            row[0] += int(mine.sum())
            row[1] += int(mine.sum()) * int(match[2])
            row[2] += int(length[mine].sum())
        phases = [timeline.names[int(code)] in (PREFILL, DECODE) for code in timeline.ranges.name]
        in_phases = int(length[np.array(phases, np.bool_)].sum()) if phases else 0
        whole = sum(time_ns for _, _, time_ns in found.values())
        out += [
            TrafficRow(
                rank=rank,
                operation=operation,
                count=count,
                size_bytes=size_bytes,
                time_ns=time_ns,
                ranks=len(timelines),
                share_of_phases_pct=100.0 * whole / in_phases if in_phases else None,
            )
            for operation, (count, size_bytes, time_ns) in sorted(found.items())
        ]
    return tuple(out)


def bus_gb_s(row: TrafficRow, time_ns: float) -> float | None:
    """The bus bandwidth of nccl-tests; None where no time was taken or the collective has no factor."""
    factor = _BUS_FACTOR.get(row.operation)
    return None if factor is None or time_ns <= 0 else factor(row.ranks) * row.size_bytes / time_ns
