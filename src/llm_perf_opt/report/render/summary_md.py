"""stakeholder_summary.md: one page for people who do not profile."""

from llm_perf_opt.core.markdown import escape, heading
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.report.view.findings import FindingView
from llm_perf_opt.report.view.report_view import ReportView
from llm_perf_opt.report.view.shown import Shown
from llm_perf_opt.report.view.waterfall_view import WaterfallView

DONE = 3
PLAIN = {
    "prefill": "reading the prompt",
    "decode": "generating each token",
    "capture": "the whole recording",
    "run": "the measurement",
}
# What a headline number says in a sentence.
SPEEDS = {
    "ttft": "the first token came after {}",
    "prefill": "reading the prompt took {}",
    "tpot": "each further token took {}",
    "decode_speed": "that is {}",
    "wall": "the whole program took {}",
    "cost": "a million output tokens cost {}",
}
# A tile whose sentence needs what it was worked out from.
EXPLAINED = ("cost",)


def render_summary_md(view: ReportView) -> str:
    if view.is_load_alone:
        return "\n".join(["# Summary", "", *_served(view)]) + "\n"
    if view.is_crashed:
        return f"# Summary\n\n**{heading(view.headline.title)}**: {escape(view.headline.verdict)}\n"
    lines = ["# Summary", "", *_measured(view), ""]
    lines += [line for text in view.damage[:1] for line in (f"Caution: {escape(text)}.", "")]
    lines += [line for text in view.headline.warnings[:1] for line in (f"Caution: {escape(text)}.", "")]
    lines += ["## How good is it?", "", *_quality(view), ""] if view.waterfalls else []
    lines += _trend(view)
    lines += ["## What to do", "", *_actions(view), "", *_unknown(view)]
    return "\n".join(lines).rstrip() + "\n"


def _served(view: ReportView) -> list[str]:
    """A server seen from outside: how fast it answered, and no word about why."""
    head = view.headline
    lines = [f"**{heading(head.title)}** was put under load. {escape(head.verdict)}", ""]
    lines += [f"- {escape(tile.label)}: {escape(tile.cell.text)}, {escape(tile.explain)}." for tile in head.tiles]
    return lines


def _measured(view: ReportView) -> list[str]:
    head = view.headline
    where = "" if head.device is None else f" on {'a CPU, ' if head.is_cpu else ''}{escape(head.device)}"
    size = "" if head.parameters is None else f" ({head.parameters:,} parameters)"
    shown = {
        tile.key: f"{tile.cell.text} ({tile.cell.how})" if tile.key in EXPLAINED else tile.cell.text
        for tile in head.tiles
        if isinstance(tile.cell, Shown)
    }
    parts = [text.format(shown[key]) for key, text in SPEEDS.items() if key in shown]
    text = f"**{heading(head.title)}**{size} was examined{where}."
    if not parts and view.failures:
        failed = view.failures[0]
        return [f"{text} Nothing was measured: {escape(failed.reason)}."]
    if not parts and view.is_bare:
        return [f"{text} {escape(head.verdict)}"]
    if not parts:
        return [f"{text} No speed was measured in this run."]
    return [f"{text} Measured without a profiler, {', '.join(parts)}."]


def _quality(view: ReportView) -> list[str]:
    lines = []
    for waterfall in view.waterfalls:
        lines.append(f"- **{PLAIN[waterfall.phase].capitalize()}**: {_possible(waterfall)}")
    return lines


def _possible(view: WaterfallView) -> str:
    rows = {row.key: row for row in view.rows if row.missing is None}
    wall, bound = rows.get("wall"), rows.get("achievable") or rows.get("datasheet")
    if wall is None:
        return "not measured." if bound is None else f"not measured; the hardware needs at least {bound.total}."
    if bound is None:
        return f"{wall.total}; what the hardware could do is not known."
    kernels = rows.get("kernels")
    text = f"{wall.total}; this hardware could do it in {bound.total}"
    if kernels is not None:
        text += f", and the GPU was at work for {kernels.total} of it"
    return text + "."


def _trend(view: ReportView) -> list[str]:
    """How the same did before, where runs of it lie alongside this one."""
    now = next((t.cell for t in view.headline.tiles if t.key == "tpot" and isinstance(t.cell, Shown)), None)
    if not view.earlier or now is None or now.value is None:
        return []
    before = view.earlier[-1]
    change = 100 * (now.value / before.tpot_ms - 1) if before.tpot_ms else 0.0
    rows = [f"- {r.created_at[:10]}, {escape(r.run_id)}: {format_ms(r.tpot_ms)} per token" for r in view.earlier]
    word = "more" if change > 0 else "less"
    change_text = (
        f"{abs(change):.1f} % {word} than the run before; `llm-perf compare` says whether that is more than chance."
    )
    return ["## Trend", "", *rows, f"- this run: {now.text} per token, {change_text}", ""]


def _actions(view: ReportView) -> list[str]:
    chosen: list[FindingView] = []
    for finding in view.findings:
        # One line per kind of problem and advice.
        if (finding.rule, finding.remedy) not in {(f.rule, f.remedy) for f in chosen} and len(chosen) < DONE:
            chosen.append(finding)
    if not chosen and view.is_empty and view.failures:
        return ["Fix the failure, then measure again; report.html shows what the program said."]
    if not chosen:
        return [escape(view.unjudged or "The measurements show no finding.")]
    lines = []
    for number, finding in enumerate(chosen, start=1):
        doubt = ", and this is uncertain" if finding.confidence == "low" else ""
        gain = f"Speed-up: at most {finding.gain}{doubt}." if finding.gain else ""
        texts = (f"**{escape(finding.title)}.**", escape(finding.plain_words), gain)
        plain_text = " ".join(text for text in texts if text)
        lines.append(f"{number}. {plain_text} For the engineers: {escape(finding.remedy)}.")
    return lines


def _unknown(view: ReportView) -> list[str]:
    missing = [(tile.label, tile.cell) for tile in view.headline.tiles if isinstance(tile.cell, Unknown)]
    if not missing:
        return []
    lines = ["## Not known", ""]
    return lines + [f"- {escape(label)}: {escape(cell.text)}" for label, cell in missing]
