"""Rule kv_growth: the KV cache, not the weights, decides how much a step reads or how much fits."""

from llm_perf_opt.analysis.findings.facts import Known, RunFacts, value_of
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl

MIN_READ_SHARE = 0.25
MIN_MEMORY_SHARE = 0.4
REMEDY = (
    "shrink the cache: {format}a model with fewer KV heads or a latent cache, a sliding window, or paged attention so "
    "that unused room is not reserved"
)
# What halves the bytes of an element.
HALVED = {"fp32": "bf16", "bf16": "fp8 or int8", "fp16": "fp8 or int8"}


def find_kv_growth(facts: RunFacts) -> list[Finding]:
    """A finding when the cache is a quarter of what a step reads, or fills much of the memory."""
    memory = facts.memory
    read, total = value_of(memory.kv_read_per_step), _step_bytes(facts)
    share = read / total if read is not None and total else 0.0
    held, room = value_of(memory.kv_cache), value_of(memory.capacity)
    filled = held / room if held is not None and room else 0.0
    if share < MIN_READ_SHARE and filled < MIN_MEMORY_SHARE:
        return []
    return [_finding(facts, share, filled)]


def _step_bytes(facts: RunFacts) -> float | None:
    decode = facts.phases.get("decode")
    return value_of(decode.bytes) if decode is not None else None


def _finding(facts: RunFacts, share: float, filled: float) -> Finding:
    memory, decode = facts.memory, facts.phases.get("decode")
    source = memory.kv_cache.source if isinstance(memory.kv_cache, Known) else None
    read = value_of(memory.kv_read_per_step)
    now = memory.kv_dtype
    target = HALVED.get(now or "")
    saved = None
    if read is not None and facts.bytes_per_s and target is not None:
        saved = 1e3 * (read / 2) / facts.bytes_per_s
    wall = value_of(decode.wall) if decode is not None else None
    per_token = value_of(memory.kv_per_token)
    texts = [f"reading the cache is {100 * share:.0f} % of the bytes a decode step needs"] if share else []
    texts += (
        [f"the cache of {facts.context} tokens and batch {facts.batch} fills {100 * filled:.0f} % of the memory"]
        if filled
        else []
    )
    texts += [f"each token adds {per_token:,.0f} bytes"] if per_token is not None else []
    return RULE.finding(
        title="The KV cache decides: " + (texts[0] if share >= MIN_READ_SHARE else texts[-2 if per_token else -1]),
        phase="decode",
        evidence=tuple(Evidence(text=text, source=source or "static_analysis/static.json") for text in texts),
        remedy=REMEDY.format(format=f"keep it in {target} instead of {now} (half the bytes), " if target else ""),
        saves_ms=saved,
        gain=None if saved is None else amdahl(wall, saved),
        confidence="medium",
    )


RULE = Rule(
    id="kv_growth",
    find=find_kv_growth,
    plain_words="The memory of the conversation so far has become the largest thing to read.",
    remedy=REMEDY.format(format=""),
)
