"""A server's start as a section of the report, and as lines for the terminal."""

from llm_perf_opt.core.sections import Link, Section, SectionTable
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.serving.startup.startup_records import StartupDocument

TITLE = "Time until ready"
LINE_PARTS = 4
LONGEST_WHERE = 90


def startup_sections(document: StartupDocument, *, source: str) -> tuple[Section, ...]:
    """Time by purpose, and memory by purpose where the log or the model's files say something."""
    tables = [table for table in (_times(document, source), _memory(document, source)) if table.rows]
    texts = [*startup_lines(document)]
    if document.parts:
        texts.append(
            f"Stacks of the whole process tree were sampled ({document.sampler}). At each moment the process counts "
            "for which the others wait, and its stack says what for."
        )
    return (
        Section(
            title=TITLE,
            paragraphs=tuple(texts),
            tables=tuple(tables),
            links=(Link(text="the critical path, stretch by stretch", target=source),),
        ),
    )


def startup_lines(document: StartupDocument) -> list[str]:
    """`vllm was ready after 61.2 s: imports 32.1 s, compile 20.0 s, …; 98.7 % of the time is explained.`"""
    ready = f"{document.engine} was ready after {document.ready_s:.1f} s"
    if document.attributed is None:
        return [f"{ready}.", *document.notes]
    shown = ", ".join(f"{part.purpose} {part.time_s:.1f} s" for part in document.parts[:LINE_PARTS])
    return [f"{ready}: {shown}; {100 * document.attributed:.1f} % of the time is explained.", *document.notes]


def _times(document: StartupDocument, source: str) -> SectionTable:
    rows = tuple(
        (
            part.purpose,
            part.time_s,
            100 * part.time_s / document.ready_s,
            ", ".join(part.processes[:3]),
            part.where[-LONGEST_WHERE:],
        )
        for part in document.parts
    )
    columns = ("purpose", "seconds", "% of the time", "processes", "most frequent function")
    return SectionTable(title="Time by purpose", columns=columns, rows=rows, source=source)


def _memory(document: StartupDocument, source: str) -> SectionTable:
    rows = tuple(
        (
            row.purpose,
            None if row.measured_bytes is None else format_bytes(row.measured_bytes),
            None if row.predicted_bytes is None else format_bytes(row.predicted_bytes),
            row.how,
        )
        for row in document.memory
    )
    columns = ("purpose", "measured (log)", "predicted", "predicted from")
    return SectionTable(title="Memory by purpose", columns=columns, rows=rows, source=source)
