"""report.md: the whole report for places that render markdown."""

from collections.abc import Callable, Sequence

from llm_perf_opt.core.markdown import code, escape, heading, link, plain, table
from llm_perf_opt.core.units import digits, format_ms, format_ms_in_column, format_percent
from llm_perf_opt.report.kernel_columns import MEASURED, column_texts, show_value
from llm_perf_opt.report.render.markdown_text import Footnotes, format_metric
from llm_perf_opt.report.view.findings import FindingView
from llm_perf_opt.report.view.kernels_view import WHOLE, KernelRowView, KernelsView
from llm_perf_opt.report.view.modules import ModulesView
from llm_perf_opt.report.view.provenance_view import ProvenanceView
from llm_perf_opt.report.view.report_view import ReportView
from llm_perf_opt.report.view.sections_view import SectionView
from llm_perf_opt.report.view.waterfall_view import BarRow, WaterfallView

KERNELS_SHOWN = 15
BAR_WIDTH = 40
MARKS = {"bound": "█", "work": "▓", "idle": "░", "unexplained": "?", "wall": "█"}


def render_report_md(view: ReportView) -> str:
    notes = Footnotes()
    lines = [
        *_headline(view, notes),
        *(line for section in view.first_sections for line in _section(section, notes)),
        *_inside(view, notes),
        *(line for section in view.sections for line in _section(section, notes)),
        *_provenance(view.provenance),
        "",
        *notes.lines(),
    ]
    return "\n".join(lines) + "\n"


def _inside(view: ReportView, notes: Footnotes) -> list[str]:
    """What profilers and the static analysis say."""
    parts: dict[str, Callable[[], list[str]]] = {
        "waterfall": lambda: [line for waterfall in view.waterfalls for line in _waterfall(waterfall, notes)],
        "findings": lambda: _findings(view.findings),
        "kernels": lambda: _kernels(view.kernels, is_bare=view.is_bare),
        "modules": lambda: _modules(view.modules),
        "memory": lambda: _memory(view, notes),
        "timeline": lambda: _timeline(view),
    }
    lines = {part: render() for part, render in parts.items() if part in view.parts}
    ledger = [] if view.ledger is None else _section(view.ledger, notes)
    first = [line for part in ("waterfall", "findings") for line in lines.pop(part, [])]
    return [*first, *ledger, *(line for rest in lines.values() for line in rest)]


def _headline(view: ReportView, notes: Footnotes) -> list[str]:
    head = view.headline
    facts = " · ".join(f"{name} {escape(value)}" for name, value in head.facts)
    rows = [(escape(tile.label), notes.cell(tile.cell), escape(tile.explain)) for tile in head.tiles]
    return [
        f"# {heading(head.title)}",
        "",
        facts,
        "",
        f"**{escape(head.verdict)}**",
        "",
        *([f"What it printed: {link(head.log, head.log)}", ""] if head.log else []),
        *table(("number", "value", "what it is"), rows),
        "",
        *(line for text in _beside(view) for line in (escape(text), "")),
        *(line for text in view.damage for line in (f"> **Damaged:** {escape(text)}", "")),
        *(line for text in head.warnings for line in (f"> **Unsteady:** {escape(text)}", "")),
        "Interactive: [report.html](report.html) · kernels: [kernels.md](kernels.md) · "
        "one page for everyone: [stakeholder_summary.md](stakeholder_summary.md)",
    ]


def _beside(view: ReportView) -> list[str]:
    """What the numbers are not: the part of a program they are of, and that nothing judged them."""
    note = view.headline.split.note if view.headline.split is not None else ""
    return [text for text in (note, view.unjudged) if text]


def _waterfall(view: WaterfallView, notes: Footnotes) -> list[str]:
    rows = [_bar_row(row, notes) for row in view.rows]
    lines = ["", f"## {escape(view.title)}: {escape(view.of_what)}", "", escape(view.summary), ""]
    lines += table(("step", "total", "added", "factor", "on one scale"), rows, right=("total", "added", "factor"))
    return lines + _bullets(view.notes)


def _bullets(notes: tuple[str, ...]) -> list[str]:
    """Notes below a table; without the empty line they would become rows of it."""
    return ["", *(f"- {escape(note)}" for note in notes)] if notes else []


def _bar_row(row: BarRow, notes: Footnotes) -> tuple[str, ...]:
    if row.missing is not None:
        return (escape(row.label), "unknown", "", "", escape(row.missing.text))
    left = round(row.left_pct / 100 * BAR_WIDTH)
    width = max(1, round(row.width_pct / 100 * BAR_WIDTH))
    bar = "·" * min(left, BAR_WIDTH - 1) + MARKS[row.kind] * min(width, BAR_WIDTH - min(left, BAR_WIDTH - 1))
    about = "≈ " if row.is_estimate else ""
    total = about + row.total + notes.mark(row.how, row.source)
    return (escape(row.label), total, row.added, row.factor, f"`{bar}`")


def _findings(findings: tuple[FindingView, ...]) -> list[str]:
    lines = ["", "## Findings, by potential saving", ""]
    if not findings:
        return [*lines, "No cause explains time worth saving in what was measured."]
    for finding in findings:
        gain = f", up to {finding.gain}" if finding.gain else ""
        each = f" ({finding.saves_each})" if finding.saves_each else ""
        million = f" · {finding.per_million}" if finding.per_million else ""
        lines += [f"### {finding.rank}. {escape(finding.title)}", ""]
        once = " · one-time cost" if finding.is_one_time else ""
        lines += [
            f"{escape(finding.saves)}{each}{gain}{once}{million} · confidence {finding.confidence} · "
            f"cause {code(finding.rule)}",
            "",
        ]
        lines += [f"- Also: {escape(title)}" for title in finding.also]
        lines += [f"- {escape(item.text)} ({code(item.source)})" for item in finding.evidence]
        more = f" ({link('documentation', finding.doc)})" if finding.doc else ""
        lines += [f"- **Fix:** {escape(finding.remedy)}{more}"]
        lines += [f"- Lower bound: {escape(finding.floor)}"] if finding.floor else []
        lines += [f"- Measured by `llm-perf optimize`: {escape(finding.measured)}"] if finding.measured else []
        lines += [f"- Caveat: {escape(finding.caveat)}"] if finding.caveat else []
        lines += [f"- What would refute it: {escape(finding.refutes)}"] if finding.refutes else []
        lines.append("")
    return lines


def _kernels(view: KernelsView, *, is_bare: bool) -> list[str]:
    lines = ["", "## Kernels", ""]
    if view.missing is not None:
        return [*lines, f"Unknown: {escape(view.missing.text)}."]
    lines += [] if view.ncu_source is None and is_bare else [escape(view.join), ""]
    lines += [] if view.place == WHOLE else [f"Times of {view.place}.", ""]
    lines += kernel_table(view, KERNELS_SHOWN, filled=is_bare)
    if len(view.rows) > KERNELS_SHOWN:
        lines += ["", f"{len(view.rows) - KERNELS_SHOWN} more in [kernels.md](kernels.md)."]
    return lines + _bullets(view.notes)


def kernel_table(view: KernelsView, count: int, *, filled: bool = False) -> list[str]:
    """The first kernels; a dash stands for what was not measured, and `filled` leaves columns of dashes out."""
    times = ("share", "prefill", "decode", "launches")
    header = ("#", "kernel", "class", *times, *(column.title for column in MEASURED))
    rows = _kernel_rows(view.rows[:count], view.totals_ms[0])
    if filled:
        kept = [i for i in range(len(header)) if any(row[i] != show_value(None, None) for row in rows)]
        header, rows = tuple(header[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]
    right = ("#", *times, *(column.title for column in MEASURED if column.unit))
    return table(header, rows, right=[name for name in right if name in header])


def _kernel_rows(rows: Sequence[KernelRowView], total_ms: float | None) -> list[tuple[str, ...]]:
    shares = [row.time_ms[0] / total_ms if row.time_ms[0] is not None and total_ms else None for row in rows]
    columns = (
        [str(rank) for rank in range(1, len(rows) + 1)],
        [code(row.short_name) for row in rows],
        [row.kernel_class for row in rows],
        column_texts(shares, "share"),
        column_texts([row.time_ms[1] for row in rows], "ms"),
        column_texts([row.time_ms[2] for row in rows], "ms"),
        [show_value(row.launches[0], "launches") for row in rows],
        *(column.texts(rows) for column in MEASURED),
    )
    return list(zip(*columns, strict=True))


def _modules(view: ModulesView) -> list[str]:
    lines = ["", "## Modules and operators", ""]
    if view.time_missing is not None:
        lines += [f"Time by module unknown: {escape(view.time_missing.text)}.", ""]
    for phase in view.phases:
        by = f", time by {escape(phase.time_by.replace('_', ' '))}" if phase.time_by else ""
        rows = [
            (
                row.group,
                *("—" if s is None else format_percent(s) for s in (row.time_share, row.flops_share, row.bytes_share)),
            )
            for row in phase.rows
        ]
        lines += [f"**{phase.phase.capitalize()}**, shares of the phase{by}", ""]
        shares = ("time", "FLOPs (predicted)", "bytes (predicted)")
        lines += [*table(("module", *shares), rows, right=shares), ""]
    lines += _operators(view) if view.operators or view.operators_missing else []
    return lines + (_double_entry(view) if view.double_entry or view.double_entry_missing else [])


def _operators(view: ModulesView) -> list[str]:
    if view.operators_missing is not None:
        return [f"Operators unknown: {escape(view.operators_missing.text)}.", ""]
    rows = [
        (
            code(op.name),
            f"{op.calls:,}",
            "—" if op.share is None else format_percent(op.share),
            "—" if op.self_cpu_ms is None else format_ms_in_column(op.self_cpu_ms),
            "—" if op.self_device_ms is None else format_ms_in_column(op.self_device_ms),
        )
        for op in view.operators[:10]
    ]
    numbers = ("calls", f"of {view.operators_of}", "CPU", "device")
    head = f"Operators by own {view.operators_by} in the profiled pass ({code(view.operators_source or '')}):"
    return [
        head,
        "",
        *table(("operator", *numbers), rows, right=numbers),
        "",
    ]


def _double_entry(view: ModulesView) -> list[str]:
    if view.double_entry_missing is not None:
        return [f"Cross-check of FLOPs unknown: {escape(view.double_entry_missing.text)}."]
    off = [entry for entry in view.double_entry if not entry.agrees]
    total = len(view.double_entry)
    lines = [
        f"Cross-check: {total - len(off)} of {total} entries agree within 1 % (closed form against operator count)."
    ]
    return lines + [
        f"- {entry.phase}, {entry.group}, {entry.quantity}: closed form {digits(entry.closed_form, 4)}, counted "
        f"{digits(entry.counted, 4)}: {escape(entry.explanation or 'not explained')}"
        for entry in off
    ]


def _memory(view: ReportView, notes: Footnotes) -> list[str]:
    memory = view.memory
    rows = [(escape(label), notes.cell(cell)) for label, cell in (*memory.rows, *memory.power)]
    lines = ["", "## Memory and power", "", *table(("what", "value"), rows), ""]
    lines += [f"- {escape(text)}" for text in memory.fits]
    return lines + ([f"- Power: {escape(memory.power_missing.text)}."] if memory.power_missing else [])


def _timeline(view: ReportView) -> list[str]:
    timeline = view.timeline
    lines = ["", "## Timeline", ""]
    if timeline.missing is not None:
        return [*lines, f"Unknown: {escape(timeline.missing.text)}."]
    events = sum(track.count for track in timeline.tracks)
    return [
        *lines,
        f"{events:,} events of {format_ms(timeline.length_ns / 1e6)} in [report.html](report.html), from "
        f"{code(timeline.source)}; the same in [trace.perfetto.json.gz](trace.perfetto.json.gz) for ui.perfetto.dev.",
    ]


def _section(view: SectionView, notes: Footnotes) -> list[str]:
    lines = ["", f"## {plain(view.title)}", ""]
    lines += [f"From stage {escape(view.stage)}.", ""] if view.stage else []
    for text in view.paragraphs:
        lines += [plain(text), ""]
    if view.metrics:
        numbers = [(code(name), notes.cell(cell)) for name, cell in view.metrics]
        lines += [*table(("number", "value"), numbers), ""]
    for shown in view.tables:
        header = [plain(column) for column in shown.columns]
        rows = [[plain(text) for text in row] for row in shown.rows]
        lines += [f"**{plain(shown.title)}**", ""] if shown.title else []
        lines += [*table(header, rows, right=[header[index] for index in shown.numeric]), ""]
        lines += [f"Source: {code(shown.source)}.", ""] if shown.source else []
    for picture in view.pictures:
        if picture.missing is not None:
            lines += [f"Picture unknown: {escape(picture.missing.text)}.", ""]
        else:
            lines += [f"!{link(picture.shows, picture.path)}", ""]
    return lines + [f"- {link(item.text, item.target)}" for item in view.links]


def _provenance(view: ProvenanceView) -> list[str]:
    rows = [(s.name, s.status, s.duration, escape(s.reason)) for s in view.stages]
    lines = [
        "",
        "## Provenance",
        "",
        f"Run {escape(view.run_id)}, {view.status}, started {escape(view.created_at)}"
        + (f", first verdict on the terminal after {view.first_verdict}." if view.first_verdict else "."),
        "",
    ]
    lines += [*table(("stage", "status", "time", "reason"), rows, right=("time",)), ""]
    lines += [f"- Not run: {', '.join(view.not_run)}."] if view.not_run else []
    lines += [f"- Slowdown, {escape(name)}: {text} ({escape(how)})." for name, text, how, _ in view.slowdowns]
    lines += [f"- Warning: {escape(text)}" for text in view.warnings]
    lines += [f"- {s.name}: {escape(note)}" for s in view.stages for note in s.notes]
    lines += [f"- Time of {s.name}: {escape(line)}" for s in view.stages for line in s.spent]
    if view.overrides:
        lines += [f"- Overrides: {' '.join(code(o) for o in view.overrides)}"]
    if view.versions:
        lines += ["", *table(("what", "version"), [(escape(a), escape(b)) for a, b in view.versions])]
    for stage in view.stages:
        if stage.metrics:
            metrics = [(code(k), format_metric(m), escape(m.how), escape(m.source or "")) for k, m in stage.metrics]
            lines += ["", f"<details><summary>All numbers of {escape(stage.name)}</summary>", ""]
            lines += [*table(("number", "value", "how", "source"), metrics), "", "</details>"]
    return lines
