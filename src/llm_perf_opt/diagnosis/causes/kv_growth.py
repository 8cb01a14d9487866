"""The KV cache decides how much a decode step reads, or how much fits into memory."""

from llm_perf_opt.core.units import count_of
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known, RunFacts, value_of
from llm_perf_opt.diagnosis.ledger import Claim, Fact, Value
from llm_perf_opt.diagnosis.scope import Scope

MIN_READ_SHARE, MIN_MEMORY_SHARE = 0.25, 0.4
SIXTEEN_BITS = ("bf16", "fp16")
ATTENTION = "gpu.compute.attention"


def judge(scope: Scope, _: Program) -> Claim | None:
    phase, run = scope.phase, scope.run
    if phase is None or run is None or phase.name != "decode":
        return None
    memory, total = run.memory, value_of(phase.bytes)
    read, held, room = (value_of(q) for q in (memory.kv_read_per_step, memory.kv_cache, memory.capacity))
    share = read / total if read is not None and total else 0.0
    filled = held / room if held is not None and room else 0.0
    if share < MIN_READ_SHARE and filled < MIN_MEMORY_SHARE:
        return None
    source = memory.kv_cache.source if isinstance(memory.kv_cache, Known) else None
    values: dict[str, Value] = {"read": share, "filled": filled, "size": _size(run)}
    each = value_of(memory.kv_per_token)
    keys = [*(("read",) if share else ()), *(("filled",) if filled else ()), *(("each",) if each is not None else ())]
    reading = round(1e9 * read / run.bytes_per_s) if read is not None and run.bytes_per_s else 0
    cells = {ATTENTION: min(reading, scope.ledger.ns(ATTENTION))}
    is_timed = share >= MIN_READ_SHARE and cells[ATTENTION] > 0
    return Claim(
        title="title" if share >= MIN_READ_SHARE else "memory",
        values=values,
        cells=cells if is_timed else {},
        floor_ns=cells[ATTENTION] // 2 if is_timed else None,
        floor="half" if is_timed else None,
        evidence=tuple(
            Fact(key=key, values={"each_bytes": each or 0.0}, source=source or "static_analysis/static.json")
            for key in keys
        ),
        traits=frozenset({"bf16_cache"} if memory.kv_dtype in SIXTEEN_BITS else ()),
        is_timeless=not is_timed,
    )


def _size(run: RunFacts) -> str:
    """Of what the cache is, as far as it is known."""
    known = [count_of(run.context, "token")] if run.context is not None else []
    known += [f"batch {run.batch:,}"] if run.batch is not None else []
    return f" at {' and '.join(known)}" if known else ""
