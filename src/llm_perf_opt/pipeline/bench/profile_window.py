"""A capture of a server under load: nsys with a window opened after warming up, or the server's own profiler.

Both are apart from what is measured. Under nsys the server is started once more, because a program nsys may record is
slower also while nothing is recorded.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from llm_perf_opt.core.host import Tool
from llm_perf_opt.core.stage import CommandPlace
from llm_perf_opt.errors import ToolError
from llm_perf_opt.profiling.nsys.live_sessions import lost_agent, one_capture
from llm_perf_opt.profiling.nsys.scrub import publish_report, raw_folder
from llm_perf_opt.profiling.vendor.nsys import (
    build_nsys_launch_cmd,
    build_nsys_start_cmd,
    build_nsys_stop_cmd,
    find_reports,
    trace_of_window,
)
from llm_perf_opt.serving.client.exchange import NoAnswer, TooLate, exchange
from llm_perf_opt.serving.engine import NeverReady, RunningServer, ServerPlace, running_server
from llm_perf_opt.serving.serving_config import ServerSection, WindowSection

START, STOP = "/start_profile", "/stop_profile"
LONGEST_ANSWER = 1 << 20


@dataclass(frozen=True, kw_only=True)
class NsysWindow:
    """What a window left: exports without environments, and what is to be reported about them."""

    exports: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EngineWindow:
    """The files that a server's own profiler left; `trouble` is why the server failed to end it."""

    files: tuple[Path, ...]
    trouble: str | None = None


def record_with_nsys(
    section: ServerSection,
    window: WindowSection,
    place: ServerPlace,
    commands: CommandPlace,
    *,
    tool: Tool,
    session: str,
    more_args: Sequence[str] = (),
    warm: Callable[[RunningServer], None],
    load: Callable[[RunningServer], None],
) -> NsysWindow:
    """Start the server under nsys, warm it up, open the window, load it, close the window, end the server."""
    nsys = tool.path or tool.name
    own = place.environ.get("TMPDIR")
    # nsys gets its own folder for what it writes meanwhile; the server keeps the user's.
    prefix = [
        *build_nsys_launch_cmd(
            session,
            nsys=nsys,
            trace=trace_of_window(window.trace, tool.version),
            cuda_graph_trace=window.cuda_graph_trace,
        ),
        *(["env", f"TMPDIR={own}"] if own else ["env", "-u", "TMPDIR"]),
    ]
    notes: list[str] = []
    with raw_folder(commands, tool) as raw:
        under = replace(section, env={**section.env, "TMPDIR": str(raw.scratch)})
        base = raw.reports / "run"

        def record() -> None:
            with running_server(under, place, name="server-nsys", prefix=prefix, more_args=more_args) as server:
                warm(server)
                _command(commands, build_nsys_start_cmd(session, base, nsys=nsys), raw.scratch, "start", window)
                load(server)
                _command(commands, build_nsys_stop_cmd(session, nsys=nsys), raw.scratch, "stop", window)

        with one_capture(tool.version, place.say, limit_s=window.timeout_s):
            try:
                record()
            except NeverReady as error:
                lost = lost_agent(error.said)
                if lost is None:
                    raise
                place.say(f"nsys lost its agent ({lost}); trying again")
                record()
        reports = find_reports(base)
        if not reports:
            raise ToolError(f"nsys wrote no report of the window (log: {commands.out_dir / 'stop.log'})")
        exports = [
            publish_report(
                commands,
                nsys,
                report,
                keep="clean" if window.keep_report else "never",
                timeout_s=window.timeout_s,
                notes=notes,
                setting=None,
            )
            for report in reports
        ]
    return NsysWindow(exports=tuple(exports), notes=tuple(notes))


def _command(commands: CommandPlace, argv: list[str], scratch: Path, what: str, window: WindowSection) -> None:
    result = commands.run_command(
        argv,
        timeout_s=window.timeout_s,
        log=f"{what}.log",
        cmd_file=None,
        env={"TMPDIR": str(scratch)},
        label=f"nsys {what}",
    )
    if not result.ok:
        words = " ".join(result.tail.split())[-300:]
        raise ToolError(f"`nsys {what}` failed with exit code {result.exit_code}: {words} (log: {result.log})")


def profile_args(section: ServerSection, folder: Path) -> list[str]:
    """What the server must be started with, so that its own profiler can be requested later."""
    return [word.replace("{dir}", str(folder)) for word in section.profile_args]


def record_with_engine(
    server: RunningServer, window: WindowSection, folder: Path, load: Callable[[RunningServer], None]
) -> EngineWindow:
    """Ask the server to profile itself while it is loaded."""
    inside = json.dumps(str(folder))[1:-1]
    _post(server, window, START, json.dumps(dict(server.section.profile_body)).replace("{dir}", inside))
    trouble = None
    try:
        load(server)
    finally:
        try:
            _post(server, window, STOP, "{}")
        except ToolError as error:
            trouble = str(error)
    return EngineWindow(files=tuple(sorted(path for path in folder.rglob("*") if path.is_file())), trouble=trouble)


def _post(server: RunningServer, window: WindowSection, path: str, body: str) -> None:
    url = server.target.url.rstrip("/") + path
    headers = {**server.target.headers, "Content-Type": "application/json"}
    try:
        answer = exchange(
            url,
            headers=headers,
            timeout_s=window.timeout_s,
            most_bytes=LONGEST_ANSWER,
            method="POST",
            body=body.encode(),
        )
    except TooLate as error:
        # It answers when its trace is written, which takes long for a busy server.
        raise ToolError(
            f"capture.tool=engine: {url} did not answer within {window.timeout_s:g} s (capture.timeout_s); a shorter "
            "window (capture.duration_s) leaves less to write"
        ) from error
    except NoAnswer as error:
        raise ToolError(f"capture.tool=engine: {url} did not answer ({error})") from error
    if answer.status != HTTPStatus.OK and path == STOP:
        raise ToolError(
            f"capture.tool=engine: {url} answers HTTP {answer.status}: the server failed while it wrote its trace, and "
            "its log says why; a shorter window (capture.duration_s) leaves less to write"
        )
    if answer.status != HTTPStatus.OK:
        raise ToolError(
            f"capture.tool=engine: {url} answers HTTP {answer.status}: this server offers no profiler of its own, "
            "or was not started with it; use capture.tool=nsys"
        )
