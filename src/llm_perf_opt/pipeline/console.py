"""What the user sees while a run goes, and the answer it ends with.

On a terminal one live line shows the stage, how far it is and how long the rest may take; elsewhere there are plain
lines. The answer is the report's own: the verdict, what to change first, and where to read on.
"""

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.status import Status
from rich.text import Text

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import PROGRAM
from llm_perf_opt.core.records import Progress, StageRecord
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.terminal import printable, rich_console, show

if TYPE_CHECKING:
    from llm_perf_opt.report.view.report_view import ReportView

_MARK = {"ok": ("✓ ", "green"), "failed": ("✗ ", "red"), "skipped": ("– ", "yellow")}
_TONE = {"good": "bold green", "warn": "bold yellow", "bad": "bold red", "unknown": "bold"}
FINDINGS_SHOWN = 3


class RedactedFormatter(logging.Formatter):
    """Of what Hydra says: it prints the overrides of every job of a sweep, and CI keeps what is on the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return Redactor.of(os.environ).text(super().format(record))


@dataclass(frozen=True, kw_only=True)
class StageTurn:
    """Which stage runs, as the which of how many; `took_s` is how long it took when it last succeeded."""

    name: str
    number: int = 1
    of: int = 1
    took_s: float | None = None

    @property
    def title(self) -> str:
        return self.name if self.of == 1 else f"[{self.number}/{self.of}] {self.name}"


class Console(Protocol):
    """Where progress goes."""

    def say(self, text: str) -> None: ...
    def say_command(self, line: str) -> None: ...
    def show(self, lines: Sequence[Text]) -> None: ...
    def stage_started(self, turn: StageTurn) -> None: ...
    def tick(self, elapsed_s: float, latest: Progress | None) -> None: ...
    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None: ...
    def close(self) -> None: ...


def make_console() -> Console:
    """A live console on a terminal, a plain one otherwise."""
    return LiveConsole() if sys.stderr.isatty() else PlainConsole()


def ended_line(record: StageRecord, *, reused: bool, reasons_shown: set[str]) -> str:
    """One line about a finished stage. A reason in `reasons_shown` is not repeated, except for its log."""
    time = "" if record.duration_s is None else f" in {record.duration_s:.1f} s"
    line = f"{record.name}: reused" if reused else f"{record.name}: {record.status}{time}"
    if not record.reason:
        return line
    is_old = record.said in reasons_shown
    reasons_shown.add(record.said)
    return f"{line} — {'for the same reason' if is_old else record.reason}"


class PlainConsole:
    """Plain log lines on stderr; no ticks, so that a log file stays readable."""

    def __init__(self) -> None:
        self._reasons_shown: set[str] = set()

    def say(self, text: str) -> None:
        # The terminal may be closed; the run continues, and the manifest records what happened.
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def say_command(self, line: str) -> None:
        self.say(line)

    def show(self, lines: Sequence[Text]) -> None:
        for line in lines:
            self.say(line.plain)

    def stage_started(self, turn: StageTurn) -> None:
        self.say(f"{turn.title}: started" + ("" if turn.took_s is None else f", took {turn.took_s:.0f} s last time"))

    def tick(self, elapsed_s: float, latest: Progress | None) -> None:
        return

    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None:
        self.say(ended_line(record, reused=reused, reasons_shown=self._reasons_shown))

    def close(self) -> None:
        return


class LiveConsole:
    """One live line for the running stage, a mark for each finished one."""

    def __init__(self) -> None:
        self._console = rich_console(sys.stderr)
        self._status: Status | None = None
        self._turn = StageTurn(name="")
        self._pace = Pace()
        self._reasons_shown: set[str] = set()

    def say(self, text: str) -> None:
        self.show([Text(printable(text))])

    def say_command(self, line: str) -> None:
        """In one line however long it is: with line breaks in it, it could not be copied."""
        self.show([Text(printable(line), no_wrap=True)])

    def show(self, lines: Sequence[Text]) -> None:
        with suppress(OSError):
            if self._status is not None:
                self._status.stop()
            show(*lines, stream=sys.stderr)
            if self._status is not None:
                self._status.start()

    def stage_started(self, turn: StageTurn) -> None:
        self._turn, self._pace = turn, Pace()
        self._status = self._console.status(Text(turn.title))
        with suppress(OSError):
            self._status.start()

    def tick(self, elapsed_s: float, latest: Progress | None) -> None:
        if self._status is not None:
            line = progress_text(self._turn, elapsed_s, latest, left_s=self._pace.left_s(elapsed_s, latest))
            line.truncate(self._console.width - 3, overflow="ellipsis")
            self._status.update(line)

    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None:
        self.close()
        self.show(
            [
                Text.assemble(
                    _MARK[record.status],
                    printable(ended_line(record, reused=reused, reasons_shown=self._reasons_shown)),
                )
            ]
        )

    def close(self) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()
            self._status = None


class Pace:
    """How long the rest takes if it continues as since the first count; counts that start again start it again."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._latest: tuple[float, int] | None = None

    def left_s(self, elapsed_s: float, latest: Progress | None) -> float | None:
        if latest is None or latest.done is None or latest.of is None:
            return None
        if self._first is None or self._latest is None or latest.done < self._latest[1]:
            self._first = self._latest = (elapsed_s, latest.done)
        if latest.done > self._latest[1]:
            self._latest = (elapsed_s, latest.done)
        (began_s, began), (came_s, came) = self._first, self._latest
        if came == began:
            return None
        each_s = (came_s - began_s) / (came - began)
        return max(0.0, each_s * (latest.of - came) - (elapsed_s - came_s))


def progress_text(turn: StageTurn, elapsed_s: float, latest: Progress | None, *, left_s: float | None) -> Text:
    """Stage, time, steps done of the total, what is left, and last what is being done, which a narrow terminal cuts."""
    time = f"{elapsed_s:.0f} s" + ("" if turn.took_s is None else f" of about {turn.took_s:.0f} s")
    parts: list[str | tuple[str, str]] = [(turn.title, "bold"), f"  {time}"]
    if latest is not None and latest.done is not None and latest.of is not None:
        left = "" if left_s is None else f", about {left_s:.0f} s left"
        parts.append((f"  {latest.done} of {latest.of}{left}", "cyan"))
    if latest is not None and latest.text:
        parts.append((f"  {printable(latest.text)}", "dim"))
    return Text.assemble(*parts)


def answer(manifest: RunManifest, view: "ReportView", reports: Sequence[Path]) -> list[Text]:
    """The lines a run ends with. A failed stage was reported when it failed; here it is only counted."""
    failed = [stage for stage in manifest.stages if stage.status == "failed"]
    # The verdict on a program that crashed is the failure that was reported.
    lines = [Text(), *verdict_lines(view)[int(view.is_crashed) :]]
    lines += _next_steps(view, reports[0].parent)
    if failed:
        names = ", ".join(stage.name for stage in failed)
        what = f"{names} failed; fix the cause, then: llm-perf profile run.resume={reports[0].parent}"
        lines.append(Text(printable(what), style="red"))
    return [*lines, Text.assemble(("report: ", "bold"), printable(str(reports[0])))]


def _next_steps(view: "ReportView", run_dir: Path) -> list[Text]:
    """What to change first, the command that shows what it gained, and the one that shows the report."""
    first = next((f for f in view.findings if f.rule == view.diagnosis.verdict.rule), None)
    run = shlex.quote(str(run_dir))
    lines = []
    if first is not None:
        lines.append(Text.assemble(("  fix: ", "bold"), printable(first.remedy)))
        if view.subject.kind == "program":
            after = f"llm-perf compare {run} NEW_RUN  # after the change, with a second run"
        else:
            after = f"llm-perf optimize run={run}  # tries the fixes"
        lines.append(Text.assemble(("  next: ", "bold"), printable(after)))
    return [*lines, Text.assemble(("  next: ", "bold"), printable(f"llm-perf open {run}"))]


def _latencies(view: "ReportView") -> list[Text]:
    """Of a program whose verdict is about its wall time: what its phases took, where it has some."""
    from llm_perf_opt.report.view.shown import Shown

    tiles = [(tile, tile.cell) for tile in view.headline.tiles if isinstance(tile.cell, Shown)]
    if all(tile.key != "tpot" for tile, _ in tiles):
        return []
    return [Text(printable("  " + ", ".join(f"{tile.label} {cell.text}" for tile, cell in tiles)))]


def verdict_lines(view: "ReportView", *, findings: int = FINDINGS_SHOWN) -> list[Text]:
    """The verdict, each phase against its bound, and what to change first."""
    headline = view.headline
    lines = [Text(printable(headline.verdict), style=_TONE[headline.tone])]
    if view.diagnosis.verdict.scope == PROGRAM:
        lines += _latencies(view)
    known = [w for w in view.waterfalls if any(row.key == "wall" and row.missing is None for row in w.rows)]
    lines += [Text.assemble((f"  {w.phase:<8}", "bold"), printable(w.summary)) for w in known]
    lines += [Text(printable(f"  unsteady: {text}"), style="yellow") for text in headline.warnings[:1]]
    for finding in view.findings[:findings]:
        gain = ", ".join(text for text in (finding.saves, finding.gain) if text)
        gain_text = (f": {printable(gain)}", "green") if gain else ""
        lines.append(Text.assemble(f"  {finding.rank}. ", printable(finding.title), gain_text))
    if len(view.findings) > findings == FINDINGS_SHOWN:
        lines.append(Text(f"  … {len(view.findings) - findings} more in the report", style="dim"))
    return lines
