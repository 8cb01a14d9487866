"""A comparison as text: for the terminal with the verdict first, and as markdown for a pull request."""

from collections.abc import Sequence

from llm_perf_opt.comparison.comparison import CompareDocument, MetricComparison, change_text, departs, unit_of
from llm_perf_opt.comparison.differences import DifferenceWaterfall, KernelChange, RowChange
from llm_perf_opt.comparison.gate import GateResult
from llm_perf_opt.comparison.statistics import NOT_OBSERVED, OBSERVED
from llm_perf_opt.core.markdown import code, escape, table
from llm_perf_opt.core.units import count_of, format_ms_in_column, format_quantity
from llm_perf_opt.system.terminal import terminal_table

KERNELS, ROWS, SETTINGS = 15, 8, 20
# Without -v the steps of a waterfall between base and candidate, and the settings.
SHORT_STEPS, SHORT_SETTINGS = 5, 5
METRIC_COLUMNS = ("metric", "base", "candidate", "change", "95 % interval", "verdict", "needed")
ROW_COLUMNS = ("n", "base", "candidate", "change", "each of them")
MARK = {"passed": "✅", "failed": "❌", "inconclusive": "⚠️"}
FORCED = "--force: configurations differ"


def render_terminal(found: CompareDocument, *, top: int | None = None) -> str:
    """Verdict first, then why; the tables of kernels, copies, ranges and idle time with `top`, at most that long."""
    lines = [f"{verdict_words(found).upper()}: {found.base.name} → {found.candidate.name}", found.sentence]
    lines += [f"compared: {found.what}"] if found.what else []
    lines += [f"FORCED, {FORCED}: {'; '.join(found.forced)}"] if found.forced else []
    lines += [f"gate {gate.condition}: {gate.status} ({gate_words(gate)})" for gate in found.gates]
    if found.metrics:
        columns, rows = metric_table(found.metrics)
        lines += ["", terminal_table(columns, rows, right=(1, 2, 3))]
        lines += [f"note: {note}" for note in value_notes(found.metrics)]
    for waterfall in found.waterfalls:
        steps = waterfall_cells(waterfall) if top else _short(waterfall_cells(waterfall))
        lines += [
            "",
            f"where it went: {waterfall.title}",
            terminal_table(("step", "ms"), steps, right=(1,), rule=False),
        ]
    changed = changed_kernels(found.kernels)
    if changed and top:
        rows_ = [kernel_cells(row) for row in changed[:top]]
        lines += ["", terminal_table(KERNEL_COLUMNS, rows_, right=(1, 2, 3, 4))]
        lines += [f"… {len(changed) - top} more kernels changed"] if len(changed) > top else []
    for name, table_rows in found.tables.items():
        moved = [row for row in table_rows if row.difference][:ROWS]
        if moved and top:
            cells = [row_cells(name, row) for row in moved]
            lines += ["", terminal_table((name, *ROW_COLUMNS), cells, right=(1, 2, 3, 4))]
    if found.settings:
        most = SETTINGS if top else SHORT_SETTINGS
        lines += ["", "what else changed:"]
        lines += [f"  {'! ' if change.matters else '  '}{change.text}" for change in found.settings[:most]]
        rest = len(found.settings) - most
        lines += [f"    … {rest} more"] if rest > 0 else []
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def has_tables(found: CompareDocument) -> bool:
    """Whether there is more to show with -v."""
    return bool(changed_kernels(found.kernels)) or any(row.difference for rows in found.tables.values() for row in rows)


def _short(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Base, the largest steps, which come first, and candidate."""
    left_out = len(cells) - 2 - SHORT_STEPS
    if left_out < 2:
        return list(cells)
    return [*cells[: 1 + SHORT_STEPS], (f"… {left_out} smaller steps", ""), cells[-1]]


def verdict_words(found: CompareDocument) -> str:
    """The verdict as it is shown: of one start each, that is part of it."""
    one_start = min(found.base.starts, found.candidate.starts) == 1
    return (
        f"{found.verdict}, one start each" if found.verdict in (OBSERVED, NOT_OBSERVED) and one_start else found.verdict
    )


def about_rows(found: CompareDocument) -> list[tuple[str, str, str]]:
    """What each side is: one row a fact, both sides."""
    sides = [{fact.label: fact.text for fact in side.about} for side in (found.base, found.candidate)]
    rows = [(label, sides[0].get(label, "—"), sides[1].get(label, "—")) for label in {**sides[0], **sides[1]}]
    passes = found.base.passes, found.candidate.passes
    starts = found.base.starts, found.candidate.starts
    rows += [("passes", str(passes[0]), str(passes[1]))] if any(passes) else []
    rows += [("starts", str(starts[0]), str(starts[1]))] if starts != passes else []
    return [("path", found.base.name, found.candidate.name), *rows]


def render_markdown(found: CompareDocument) -> str:
    """For a comment under a pull request; details are folded."""
    lines = [f"### llm-perf compare: {verdict_words(found)}", "", f"**{escape(found.sentence)}**", ""]
    lines += [f"Compared: {escape(found.what)}", ""] if found.what else []
    if found.forced:
        lines += [f"> ⚠️ **Forced**, {FORCED}: {escape('; '.join(found.forced))}", ""]
    if found.gates:
        rows = [(MARK[g.status], code(g.condition), g.status, escape(gate_words(g))) for g in found.gates]
        lines += [*table(("", "gate", "result", "why"), rows), ""]
    if found.metrics:
        columns, metrics = metric_table(found.metrics)
        cells = [[escape(cell) for cell in row] for row in metrics]
        lines += [*table(columns, cells, right=("base", "candidate", "change")), ""]
        lines += (
            [*(f"- {escape(note)}" for note in value_notes(found.metrics)), ""] if value_notes(found.metrics) else []
        )
    for waterfall in found.waterfalls:
        steps = [(escape(label), ms) for label, ms in waterfall_cells(waterfall)]
        lines += _folded(f"Where it went: {waterfall.title}", table(("step", "ms"), steps, right=("ms",)))
    changed = changed_kernels(found.kernels)
    if changed:
        kernels = [(code(cells[0]), *cells[1:]) for cells in map(kernel_cells, changed[:KERNELS])]
        right = KERNEL_COLUMNS[1:5]
        lines += _folded(f"{len(changed)} kernels changed", table(KERNEL_COLUMNS, kernels, right=right))
    for name, rows_of_table in found.tables.items():
        moved = [row_cells(name, row) for row in rows_of_table if row.difference][:ROWS]
        if moved:
            shown = [(code(cells[0]), *cells[1:]) for cells in moved]
            lines += _folded(
                f"{name.capitalize()} that changed", table((name, *ROW_COLUMNS), shown, right=ROW_COLUMNS[:4])
            )
    if found.settings:
        settings = [f"- {'**' if c.matters else ''}{escape(c.text)}{'**' if c.matters else ''}" for c in found.settings]
        lines += _folded(f"What else changed ({len(found.settings)})", settings)
    lines += [f"- {escape(note)}" for note in found.notes]
    about = [(escape(label), code(base), code(candidate)) for label, base, candidate in about_rows(found)]
    lines += ["", *_folded("What was compared", table(("", "base", "candidate"), about))]
    return "\n".join(lines) + "\n"


def metric_table(metrics: Sequence[MetricComparison]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows; the last one only where a row is inconclusive."""
    rows = [metric_cells(row) for row in metrics]
    count = len(METRIC_COLUMNS) - (not any(row[-1] for row in rows))
    return METRIC_COLUMNS[:count], [row[:count] for row in rows]


def metric_notes(metrics: Sequence[MetricComparison]) -> list[str]:
    """How the numbers were obtained, once for all that were obtained the same way."""
    found: dict[str, list[str]] = {}
    for row in metrics:
        how = f"{row.how}; base {count_of(row.base.n, 'value')}, candidate {count_of(row.candidate.n, 'value')}"
        found.setdefault(how, []).append(row.metric)
    return [f"{', '.join(names)}: {how}" for how, names in found.items()]


def value_notes(metrics: Sequence[MetricComparison]) -> list[str]:
    """Where base and candidate are not the plain medians, these."""
    return [
        f"{row.metric}: values of the estimator, which compares each sample with itself; the medians of all values are "
        f"{format_quantity(row.base.median, unit_of(row.metric))} and "
        f"{format_quantity(row.candidate.median, unit_of(row.metric))}"
        for row in metrics
        if departs(row)
    ]


def metric_cells(row: MetricComparison) -> tuple[str, ...]:
    unit = unit_of(row.metric)
    interval = "unknown" if row.low is None or row.high is None else f"{percent(row.low)} to {percent(row.high)}"
    interval += "" if row.knows_starts or row.low is None else " (one start)"
    more = "" if row.repeats_needed is None else f"about {row.repeats_needed} {row.repeats_unit}"
    values = [format_quantity(value, unit) for value in (row.base_value, row.candidate_value)]
    return (row.metric, *values, percent(row.ratio), interval, row.verdict, more)


KERNEL_COLUMNS = ("kernel", "launches", "base", "candidate", "change", "each launch")


def changed_kernels(kernels: Sequence[KernelChange]) -> list[KernelChange]:
    """Those that a reader looks for: anything but the same time and the same number of launches."""
    return [k for k in kernels if k.verdict != "same" or k.base_launches != k.candidate_launches]


def kernel_cells(row: KernelChange) -> tuple[str, ...]:
    counts = (
        f"{row.base_launches:,}"
        if row.base_launches == row.candidate_launches
        else f"{row.base_launches:,} → {row.candidate_launches:,}"
    )
    renamed = " (renamed)" if row.matched_by == "place" else ""
    return (
        row.name + renamed,
        counts,
        format_ms_in_column(row.base_ns / 1e6),
        format_ms_in_column(row.candidate_ns / 1e6),
        signed_ms(row.difference_ns / 1e6),
        row.verdict,
    )


def row_cells(table_name: str, row: RowChange) -> tuple[str, ...]:
    scale = 1.0 if table_name == "bounds" else 1e6
    values = ["—" if value is None else format_ms_in_column(value / scale) for value in (row.base, row.candidate)]
    verdict = "measured once" if row.samples == 1 and row.verdict == "inconclusive" else row.verdict
    counts = [f"{count:,}" for count in (row.base_count, row.candidate_count) if count is not None]
    shown = " → ".join(dict.fromkeys(counts)) or "—"
    return (row.name, shown, *values, signed_ms(row.difference / scale), verdict)


def waterfall_cells(waterfall: DifferenceWaterfall) -> list[tuple[str, str]]:
    return [
        ("base", f"{waterfall.base_ms:,.3f}"),
        *((step.label, f"{step.difference_ms:+,.3f}") for step in waterfall.steps),
        ("candidate", f"{waterfall.candidate_ms:,.3f}"),
    ]


def gate_words(gate: GateResult) -> str:
    if gate.measured is None or gate.low is None or gate.high is None:
        return gate.reason
    if "%" in gate.condition:
        return f"{percent(gate.measured)}, {percent(gate.low)} to {percent(gate.high)}: {gate.reason}"
    return f"{gate.measured:.4g}, {gate.low:.4g} to {gate.high:.4g}: {gate.reason}"


def percent(ratio: float) -> str:
    """A ratio as a change: +5.0 %."""
    return change_text(ratio)


def signed_ms(ms: float, *, places: int = 3) -> str:
    return f"{ms:+,.{places}f} ms" if ms else "0 ms"


def _folded(title: str, body: Sequence[str]) -> list[str]:
    return [f"<details><summary>{escape(title)}</summary>", "", *body, "", "</details>", ""]
