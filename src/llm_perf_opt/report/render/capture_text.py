"""The analysis of a capture for a terminal: what was found first, then the tables it was found in."""

import re
from collections.abc import Sequence

from msgspec import UNSET
from rich.text import Text

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.operators import OperatorRow
from llm_perf_opt.capture.readers.kinds import SUMMARY
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.core.sections import Section, table_texts
from llm_perf_opt.core.units import count_of, format_factor, format_ms, format_percent, or_dash
from llm_perf_opt.diagnosis.diagnose import UNDER_PROFILER, WHOLE
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, ShownTables
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.report.sections.capture_detail import capture_sections
from llm_perf_opt.report.view.captured import EDGES
from llm_perf_opt.report.view.ledger_view import ledger_section
from llm_perf_opt.system.terminal import number_columns, printable, table_text

NAME_WIDTH = 60
# Rows of a table of details, of which there are many: a third of those of the others, but at least this many.
FEWEST = 3
# Notes say what was left out: more of them than rows of a table are shown.
MOST_NOTES = 15


# Findings and notes of the short answer.
SHORT = 3


def render_answer(analysis: CaptureAnalysis, *, top: int, next_steps: Sequence[str]) -> Text:
    """The verdict, the first findings with what to do, and the commands to continue with."""
    if analysis.diagnosis is UNSET or not _is_timed(analysis):
        return render_analysis(analysis, top=top)
    lines = [Text(printable(analysis.diagnosis.verdict.text), style="bold"), _gpu(analysis)]
    for rank, finding in enumerate(analysis.findings[:SHORT], start=1):
        lines.append(Text.assemble(f"  {rank}. ", *_headline(finding)))
        lines += [Text(f"     {_bare(evidence)}") for evidence in finding.evidence[:1]]
        lines.append(Text.assemble("     ", ("fix: ", "cyan"), _bare(finding.remedy)))
    if len(analysis.findings) > SHORT:
        lines.append(Text(f"  … {len(analysis.findings) - SHORT} more", style="dim"))
    lines += [Text(printable(f"  note: {note}"), style="yellow") for note in analysis.notes[:SHORT]]
    if len(analysis.notes) > SHORT:
        lines.append(Text(f"  … {count_of(len(analysis.notes) - SHORT, 'more note')}", style="dim"))
    lines += [Text.assemble(("  next: ", "bold"), printable(step)) for step in next_steps]
    return Text("\n").join(line for line in lines if line)


def render_analysis(analysis: CaptureAnalysis, *, top: int) -> Text:
    """All that a reader needs, the answer first: verdict, findings, time ledger, then ranges, kernels and the rest."""
    ledger = ledger_section(None if analysis.diagnosis is UNSET else analysis.diagnosis)
    parts = [_findings(analysis, top), _gpu(analysis)]
    parts += [] if ledger is None else [_section(ledger, top)]
    parts += [_sources(analysis, top), _ranges(analysis, top)]
    parts.append(_kernels(analysis, top))
    if analysis.operators is not UNSET:
        parts.append(_operators(analysis.operators, top))
    if analysis.ncu is not UNSET:
        parts.append(_ncu(analysis.ncu, top))
    parts += [_section(section, min(top, max(FEWEST, top // 3))) for section in capture_sections(analysis)]
    parts.append(_notes(analysis, max(top, MOST_NOTES)))
    return Text("\n\n").join(part for part in parts if part)


def _sources(analysis: CaptureAnalysis, top: int) -> Text:
    rows = [
        (
            s.path,
            s.producer or s.kind,
            s.schema or "–",
            f"{s.kernel_count:,}",
            _ms(s.kernel_ns),
            _ms(s.gpu_busy_ns),
        )
        for s in analysis.sources[:top]
    ]
    if not rows:
        return Text()
    head = ("file", "made by", "schema", "kernels", "kernel ms", "busy ms")
    return _aligned(head, rows) + _more(len(analysis.sources), top, "files")


def _gpu(analysis: CaptureAnalysis) -> Text:
    gpu, idle = analysis.gpu, analysis.gpu.idle
    if not gpu.span_ns or gpu.busy_ns is None or idle is None:
        return Text()
    busy = f"busy {_time(gpu.busy_ns)} of {_time(gpu.span_ns)} ({format_percent(gpu.busy_ns / gpu.span_ns)})"
    if analysis.ranks is not UNSET and len(analysis.ranks.rows) > 1:
        busy += f", added up over {len(analysis.ranks.rows)} processes, each from its first GPU work to its last"
    if analysis.host_edges is not UNSET:
        around = ", ".join(f"{_time(edge.length_ns)} {EDGES[edge.when]}" for edge in analysis.host_edges)
        busy += f" from its first work to its last, and the host works without it for {around}"
    if analysis.after_setup is not UNSET:
        rest = analysis.after_setup
        busy += (
            f"; without start-up {_time(rest.busy_ns)} of {_time(rest.span_ns)} "
            f"({format_percent(rest.busy_ns / max(rest.span_ns, 1))})"
        )
    return _plain(
        f"GPU {gpu.name or '(not named in the capture)'}: {busy}. Idle {_time(gpu.idle_ns or 0)}: "
        f"{_time(idle.waiting_for_host_ns)} waiting for the host, {_time(idle.between_kernels_ns)} between kernels, "
        f"{_time(idle.waiting_for_copy_or_sync_ns)} waiting for copies or synchronisation, "
        f"{_time(idle.unattributed_ns)} unattributed."
    )


def _time(time_ns: int) -> str:
    return format_ms(time_ns / 1e6)


def _is_timed(analysis: CaptureAnalysis) -> bool:
    """Whether there is a timeline: neither ncu files nor a summary of kernels have one."""
    return any(source.kind != SUMMARY for source in analysis.sources)


def _ranges(analysis: CaptureAnalysis, top: int) -> Text:
    rows = [
        (
            r.name[:NAME_WIDTH],
            f"{r.instances:,}",
            _ms(r.wall_ns),
            f"{r.kernel_count:,}",
            _ms(r.gpu_busy_ns),
            _ms(r.gpu_idle_ns),
            _ms(r.idle.waiting_for_host_ns if r.idle else None),
            _ms(r.idle.between_kernels_ns if r.idle else None),
            _ms(r.idle.waiting_for_copy_or_sync_ns if r.idle else None),
            "–" if r.last.gpu_busy_ns is None else f"{r.last.gpu_busy_ns / 1e6:.3f} of {r.last.wall_ns / 1e6:.2f}",
        )
        for r in analysis.ranges[:top]
    ]
    head = (
        "range", "n", "wall ms", "kernels", "busy ms", "idle ms", "host ms", "between ms", "copy/sync ms",
        "last: busy ms",
    )  # fmt: skip
    if not rows:
        return Text("no NVTX or user ranges in the capture" if _is_timed(analysis) else "")
    table = _aligned(head, rows) + _more(len(analysis.ranges), top, "ranges")
    if analysis.shown.of_scope is not None:
        table += Text("\nof the whole capture: first instances may hold start-up")
    summed = [row for row in analysis.ranges[:top] if row.processes > 1]
    if not summed:
        return table
    said = f"\nsums over {max(row.processes for row in summed)} processes"
    if len(analysis.sources) > 1:
        return table + _plain(f"{said} in {len(analysis.sources)} captures")
    elapsed = ", ".join(f"{row.name[:NAME_WIDTH]} {_ms(row.elapsed_ns)} ms" for row in summed[:FEWEST])
    return table + _plain(f"{said}; elapsed time with the range open: {elapsed}")


def _of_scope(shown: ShownTables) -> Text:
    """What a table is of, where that is not all of the capture."""
    return Text("" if shown.of_scope is None else f"\nof {shown.of_scope}")


def _kernels(analysis: CaptureAnalysis, top: int) -> Text:
    shown = analysis.shown
    rows = [
        (
            f"{k.time_pct:.1f}",
            _ms(k.total_ns),
            f"{k.instances:,}",
            f"{k.avg_ns / 1e3:.1f}",
            k.kernel_class,
            k.short_name,
        )
        for k in shown.kernels[:top]
    ]
    if not rows:
        return Text()
    table = _aligned(("%", "total ms", "n", "avg µs", "class", "kernel"), rows)
    table += _more(len(shown.kernels), top, "kernels") + _of_scope(shown)
    classes = _classes(shown.kernels)
    if len(classes) < 2:
        return table
    return table + _plain("\nby class: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in classes))


def _classes(kernels: Sequence[KernelRow]) -> list[tuple[str, float]]:
    """Classes with their share of the kernel time, the largest first."""
    total = sum(row.total_ns for row in kernels)
    classes: dict[str, int] = {}
    for row in kernels:
        classes[row.kernel_class] = classes.get(row.kernel_class, 0) + row.total_ns
    ranked = sorted(classes.items(), key=lambda item: -item[1])
    return [(name, ns / total if total else 0.0) for name, ns in ranked]


def _operators(operators: Sequence[OperatorRow], top: int) -> Text:
    rows = [
        (
            o.name[:NAME_WIDTH],
            f"{o.calls:,}",
            _ms(o.self_cpu_ns),
            _ms(o.total_cpu_ns),
            _ms(o.self_device_ns),
            _ms(o.total_device_ns),
        )
        for o in operators[:top]
    ]
    if not rows:
        return Text()
    table = _aligned(("operator", "calls", "self CPU ms", "CPU ms", "self GPU ms", "GPU ms"), rows)
    return table + _more(len(operators), top, "operators")


def _ncu(ncu: NcuAnalysis, top: int) -> Text:
    """Kernels as ncu measured them."""

    def number(value: float | None, unit: float = 1.0) -> str:
        return or_dash(value, "{:,.1f}", unit=unit, dash="–")

    if not ncu.kernels:
        return Text("ncu: no kernel in the files given")
    joined = any(k.nsys_time_pct is not None for k in ncu.kernels)
    rows = [
        (
            str(k.launches),
            number(k.duration_ns, 1e3),
            k.bound,
            number(k.compute_sol_pct),
            number(k.memory_sol_pct),
            number(k.occupancy_pct),
            *((number(k.nsys_time_pct),) if joined else ()),
            k.short,
        )
        for k in ncu.kernels[:top]
    ]
    measured = ("launches", "mean µs", "bound", "compute %", "memory %", "occupancy %")
    head = (*measured, *(("of timeline %",) if joined else ()), "kernel")
    table = _aligned(head, rows) + _more(len(ncu.kernels), top, "kernels")
    parts = [table, *(_plain(line) for line in _advice(ncu, top))]
    return Text("\n").join(parts)


def _advice(ncu: NcuAnalysis, top: int) -> list[str]:
    """What ncu itself advises most for the heaviest kernels."""
    advised = [(kernel.short, kernel.advice[0]) for kernel in ncu.kernels[:top] if kernel.advice][:FEWEST]
    return [f"ncu on {name}: {' '.join(advice.text.split())}" for name, advice in advised]


def _section(section: Section, top: int) -> Text:
    """A section of the report as text, its tables cut."""
    parts = [_title(section.title), *(_plain(text) for text in section.paragraphs)]
    for table in section.tables:
        rows = [[text[:NAME_WIDTH] for text in row] for row in table_texts(table.rows[:top])]
        parts += [_plain(table.title)] if table.title else []
        parts.append(_aligned(table.columns, rows) + _more(len(table.rows), top, "rows"))
    return Text("\n").join(parts)


def _findings(analysis: CaptureAnalysis, top: int) -> Text:
    """The verdict, and what it rests on: the steady state before one-time costs."""
    if analysis.diagnosis is UNSET:
        return Text()
    verdict = Text(printable(analysis.diagnosis.verdict.text), style="bold")
    if not analysis.findings:
        return verdict
    lines = [verdict, Text(), _title("findings")]
    lines += [line for finding in analysis.findings[:top] for line in _finding(finding)]
    return Text("\n").join(lines) + _more(len(analysis.findings), top, "findings")


def _headline(finding: Finding) -> list[Text | tuple[str, str]]:
    """The title, which has the share of the time, the gain and how certain it is."""
    what = WHOLE.get(finding.scope, finding.scope)
    gain = f": up to {format_factor(finding.max_gain)} over {what}" if finding.max_gain is not None else ""
    once = " (one-time cost)" if finding.is_one_time else ""
    rest = Text(f"{once}; confidence {finding.confidence}")
    return [(_bare(finding.title), "bold"), (gain, "green"), rest]


def _finding(finding: Finding) -> list[Text]:
    lines = [Text.assemble("* ", *_headline(finding))]
    lines += [Text(f"    - {_bare(evidence)}") for evidence in finding.evidence]
    lines.append(Text.assemble("    ", ("fix: ", "cyan"), _bare(finding.remedy)))
    if finding.doc is not None:
        lines.append(Text.assemble("    ", ("read: ", "cyan"), _bare(finding.doc)))
    if finding.floor is not None and finding.max_gain is not None:
        lines.append(Text.assemble("    ", ("lower bound: ", "cyan"), _bare(finding.floor)))
    if finding.caveat not in (None, UNDER_PROFILER):
        lines.append(Text.assemble("    ", ("but: ", "yellow"), _bare(finding.caveat or "")))
    if finding.refutes:
        lines.append(Text.assemble("    ", ("would refute it: ", "cyan"), _bare(finding.refutes)))
    return lines


def _bare(text: str) -> str:
    """A text without the backticks that mark code on a page."""
    return printable(re.sub(r"`([^`]+)`", r"\1", text))


def _more(count: int, top: int, what: str) -> Text:
    """What to say of rows that are not shown."""
    return Text(f"\n… and {count - top:,} more {what} (--top)" if count > top else "")


def _notes(analysis: CaptureAnalysis, top: int) -> Text:
    if not analysis.notes:
        return Text()
    shown = [_plain(f"* {note}") for note in analysis.notes[:top]]
    return Text("\n").join([_title("notes"), *shown]) + _more(len(analysis.notes), top, "notes")


def _ms(time_ns: int | None) -> str:
    return or_dash(time_ns, "{:,.3f}", unit=1e6, dash="–")


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    return table_text(head, rows, right=number_columns(rows))


def _title(text: str) -> Text:
    return Text(printable(text), style="bold underline")


def _plain(text: str) -> Text:
    # As Text a bracket in a name is a bracket, not markup.
    return Text(printable(text))
