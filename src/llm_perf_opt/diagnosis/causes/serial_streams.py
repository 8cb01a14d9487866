"""Streams that run one after the other although work was queued on all of them."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Fewer kernels held back are an accident, and so is less time of the scope.
MIN_HELD, MIN_SHARE, NAMED = 10, 0.05, 6


def judge(scope: Scope, _: Program) -> Claim | None:
    streams = scope.evidence.streams if scope.evidence is not None else None
    found = [serial for serial in streams.serial if serial.held_count >= MIN_HELD] if streams is not None else []
    held = sum(serial.held_ns for serial in found)
    if not found or held < MIN_SHARE * scope.wall_ns:
        return None
    return Claim(
        values={"streams": max(len(s.streams) for s in found), "held_share": held / scope.wall_ns},
        evidence=tuple(
            Fact(
                key="streams",
                values={
                    "device": serial.device,
                    "names": ", ".join(str(stream) for stream in serial.streams[:NAMED]),
                    "count": serial.held_count,
                    "held": serial.held_ns,
                    "overlap": serial.overlap_ns,
                },
            )
            for serial in found[:NAMED]
        ),
        # How much of the GPU these kernels fill is not known here.
        confidence="low",
        is_timeless=True,
    )
