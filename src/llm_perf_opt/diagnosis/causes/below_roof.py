"""Matmuls, attention and convolutions far from the GPU's peaks, by the shapes a trace recorded."""

import re

from llm_perf_opt.capture.shapes import ShapeRow
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import COMPUTE, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Good kernels of large shapes reach two thirds of the data sheet: what is under this share of it is far from it.
FAR_PCT, MIN_FAR_SHARE, SHOWN = 50.0, 0.2, 4
# The lower bound: what good kernels reach, not what a data sheet says.
REACHED = 2 / 3
# Calls shorter than this are too small to fill a large GPU.
SMALL_CALL_NS = 20_000
# Dimensions that are multiples of this fit the units that multiply 16-bit numbers.
FITTING = 8
KINDS = {"GEMM": "GEMMs", "attention": "attention", "convolution": "convolutions"}
# A dimension inside a shape; those of one are vectors, not to pad.
_SIZE = re.compile(r"\b[mnk] (\d+)|size (\d+)")
# Operators that unfused attention is made of.
PIECES = ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::matmul")


def judge(scope: Scope, _: Program) -> Claim | None:
    evidence = scope.evidence
    if evidence is None or evidence.shapes is None:
        return None
    is_unfused = evidence.attention.count > 0
    far = [
        row
        for row in evidence.shapes.rows
        if row.roof_pct is not None and row.roof_pct < FAR_PCT and row.kind in KINDS
        if not (is_unfused and row.operator in PIECES)
    ]
    spent, total = sum(row.time_ns for row in far), evidence.shapes.kernel_ns
    if not spent or spent < MIN_FAR_SHARE * total:
        return None
    least = sum(row.time_ns * (row.roof_pct or 0.0) / 100 for row in far)
    cells: dict[str, int] = {}
    for row in far:
        cell = f"{COMPUTE}.{row.kind}"
        cells[cell] = cells.get(cell, 0) + row.time_ns
    # Shapes are those of the whole trace; of kernels that overlap a part is another's.
    cells = {cell: min(ns, scope.ledger.ns(cell)) for cell, ns in cells.items() if scope.ledger.ns(cell)}
    kinds = " and ".join(KINDS[kind] for kind in KINDS if any(row.kind == kind for row in far))
    small = sum(row.time_ns for row in far if row.mean_ns < SMALL_CALL_NS) > spent / 2
    odd = sum(row.time_ns for row in far if _is_odd(row)) > spent / 2
    return Claim(
        values={"kinds": kinds, "reached": 100 * least / spent, "kernel_share": spent / total},
        cells=cells,
        floor_ns=round(sum(cells.values()) * min(1.0, least / REACHED / spent)),
        floor="peak",
        evidence=(
            Fact(
                key="shapes",
                values={"count": len(far), "time": spent, "kernel_time": total, "least": round(least)},
            ),
            *(Fact(key="shape", values=_values(row)) for row in far[:SHOWN]),
        ),
        traits=frozenset({"small"} if small else {"odd"} if odd else ()),
        # No kernel reaches the data sheet: how near these could come is not known.
        confidence="medium" if odd else "low",
        caveat="peak",
    )


def _is_odd(row: ShapeRow) -> bool:
    """Whether a matmul has a dimension that does not fit the units that multiply."""
    sizes = [int(part) for found in _SIZE.findall(row.shape) for part in found if part]
    return row.kind != "convolution" and any(size > 1 and size % FITTING for size in sizes)


def _values(row: ShapeRow) -> dict[str, str | int | float]:
    is_compute = row.bound == "compute" and row.tflops is not None
    return {
        "operator": row.operator.removeprefix("aten::"),
        "shape": row.shape,
        "dtype": row.dtype,
        "time": row.time_ns,
        "count": row.calls,
        "rate": f"{row.tflops:,.0f} TFLOP/s" if is_compute else f"{row.gb_per_s:,.0f} GB/s",
        "roof": row.roof_pct or 0.0,
        "bound": row.bound or "unknown",
    }
