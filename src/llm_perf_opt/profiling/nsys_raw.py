"""What nsys writes, kept apart until nobody's secrets are in it.

nsys records the environment of every process it may read. So it writes into a folder that is gone when the stage ends,
whatever ended it; only scrubbed exports and checked reports move to the run directory.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ProfilingError, ToolError
from llm_perf_opt.profiling.nsys_scrub import holds_any, overwrite_assignments, overwrite_secrets, scrub_export
from llm_perf_opt.profiling.vendor.nsys import build_nsys_export_cmd, find_reports, find_unimported
from llm_perf_opt.profiling.workload_results import last_words

# What an earlier attempt of the stage may have left; its names would stand beside those of this one.
EARLIER = (
    "run*.nsys-rep",
    "run*.sqlite",
    "run*.qdstrm",
    "cmd*.txt",
    "log*.txt",
    "look.log",
    "export-*.log",
    "analysis.json",
    "timeline.json",
    "*.csv",
)


@dataclass(frozen=True, kw_only=True)
class RawFolder:
    """`reports` is where captures go, `scratch` where nsys keeps them while they grow."""

    reports: Path
    scratch: Path


@contextmanager
def raw_folder(ctx: StageContext) -> Iterator[RawFolder]:
    """Both folders, empty; and an output directory without the files of an earlier attempt."""
    for pattern in EARLIER:
        for old in ctx.out_dir.glob(pattern):
            old.unlink()
    reports = ctx.tmp_dir / "raw"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    try:
        # A short path: nsys opens sockets there, and their names may not be long.
        with tempfile.TemporaryDirectory(prefix="llm-perf-nsys-", ignore_cleanup_errors=True) as scratch:
            yield RawFolder(reports=reports, scratch=Path(scratch))
    finally:
        shutil.rmtree(reports, ignore_errors=True)


def export_report(ctx: StageContext, nsys: str, report: Path, sqlite: Path, timeout_s: float) -> Path:
    """The report as SQLite."""
    sqlite.unlink(missing_ok=True)
    log = f"export-{report.name}.log"
    result = ctx.run_command(
        build_nsys_export_cmd(report, sqlite, nsys=nsys),
        timeout_s=timeout_s,
        log=log,
        cmd_file=None,
        label="nsys export",
    )
    if result.timed_out or not sqlite.is_file():
        raise ToolError(export_problem(report, result.timed_out, result.exit_code, result.tail))
    (ctx.out_dir / log).unlink(missing_ok=True)
    return sqlite


def export_problem(report: Path, timed_out: bool, exit_code: int | None, tail: str) -> str:
    """Why a report could not be exported."""
    if timed_out:
        return f"{report}: `nsys export` did not end in time; export it by hand and analyse the .sqlite"
    why = last_words(tail) or "it printed nothing"
    return (
        f"{report}: `nsys export` wrote no SQLite (exit code {exit_code}: {why}); the report may be damaged or made by "
        "a newer nsys: export it with the version that made it"
    )


def publish_report(
    ctx: StageContext, nsys: str, report: Path, *, keep_report: bool, timeout_s: float, notes: list[str]
) -> Path:
    """The export without environments, in the run directory; the report goes with it if wanted and made safe."""
    sqlite = export_report(ctx, nsys, report, report.with_suffix(".sqlite"), timeout_s)
    environments = scrub_export(sqlite)
    if keep_report:
        secrets = environments.secrets
        overwrite_secrets(report, secrets)
        if not secrets or _is_clean(ctx, nsys, report, secrets, timeout_s):
            shutil.move(report, ctx.out_dir / report.name)
        else:
            notes.append(
                f"{report.name} was deleted: nsys records the environment of every running process, here with "
                f"{', '.join(environments.secret_names)}, which could not be removed from the report; the export "
                f"{sqlite.name} is clean and complete. Unset them in the processes that hold them to keep the report"
            )
    return Path(shutil.move(sqlite, ctx.out_dir / sqlite.name))


def publish_leftovers(ctx: StageContext, nsys: str, out_base: Path, *, timeout_s: float) -> None:
    """What a failed capture left stays for a look, but without anyone's secrets."""
    for raw in find_unimported(out_base):
        overwrite_assignments(raw)
        shutil.move(raw, ctx.out_dir / raw.name)
    for report in find_reports(out_base):
        try:
            publish_report(ctx, nsys, report, keep_report=True, timeout_s=timeout_s, notes=[])
        except ProfilingError as error:
            ctx.say(f"nsys: {report.name} of the failed capture was not kept ({error})")


def _is_clean(ctx: StageContext, nsys: str, report: Path, secrets: Sequence[str], timeout_s: float) -> bool:
    """Whether an overwritten report can still be read and holds none of the secrets."""
    check = report.with_name("check.sqlite")
    try:
        export_report(ctx, nsys, report, check, timeout_s)
        return not holds_any(check, secrets) and not holds_any(report, secrets)
    except ToolError:
        (ctx.out_dir / f"export-{report.name}.log").unlink(missing_ok=True)
        return False
    finally:
        check.unlink(missing_ok=True)
