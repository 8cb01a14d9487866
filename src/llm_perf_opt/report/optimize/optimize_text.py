"""optimize.md, and what the terminal shows: the result first, then every experiment with what it promised and gave."""

import textwrap

from llm_perf_opt.core.markdown import code, escape, table
from llm_perf_opt.core.units import digits, format_bytes, format_factor, format_quantity
from llm_perf_opt.optimize.experiment_plan import ExperimentPlan
from llm_perf_opt.optimize.optimize_document import (
    UNITS,
    ExperimentRow,
    MetricChange,
    OptimizeDocument,
    PathStep,
    RuleCalibration,
)
from llm_perf_opt.system.terminal import terminal_table

WIDTH = 79
LEFT_SHOWN = 3
# A result that is reported of the one it was measured alongside, where that is not the start the gains are over.
BESIDE = {"slower": "than", "no gain": "over"}
START = "start"
COLUMNS = ("experiment", "result", "at most", "gain", "95 %", "outputs", "memory", "compile", "break-even")
RIGHT = ("at most", "gain", "memory", "compile", "break-even")
DASH = "—"
CALIBRATION_COLUMNS = ("rule", "experiments", "held", "exceeded", "within the noise", "worst")
DEFECT = "a gain above the predicted upper bound: a defect of the rule"


def render_terminal(found: OptimizeDocument) -> str:
    """For 80 columns."""
    lines = textwrap.wrap(found.sentence, WIDTH)
    if found.path:
        rows = [path_cells(step, found.objective) for step in found.path]
        lines += ["", terminal_table(("step", found.objective, "gain", "95 %"), rows, right=(1, 2))]
    tried = [row for row in found.experiments if row.status != "not tried"]
    if tried:
        cells = [row_cells(row, found.objective) for row in tried]
        rows = [(c[0], c[1], c[2], c[3], c[5]) for c in cells]
        header = ("experiment", "result", "at most", "gain", "outputs")
        lines += ["", terminal_table(header, rows, right=(2, 3))]
    for row in tried:
        if row.status in ("failed", "wrong", "over a limit"):
            lines += textwrap.wrap(f"{row.name}: {row.reason}", WIDTH, subsequent_indent="  ")
    passed = [row for row in found.experiments if row.status == "not tried"]
    if passed:
        lines += ["", "not tried:"]
        for row in passed:
            lines += textwrap.wrap(f"{row.name}: {row.reason}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    lines += [""] if found.distance or defects(found) else []
    lines += textwrap.wrap(distance_words(found), WIDTH) if found.distance else []
    for rule in defects(found):
        lines += textwrap.wrap(f"{rule.rule}: {rule.exceeded} of {rule.experiments} exceeded, {DEFECT}", WIDTH)
    for text in found.left[:LEFT_SHOWN]:
        lines += textwrap.wrap(f"left: {text}", WIDTH, subsequent_indent="  ")
    if found.recommendation is not None:
        lines += ["", "to set:", *(f"  {word}" for word in set_words(found))]
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    return "\n".join(lines)


def render_markdown(found: OptimizeDocument) -> str:
    """The whole of it for a pull request or a colleague."""
    lines = [f"# Optimised: {escape(found.model)}", "", f"**{escape(found.sentence)}**", ""]
    device = found.device or "an unknown device"
    limits = f", under {', '.join(code(c) for c in found.constraints)}" if found.constraints else ""
    lines += [
        f"Objective {code(found.objective)}{limits}, on {escape(device)}; {found.spent_s:.0f} of {found.budget_s:.0f} "
        f"s used, search {found.status}.",
        "",
    ]
    if found.path:
        rows = [[escape(cell) for cell in path_cells(step, found.objective)] for step in found.path]
        lines += ["## From baseline to best", "", *table(("step", found.objective, "gain", "95 %"), rows), ""]
        if found.gain is not None and not found.gain_is_direct:
            lines += ["The total is the product of the steps; baseline and best were not measured side by side.", ""]
    tried = [row for row in found.experiments if row.status != "not tried"]
    if tried:
        cells = [[escape(cell) for cell in row_cells(row, found.objective)] for row in tried]
        lines += ["## Experiments", "", *table(COLUMNS, cells, right=RIGHT), ""]
        lines += [f"- {code(row.name)} against {row.against}: {escape(details(row))}" for row in tried]
        lines += [""]
    passed = [row for row in found.experiments if row.status == "not tried"]
    if passed:
        lines += ["## Not tried", "", *(f"- {code(row.name)}: {escape(row.reason)}" for row in passed), ""]
    if found.recommendation is not None:
        lines += _recommended(found)
    lines += ["## How far from the limit", "", escape(distance_words(found)), ""]
    lines += [*(f"- {escape(text)}" for text in found.left), ""] if found.left else []
    if found.calibration:
        rows = [[escape(cell) for cell in calibration_cells(rule)] for rule in found.calibration]
        lines += ["## Did the rules' bounds hold?", "", *table(CALIBRATION_COLUMNS, rows), ""]
        lines += [f"- **{escape(rule.rule)}**: {DEFECT}" for rule in defects(found)]
        lines += [""] if defects(found) else []
    lines += [f"- {escape(note)}" for note in found.notes]
    return "\n".join(lines).rstrip() + "\n"


def render_plan(plan: ExperimentPlan, *, budget_s: float) -> str:
    """What would be tried, for `--dry-run`."""
    spent = 0.0
    rows = []
    for candidate in plan.candidates:
        spent += candidate.cost_s
        bound = candidate.bound
        rows.append(
            (
                candidate.name,
                DASH if bound is None else "no limit" if bound.gain is None else format_factor(bound.gain),
                f"{candidate.cost_s:.0f} s",
                "yes" if spent <= budget_s else "over budget",
                ", ".join(bound.rules) if bound is not None else "given",
            )
        )
    header = ("experiment", "at most", "costs about", "fits", "named by")
    lines = [
        f"objective {plan.objective}; single fixes first, the cheapest first, then combinations of what helped",
        "",
    ]
    lines += [terminal_table(header, rows, right=(1, 2))] if rows else ["nothing to try: no finding names a fix"]
    for candidate in plan.candidates:
        words = " ".join((*candidate.overrides, *(f"{k}={v}" for k, v in candidate.environment.items())))
        lines += textwrap.wrap(f"{candidate.name}: {words}", WIDTH, subsequent_indent="  ")
    for refused in plan.refused:
        lines += textwrap.wrap(f"not {refused.remedy.id}: {refused.why}", WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def path_cells(step: PathStep, objective: str) -> tuple[str, ...]:
    gain = DASH if step.gain is None else format_factor(step.gain)
    known = DASH if step.gain is None else interval(step.low, step.high)
    return (step.name, format_quantity(step.value, UNITS[objective]), gain, known)


def row_cells(row: ExperimentRow, objective: str) -> tuple[str, ...]:
    known = row.total_interval(objective)
    return (
        row.name,
        f"{row.status} {BESIDE[row.status]} {row.against}"
        if row.status in BESIDE and row.against != START
        else row.status,
        DASH if row.bound is None else "no limit" if row.bound.gain is None else format_factor(row.bound.gain),
        DASH if row.total_gain is None else format_factor(row.total_gain),
        DASH if row.change(objective) is None else interval(*(known or (None, None))),
        DASH if row.check is None else row.check.verdict,
        DASH if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
        DASH if row.compile_s is None else f"{row.compile_s:.1f} s",
        DASH if row.break_even_tokens is None else f"{row.break_even_tokens:,.0f} tokens",
    )


def details(row: ExperimentRow) -> str:
    return "; ".join(detail_parts(row))


def detail_parts(row: ExperimentRow) -> list[str]:
    """Everything about one experiment that no column has room for."""
    parts = [row.reason, *(change_words(change) for change in row.changes)]
    if row.bound is not None:
        held = "" if row.bound_held is None else f", {row.bound_held}"
        parts.append(f"bound: {row.bound.how}{held}")
    if row.check is not None:
        parts.append(f"outputs: {row.check.text}" + (f" (allowed: {row.check.limits})" if row.check.limits else ""))
    parts += [row.how] if row.how else []
    return [part for part in parts if part]


def change_words(change: MetricChange) -> str:
    before, after = (format_quantity(value, change.unit) for value in (change.before, change.after))
    return f"{change.metric} {before} → {after} ({format_factor(change.gain)})"


def calibration_cells(rule: RuleCalibration) -> tuple[str, ...]:
    return (
        rule.rule,
        str(rule.experiments),
        str(rule.held),
        str(rule.exceeded),
        str(rule.within_noise),
        rule.worst or DASH,
    )


def defects(found: OptimizeDocument) -> list[RuleCalibration]:
    return [rule for rule in found.calibration if rule.exceeded]


def distance_words(found: OptimizeDocument) -> str:
    far = found.distance
    if far is None:
        return "What the hardware allows is not known for this objective."
    return (
        f"{digits(far.value, 4)} {far.unit} is {format_factor(far.value / far.bound)} the bound of "
        f"{digits(far.bound, 3)} {far.unit} ({far.how})."
    )


def set_words(found: OptimizeDocument) -> list[str]:
    done = found.recommendation
    if done is None:
        return []
    return [*done.overrides, *(f"{key}={value} (environment)" for key, value in done.environment.items())]


def interval(low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{low:.2f} to {high:.2f}×"


def _recommended(found: OptimizeDocument) -> list[str]:
    done = found.recommendation
    assert done is not None
    lossy = " Outputs are within the stated limits, not equal." if done.is_lossy else ""
    lines = ["## What to set", "", f"{', '.join(code(word) for word in set_words(found))}.{lossy}", ""]
    where = "As a command:" if done.file is None else f"As an experiment, in {code(done.file)}:"
    lines += [where, "", "```", done.command, "```", ""]
    if done.code:
        lines += ["In your own program:", "", "```python", done.code.rstrip(), "```", ""]
    return lines
