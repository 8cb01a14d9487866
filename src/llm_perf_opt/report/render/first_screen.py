"""The first screen of a report as a piece of HTML for notebooks: verdict, where the time goes, what to do first.

Styles are inline: a notebook keeps neither style sheets nor scripts of a cell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from llm_perf_opt.core.units import format_factor, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.report.run_files import Found
from llm_perf_opt.report.view.captured import captured_split, captured_tiles, host_alone_split
from llm_perf_opt.report.view.headline import TONES, Tone
from llm_perf_opt.report.view.report_view import ReportView
from llm_perf_opt.report.view.shown import Shown, Tile, TimeSplit
from llm_perf_opt.system.terminal import cut_text

# Colours of the page's style sheet.
TONE_COLOURS = {"good": "#009e73", "warn": "#e69f00", "bad": "#d55e00", "unknown": "#7a8794"}
PART_COLOURS = {"work": "#0072b2", "bound": "#009e73", "idle": "#d55e00", "wall": "#2b3742"}
OTHER_COLOUR = "#7a8794"
# A cell of a notebook stays small, even with long names of ranges.
MOST_FINDINGS, MOST_PARTS, LONGEST_TEXT, LEAST_SHARE = 3, 6, 600, 0.005
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """What a reader sees first. `distance` is how far the judged phase is from its lower bound, in words."""

    title: str
    facts: tuple[tuple[str, str], ...]
    verdict: str
    tone: Tone
    tiles: tuple[Tile, ...]
    split: TimeSplit | None
    distance: str | None
    findings: tuple[Finding, ...]


def screen_of_capture(name: str, capture: CaptureAnalysis, diagnosis: Diagnosis) -> FirstScreen:
    """Of captures alone."""
    facts = [("GPU", capture.gpu.name)] if capture.gpu.name else []
    return FirstScreen(
        title=name,
        facts=tuple(facts),
        verdict=diagnosis.verdict.text,
        tone=TONES[diagnosis.verdict.kind],
        tiles=captured_tiles(Found(content=capture, source=name), diagnosis),
        split=captured_split(diagnosis) or host_alone_split(capture),
        distance=None,
        findings=diagnosis.claims,
    )


def screen_of_run(view: ReportView) -> FirstScreen:
    """Of a run: what its page begins with."""
    head = view.headline
    far = head.distance
    return FirstScreen(
        title=head.title,
        facts=head.facts,
        verdict=head.verdict,
        tone=head.tone,
        tiles=tuple(tile for tile in head.tiles if isinstance(tile.cell, Shown)),
        split=head.split,
        distance=None
        if far is None
        else f"{far.phase.capitalize()} takes {far.wall} {far.per}, {far.factor} the {far.bound} the hardware allows.",
        findings=view.diagnosis.claims,
    )


def render_first_screen(screen: FirstScreen) -> str:
    facts = " · ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in screen.facts)
    parts = [
        f"<div style='font-size:1.1em;font-weight:600'>{_text(screen.title)}</div>",
        f"<div style='opacity:.75'>{facts}</div>" if facts else "",
        f"<div style='border-left:4px solid {TONE_COLOURS[screen.tone]};padding:.3em .8em;margin:.5em 0;"
        f"font-weight:600'>{_text(screen.verdict)}</div>",
        "" if screen.split is None else _split(screen.split),
        f"<div>{_text(screen.distance)}</div>" if screen.distance else "",
        _tiles(screen.tiles),
        render_findings(screen.findings[:MOST_FINDINGS]),
    ]
    more = len(screen.findings) - MOST_FINDINGS
    parts.append(f"<div style='opacity:.75'>and {more} more finding{'s' if more > 1 else ''}</div>" if more > 0 else "")
    return f"<div style='max-width:60em'>{''.join(parts)}</div>"


def render_findings(findings: Sequence[Finding]) -> str:
    """Findings with their fixes, numbered."""
    if not findings:
        return "<div>No findings.</div>"
    items = "".join(
        f"<li style='margin:.4em 0'><b>{_text(one.title)}</b>{_gain(one)}<br>"
        f"<span style='color:{PART_COLOURS['work']}'>Fix:</span> {_text(one.remedy)}</li>"
        for one in findings
    )
    return f"<ol style='padding-left:1.4em;margin:.4em 0'>{items}</ol>"


def _gain(finding: Finding) -> str:
    words = [] if finding.max_gain is None else [f"up to {format_factor(finding.max_gain)}"]
    words += ["one-time cost"] if finding.is_one_time else []
    return f" <span style='opacity:.75'>({', '.join([*words, f'confidence {finding.confidence}'])})</span>"


def _split(split: TimeSplit) -> str:
    bar = "".join(
        f"<i style='flex:{part.share:.4f};background:{_colour(part.kind)}' title='{_text(part.label)}'></i>"
        for part in split.parts[: 2 * MOST_PARTS]
    )
    legend = " · ".join(
        f"<span style='color:{_colour(part.kind)}'>■</span> {format_percent(part.share)} {_text(part.label)}"
        for part in split.largest[:MOST_PARTS]
        if part.share >= LEAST_SHARE
    )
    return (
        f"<div>Where the time goes ({_text(split.what)}, {_text(split.total)})</div>"
        f"<div style='display:flex;height:14px;gap:1px;margin:.2em 0'>{bar}</div><div>{legend}</div>"
    )


def _tiles(tiles: Sequence[Tile]) -> str:
    shown = " · ".join(
        f"{_text(tile.label)} <b>{_text(tile.cell.text)}</b>" for tile in tiles if isinstance(tile.cell, Shown)
    )
    return f"<div style='margin:.4em 0'>{shown}</div>" if shown else ""


def _colour(kind: str) -> str:
    return PART_COLOURS.get(kind, OTHER_COLOUR)


def _text(text: str) -> str:
    """A text escaped, what is in backticks as code, and cut where it is not text to read."""
    cut = cut_text(text, LONGEST_TEXT)
    return _CODE.sub(r"<code>\1</code>", escape(cut, quote=True))
