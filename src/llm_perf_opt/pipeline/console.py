"""What the user sees while a run goes: a live line on a terminal, plain lines elsewhere.

The few lines a run ends with: how it went, the headline numbers, and where the report is.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console as RichConsole
from rich.status import Status

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.core.terminal import printable
from llm_perf_opt.report.markdown import format_metric

_MARK = {"ok": "[green]✓[/]", "failed": "[red]✗[/]", "skipped": "[yellow]–[/]"}


class Console(Protocol):
    """Where progress goes."""

    def say(self, text: str) -> None: ...
    def stage_started(self, name: str, *, estimate_s: float | None = None) -> None: ...
    def tick(self, elapsed_s: float, text: str) -> None: ...
    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None: ...
    def close(self) -> None: ...


def make_console() -> Console:
    """A live console on a terminal, a plain one otherwise."""
    return LiveConsole() if sys.stderr.isatty() else PlainConsole()


def ended_line(record: StageRecord, *, reused: bool) -> str:
    """One line about a finished stage."""
    time = "" if record.duration_s is None else f" in {record.duration_s:.1f} s"
    what = "reused" if reused else record.status
    return f"{record.name}: {what}{'' if reused else time}" + (f" — {record.reason}" if record.reason else "")


class PlainConsole:
    """Plain log lines on stderr; no ticks, so that a log file stays readable."""

    def say(self, text: str) -> None:
        # Nobody may be listening any more; the run goes on, and the manifest tells what happened.
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def stage_started(self, name: str, *, estimate_s: float | None = None) -> None:
        self.say(f"{name}: started" + ("" if estimate_s is None else f", took {estimate_s:.0f} s last time"))

    def tick(self, elapsed_s: float, text: str) -> None:
        return

    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None:
        self.say(ended_line(record, reused=reused))

    def close(self) -> None:
        return


class LiveConsole:
    """One live line for the running stage, a mark for each finished one."""

    def __init__(self) -> None:
        self._console = RichConsole(file=sys.__stderr__, highlight=False)
        self._status: Status | None = None
        self._name = ""
        self._estimate = ""

    def say(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(printable(text), markup=False)

    def stage_started(self, name: str, *, estimate_s: float | None = None) -> None:
        self._name = name
        self._estimate = "" if estimate_s is None else f" of about {estimate_s:.0f} s"
        self._status = self._console.status(f"{name}")
        self._status.start()

    def tick(self, elapsed_s: float, text: str) -> None:
        if self._status is not None:
            head = f"{self._name}  {elapsed_s:5.1f} s{self._estimate}"
            shown = printable(text)[: max(20, self._console.width - len(head) - 6)].replace("[", "\\[")
            self._status.update(f"{head}  [dim]{shown}[/]")

    def stage_ended(self, record: StageRecord, *, reused: bool = False) -> None:
        self.close()
        with suppress(OSError):
            self._console.print(_MARK[record.status], end=" ")
            self._console.print(printable(ended_line(record, reused=reused)), markup=False)

    def close(self) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()
            self._status = None


HEADLINE = (
    ("ttft_ms", "time to first token"),
    ("tpot_ms", "time per output token"),
    ("decode_tokens_per_s", "decode speed"),
    ("bound_decode_ms", "decode bound of this hardware"),
)


def summary_lines(manifest: RunManifest, reports: Sequence[Path]) -> list[str]:
    ok = [s.name for s in manifest.stages if s.status == "ok"]
    lines = [f"{manifest.status}: {len(ok)} of {len(manifest.stages)} stages ok"]
    lines += [f"  {s.name} {s.status}: {s.reason}" for s in manifest.stages if s.status != "ok"]
    for key, label in HEADLINE:
        metric = first_metric(manifest, key)
        if metric is not None:
            lines.append(
                f"  {label}: {format_metric(metric)}" + (f" ({metric.how})" if metric.value is not None else "")
            )
    lines += [f"report: {path}" for path in reports[:1]]
    return lines


def first_metric(manifest: RunManifest, key: str) -> Metric | None:
    """The metric of this name from the first stage that has it."""
    return next((s.metrics[key] for s in manifest.stages if key in s.metrics), None)
