"""The kernel that takes most of a busy GPU's time, where no other cause explains it."""

import re

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.capture.kernels.gemm_names import PRODUCTS, gemm_traits
from llm_perf_opt.capture.launch_shapes import HottestKernel
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.program import OTHER
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE = 0.5
# Kernels of libraries that do what they are for: the verdict names them, and nothing is wrong with them.
EXPECTED = ("GEMM", "attention", "convolution", "communication", "graph")


def judge(scope: Scope, program: Program) -> Claim | None:
    top = scope.kernels[0] if scope.kernels else None
    if top is None or _is_expected(top, program) or top.time_ns < MIN_SHARE * scope.kernel_ns:
        return None
    ncu = scope.ncu.get(top.name)
    hottest = scope.evidence.hottest if scope.evidence is not None else None
    hottest = hottest if hottest is not None and hottest.name == top.name else None
    facts = [
        Fact(
            key="kernel",
            values={
                "kernel_class": top.kernel_class,
                "time": top.time_ns,
                "count": top.count,
                "mean": top.time_ns / max(top.count, 1),
                "launch": "" if hottest is None else _launch(hottest),
            },
        )
    ]
    if hottest is not None and hottest.limit is not None:
        facts.append(Fact(key="limit", values={"limit": hottest.limit, "how": hottest.how or ""}))
    if ncu is not None and ncu.roof_pct is not None:
        facts.append(Fact(key="ncu", values={"bound": ncu.bound, "roof": ncu.roof_pct}))
    limit = hottest.limit if hottest is not None else None
    return Claim(
        title="title" if limit is None else "limited",
        values={
            "kernel": top.short_name,
            "limit": limit or "",
            "kernel_share": top.time_ns / scope.kernel_ns,
            "name": re.split(r"\W", top.short_name.removeprefix("void "))[0],
        },
        kernels={top.name: top.own_ns},
        evidence=tuple(facts),
        traits=frozenset({"memory"} if ncu is not None and ncu.bound == "memory" else ()),
    )


def _is_expected(top: KernelTime, program: Program) -> bool:
    """A matrix product of a program without framework and engine is its own, unless a library named it."""
    is_own = program.framework == OTHER and program.engine is None
    traits = gemm_traits(top.name) if top.kernel_class in PRODUCTS and is_own else None
    return top.kernel_class in EXPECTED and (traits is None or traits.precision is not None)


def _launch(kernel: HottestKernel) -> str:
    """Grid and block of the launches with most time, where the capture says them."""
    if kernel.grid is None or kernel.block is None:
        return ""
    grid, block = ("×".join(str(size) for size in sizes) for sizes in (kernel.grid, kernel.block))
    return f", grid {grid}, block {block}"
