"""optimize.md of a server's settings, and what the terminal shows: the result, each flag, every configuration."""

import textwrap

from llm_perf_opt.core.markdown import code, escape, table
from llm_perf_opt.core.units import count_of, format_factor, format_quantity
from llm_perf_opt.optimize.server.server_document import (
    SERVER_UNITS,
    ConfigurationRow,
    FlagGain,
    OptimizeServerDocument,
    OptionRow,
    VerifiedGain,
)
from llm_perf_opt.system.terminal import terminal_table

WIDTH = 79
DASH = "—"
FLAG_COLUMNS = ("setting", "gain", "95 %", "rounds", "verdict")
FLAG_RIGHT = ("gain", "rounds")
ROW_COLUMNS = ("configuration", "result", "objective", "over start", "95 %", "TTFT", "TPOT", "answers", "starts")
ROW_RIGHT = ("objective", "over start", "TTFT", "TPOT", "starts")
SHOWN = ("failed", "wrong", "over a limit")
LEGEND = (
    "Gains with an interval are of interleaved rounds of starts; of a configuration that was started once only the "
    "ratio to the baseline is shown, which is not a claim."
)


def render_server_terminal(found: OptimizeServerDocument) -> str:
    """For 80 columns."""
    lines = textwrap.wrap(found.sentence, WIDTH)
    if found.flags:
        lines += ["", terminal_table(FLAG_COLUMNS, [flag_cells(one) for one in found.flags], right=(1, 3))]
    cells = [row_cells(row, found.objective) for row in found.configurations]
    if cells:
        columns = ("configuration", "result", "objective", "over start", "starts")
        rows = [(c[0], c[1], c[2], c[3], c[8]) for c in cells]
        lines += ["", terminal_table(columns, rows, right=(2, 3, 4))]
    for row in found.configurations:
        if row.status in SHOWN:
            lines += textwrap.wrap(f"{row.name}: {row.reason}", WIDTH, subsequent_indent="  ")
    left_out = [one for one in found.options if not one.tried]
    if left_out:
        lines += ["", "not tried:"]
        for one in left_out:
            lines += textwrap.wrap(f"{one.flag}: {one.left_out}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    if found.recommendation is not None:
        lines += ["", "to start:", f"  {found.recommendation.command}"]
    for note in found.notes:
        lines += textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def render_server_markdown(found: OptimizeServerDocument) -> str:
    """The whole of it for a pull request or a colleague."""
    lines = [f"# Tuned: {escape(found.engine)}, {escape(found.model or 'unknown model')}", ""]
    lines += [f"**{escape(found.sentence)}**", "", escape(facts_text(found)), ""]
    if found.flags:
        rows = [[escape(cell) for cell in flag_cells(one)] for one in found.flags]
        lines += ["## What each setting brings", "", *table(FLAG_COLUMNS, rows, right=FLAG_RIGHT), ""]
        lines += ["The best over the best without the setting, started interleaved.", ""]
    if found.recommendation is not None:
        lines += _recommended(found)
    if found.configurations:
        rows = [[escape(cell) for cell in row_cells(row, found.objective)] for row in found.configurations]
        lines += ["## Configurations", "", *table(ROW_COLUMNS, rows, right=ROW_RIGHT), "", LEGEND, ""]
        lines += [f"- {code(row.name)}: {escape(text)}" for row in found.configurations if (text := details(row))]
        lines += [""]
    if found.observations:
        lines += ["## What the load shows", "", *(f"- {escape(one.text)}" for one in found.observations), ""]
    if found.options:
        lines += ["## Options", "", *(f"- {code(one.flag)}: {escape(option_text(one))}" for one in found.options), ""]
    lines += [f"- {escape(note)}" for note in found.notes]
    return "\n".join(lines).rstrip() + "\n"


def facts_text(found: OptimizeServerDocument) -> str:
    """Objective, limits, and what the search took."""
    slo = f" under {found.slo}" if found.slo else ""
    limits = f", limits {', '.join(found.constraints)}" if found.constraints else ""
    resumed = f", {found.resumed} of them before it was interrupted" if found.resumed else ""
    return (
        f"Objective {found.objective}{slo}{limits}. {count_of(found.starts, 'start')}{resumed} for "
        f"{count_of(found.grid, 'combination')}; "
        f"{found.spent_s:.0f} of {found.budget_s:.0f} s used, search {found.status}."
    )


def flag_cells(one: FlagGain) -> tuple[str, ...]:
    verdict = f"{one.verdict}: {one.why}" if one.why else one.verdict
    return (
        " ".join(one.words),
        gain_cell(one.gain),
        interval_cell(one.gain),
        DASH if one.gain is None else str(one.gain.rounds),
        verdict,
    )


def row_cells(row: ConfigurationRow, objective: str) -> tuple[str, ...]:
    value = row.metrics.get(objective)
    over = gain_cell(row.gain) if row.gain is not None else DASH if row.ratio is None else f"({row.ratio:.2f})"
    return (
        row.name,
        row.status,
        DASH if value is None else format_quantity(value, SERVER_UNITS[objective]),
        over,
        interval_cell(row.gain),
        *(format_quantity(row.metrics[name], "ms") if name in row.metrics else DASH for name in ("ttft_ms", "tpot_ms")),
        DASH if row.check is None else row.check.verdict,
        str(row.starts),
    )


def details(row: ConfigurationRow) -> str:
    """What no column has room for."""
    parts = [row.reason] if row.reason else []
    parts += [" ".join(row.words)] if row.words else []
    parts += [row.level] if row.level else []
    # Wrong outputs are the reason already.
    is_said = bool(row.reason) and row.check is not None and row.check.verdict == "different"
    parts += [f"outputs: {row.check.text}"] if row.check is not None and not is_said else []
    parts += [f"ready after {row.start_s:.0f} s"] if row.start_s is not None else []
    parts += [row.gain.how] if row.gain is not None else []
    return "; ".join(parts)


def option_text(one: OptionRow) -> str:
    if not one.tried:
        return f"not tried: {one.left_out}"
    because = f" because of {', '.join(one.because)}" if one.because else ""
    return f"{', '.join(one.tried)}{because}"


def gain_cell(gain: VerifiedGain | None) -> str:
    return DASH if gain is None else format_factor(gain.gain)


def interval_cell(gain: VerifiedGain | None) -> str:
    if gain is None:
        return DASH
    return "unknown" if gain.low is None or gain.high is None else f"{gain.low:.2f} to {gain.high:.2f}×"


def _recommended(found: OptimizeServerDocument) -> list[str]:
    done = found.recommendation
    assert done is not None
    lossy = " Answers are within the stated limits, not equal." if done.is_lossy else ""
    lines = ["## What to start", "", f"{code(done.name)}.{lossy}", "", "```", done.command, "```", ""]
    lines += ["With docker compose (`compose.yaml`):", "", "```yaml", done.compose.rstrip(), "```", ""]
    lines += ["In Kubernetes (`kubernetes.yaml`):", "", "```yaml", done.kubernetes.rstrip(), "```", ""]
    return lines
