"""The result of `llm-perf bisect` as text: the answer first, then what moved, then every point."""

from llm_perf_opt.comparison.bisect.bisect_document import (
    BisectDocument,
    MovedPart,
    moved_words,
    percent,
    probability_text,
)
from llm_perf_opt.core.markdown import code, escape, table
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.system.terminal import terminal_table

COLUMNS = ("point", "state", "change", "95 % interval", "pairs", "probability")
MOVED_COLUMNS = ("what", "before", "after", "change")
# Points that were neither measured nor likely are counted.
SHOWN_PROBABILITY = 0.001
NAMED = 3


def render_terminal(found: BisectDocument) -> str:
    """For the terminal."""
    lines = [f"{found.outcome.upper()}: {found.sentence}", *_facts(found)]
    if found.neighbours is not None and found.neighbours.moved:
        rows = [_moved(part) for part in found.neighbours.moved]
        lines += ["", terminal_table(MOVED_COLUMNS, rows, right=(1, 2, 3))]
    lines += ["", terminal_table(COLUMNS, _points(found), right=(2, 4, 5))]
    return "\n".join([*lines, *(f"note: {note}" for note in _notes(found))])


def render_markdown(found: BisectDocument) -> str:
    """For an issue or a pull request."""
    lines = [f"### llm-perf bisect: {found.outcome}", "", f"**{escape(found.sentence)}**", ""]
    lines += [*(f"- {escape(fact)}" for fact in _facts(found)), ""]
    if found.command:
        lines += [f"Program: {code(' '.join(found.command))}", ""]
    if found.neighbours is not None and found.neighbours.moved:
        rows = [(code(part.label), *_moved(part)[1:]) for part in found.neighbours.moved]
        lines += [*table(MOVED_COLUMNS, rows, right=MOVED_COLUMNS[1:]), ""]
    rows_ = [(escape(cells[0]), *cells[1:]) for cells in _points(found)]
    lines += [*table(COLUMNS, rows_, right=("change", "pairs", "probability")), ""]
    return "\n".join([*lines, *(f"- {escape(note)}" for note in _notes(found))]) + "\n"


def _facts(found: BisectDocument) -> list[str]:
    facts = []
    near = found.neighbours
    if near is not None and near.moved:
        facts.append(f"largest changes: {', '.join(moved_words(part) for part in near.moved[:NAMED])}")
    if near is not None and near.files:
        facts.append(f"files changed: {', '.join(near.files)}")
    facts.append(f"{found.comparisons} comparisons, {found.pairs} pairs of runs")
    if found.control is not None:
        facts.append(
            f"control: equal runs differ by {100 * found.control.spread:.1f} % (standard deviation of a pair's ratio); "
            f"changes from {100 * found.control.detectable:.1f} % on can be found"
        )
    return facts


def _notes(found: BisectDocument) -> list[str]:
    near = () if found.neighbours is None else found.neighbours.notes
    page = None if found.neighbours is None else found.neighbours.comparison
    return [*found.notes, *near, *([f"the neighbours compared: {page}"] if page else [])]


def _points(found: BisectDocument) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, point in enumerate(found.points):
        likely = (point.probability or 0.0) >= SHOWN_PROBABILITY
        if point.state == "untested" and not likely:
            continue
        mark = "→ " if number in found.culprits else ""
        interval = "" if point.low is None or point.high is None else f"{percent(point.low)} to {percent(point.high)}"
        rows.append(
            (
                f"{mark}{point.label} {point.title}".strip(),
                point.state,
                "" if point.change is None else percent(point.change),
                interval,
                f"{point.pairs:,}" if point.pairs else "",
                probability_text(point.probability or 0.0) if likely else "",
            )
        )
    return rows


def _moved(part: MovedPart) -> tuple[str, ...]:
    values = ["—" if ms is None else format_quantity(ms, "ms") for ms in (part.base_ms, part.candidate_ms)]
    sign = "+" if part.difference_ms > 0 else "−"
    return (part.label, *values, f"{sign}{format_quantity(abs(part.difference_ms), 'ms')}")
