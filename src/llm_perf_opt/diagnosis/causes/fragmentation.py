"""The allocator keeps a gigabyte, and a fifth, more than was ever in use."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Of what is reserved, and in bytes: less is the allocator's rounding.
MIN_UNUSED_SHARE, MIN_UNUSED_BYTES = 0.2, 1e9


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.run is None:
        return None
    kept, used = scope.run.memory.reserved, scope.run.memory.allocated
    if not isinstance(kept, Known) or not isinstance(used, Known):
        return None
    unused = kept.value - used.value
    if unused < MIN_UNUSED_BYTES or unused < MIN_UNUSED_SHARE * kept.value:
        return None
    return Claim(
        values={"unused": unused},
        evidence=tuple(
            Fact(key=key, values={"size": one.value, "how": one.how}, source=one.source)
            for key, one in (("reserved", kept), ("allocated", used))
        ),
        confidence="high",
        is_timeless=True,
    )
