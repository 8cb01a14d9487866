"""A static analysis as `static_compute.md`: tables for people, both counts side by side."""

from collections.abc import Sequence

from llm_perf_opt.core.markdown import table_block
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.units import or_dash, si
from llm_perf_opt.model.hardware.work import Work
from llm_perf_opt.model.static.double_entry import TOLERANCE, disagreements
from llm_perf_opt.model.static.model_analysis import Analysis
from llm_perf_opt.model.static.operator_count import Tally
from llm_perf_opt.model.static.parts import in_order


def render_markdown(analysis: Analysis, *, notes: Sequence[str] = ()) -> str:
    parts = [
        f"# Static analysis of {analysis.name}",
        _conventions(analysis),
        "## Model",
        _model_table(analysis),
        *_latent(analysis),
        *(part for phase in (PREFILL, DECODE) for part in _phase(analysis, phase)),
        "## Bounds",
        _bounds(analysis),
        "## Cross-check",
        _double_entry(analysis),
    ]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _conventions(analysis: Analysis) -> str:
    shape = analysis.shape
    views = ", ".join(f"{v.count} × {v.size} px" for v in shape.views)
    seen = f", images: {views}" if views else ""
    return (
        f"Batch {shape.batch}, prompt of {shape.prompt} tokens, decode at context {shape.context}{seen} ({shape.how}). "
        f"Activations in {analysis.dtypes.compute}, weights in {analysis.dtypes.weight}, KV cache in "
        f"{analysis.dtypes.kv}.\n\n"
        "FLOPs are 2 per multiply-add of matrix products, convolutions and attention. Attention is counted over the "
        "full rectangle of queries by keys in both counts; *needed* leaves out what the causal mask (and a window) "
        "throws away, and bounds use that. Prefill computes logits of the last position only. Bytes are weights and KV "
        "cache once, plus activations in and out of every product; elementwise operators are taken as fused and listed "
        "apart as *unfused*."
    )


def _model_table(analysis: Analysis) -> str:
    p, need, fit = analysis.parameters, analysis.memory, analysis.fit
    rows = [
        ("parameters", f"{p.total:,}"),
        ("of which one token uses (embeddings in full)", f"{p.activated:,}"),
        ("KV cache per token", f"{analysis.kv_bytes_per_token:,.0f} bytes"),
        ("weights in memory", si(need.weights_bytes, "B")),
        ("KV cache at this shape", si(need.kv_cache_bytes, "B")),
        ("activations at the widest point of prefill", si(need.activations_bytes, "B")),
        ("peak", si(need.peak_bytes, "B")),
    ]
    if fit is not None:
        context = "memory sets no limit" if fit.largest_context is None else f"{fit.largest_context:,} tokens"
        rows += [
            (f"largest batch in {si(fit.usable_bytes, 'B')} (capacity less 3 %)", f"{fit.largest_batch:,}"),
            ("largest context at this batch", context),
        ]
    if analysis.experts is not None:
        e = analysis.experts
        rows += [
            ("routed experts a layer, per token", f"{e['experts']:.0f}, {e['per_token']:.0f}"),
            ("distinct experts expected in prefill, in a decode step", f"{e[PREFILL]:.1f}, {e[DECODE]:.1f}"),
        ]
    return table_block(("what", "value"), rows)


def _latent(analysis: Analysis) -> list[str]:
    if analysis.latent_modes is None:
        return []
    rows = [
        (f"**{mode}**" if mode == analysis.mla_mode else mode, si(flops, "FLOP"), f"{size:,.0f}")
        for mode, (flops, size) in analysis.latent_modes.items()
    ]
    text = (
        "Latent attention (MLA) can be run in three ways; the one in bold is what is analysed. *latent-expand* is what "
        "transformers does: it caches the latent and projects all keys and values up again every step."
    )
    return ["## Latent attention", text, table_block(("mode", "FLOPs of a decode step", "KV bytes per token"), rows)]


def _phase(analysis: Analysis, name: str) -> list[str]:
    phase, count = analysis.phases[name], analysis.counts.get(name)
    found = in_order({*phase.groups, *(count.groups if count is not None else ())})
    rows = []
    for group in [*found, "total"]:
        is_total = group == "total"
        work = phase.total if is_total else phase.groups.get(group, Work())
        params = analysis.parameters.total if is_total else analysis.parameters.groups.get(group, 0)
        tally = None if count is None else (count.total if is_total else count.groups.get(group, Tally()))
        rows.append(
            (
                f"**{group}**" if is_total else group,
                f"{params:,}",
                si(work.flops, "FLOP"),
                si(work.flops_needed, "FLOP"),
                si(work.weight_bytes, "B"),
                si(work.kv_read_bytes + work.kv_write_bytes, "B"),
                si(work.activation_bytes, "B"),
                f"{work.flops / work.bytes:.3g}" if work.bytes else "–",
                si(tally.other_bytes if tally else None, "B"),
            )
        )
    title = "## Prefill" if name == PREFILL else "## Decode step"
    header = ("group", "parameters", "FLOPs", "needed", "weights", "KV cache", "activations", "FLOP/byte", "unfused")
    return [title, table_block(header, rows)]


def _bounds(analysis: Analysis) -> str:
    if analysis.hardware is None:
        return f"No bound: {analysis.hardware_reason}."
    rows = []
    for name, p in analysis.predictions.items():
        found = p.estimate
        band = f"{found.mid_ms:.4g} ({found.low_ms:.3g} – {found.high_ms:.3g})" if found else "–"
        rows.append(
            (
                name,
                or_dash(p.datasheet.ms if p.datasheet else None, "{:.4g}", dash="–"),
                or_dash(p.achievable.ms if p.achievable else None, "{:.4g}", dash="–"),
                band,
                f"{p.operators.count:,.0f} ({p.operators.how})",
                or_dash(p.launch_ms, "{:.4g}", dash="–"),
                p.limit or "–",
                si(p.tokens_per_s(found.mid_ms if found else None)),
            )
        )
    header = (
        "phase",
        "data sheet, ms",
        "achievable, ms",
        "estimate, ms (band)",
        "operators",
        "launch, ms",
        "limit",
        "tokens/s",
    )
    sources = [f"- {key}: {value}" for key, value in analysis.hardware.sources.items()]
    reasons = dict.fromkeys(
        r for p in analysis.predictions.values() for r in (p.datasheet_reason, p.achievable_reason) if r
    )
    lines = [f"Hardware: {analysis.hardware.name}.", table_block(header, rows), *(f"- {reason}" for reason in reasons)]
    return "\n\n".join([*lines, "\n".join(sources)]) if sources else "\n\n".join(lines)


def _double_entry(analysis: Analysis) -> str:
    if not analysis.entries:
        return "Operators were not counted: only the closed form is shown (see the notes)."
    rows = [
        (
            e.phase,
            e.group,
            e.quantity,
            f"{e.closed_form:,.0f}",
            f"{e.counted:,.0f}",
            "–" if e.ratio is None else f"{e.ratio:.4f}",
            "" if e.agrees else "**differs**",
        )
        for e in analysis.entries
    ]
    header = ("phase", "group", "what", "closed form", "operator count", "ratio", "")
    found = disagreements(analysis.entries)
    if not found:
        verdict = f"Both counts agree within {100 * TOLERANCE:.0f} % everywhere."
    else:
        verdict = "\n".join(f"- {e.phase}, {e.group}, {e.quantity}: {e.explanation}." for e in found)
    like = (
        "Like is compared with like: the same full rectangle of attention scores, and the bytes of matrix operators "
        "(operands and result) on both sides. Norms hold no product, so only their FLOPs (none) are compared."
    )
    return "\n\n".join([like, table_block(header, rows), verdict])
