"""The tool that runs a program under the profilers; there only where the server was started with `--allow-run`."""

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import CommandFailed, ConfigError
from llm_perf_opt.mcp_server.allowed_paths import Roots
from llm_perf_opt.mcp_server.limits import LONGEST_TEXT, as_data, rendered
from llm_perf_opt.mcp_server.mcp_answers import CapturedRun, Pointer, ToolAnswer
from llm_perf_opt.pipeline.run_result import read_run_result
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.system.process import allowed_environment, run_command

RUNS = "tmp/runs"
LONGEST_S = 3600
# Where a run goes is decided here.
_OVERRIDE = re.compile(r"(?!hydra|artifacts)\+{0,2}[A-Za-z_][\w.@/]*=.*", re.DOTALL)


class ProgramRunner:
    """Runs programs in the first root."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def capture(
        self,
        program: Annotated[list[str], Field(min_length=1, description="The program and its arguments, one per item")],
        overrides: Annotated[
            list[str] | None, Field(description="Settings of llm-perf run, such as pipeline.nsys.enable=false")
        ] = None,
        timeout_s: Annotated[int, Field(ge=1, le=LONGEST_S, description="Seconds until everything is ended")] = 600,
    ) -> str:
        """Run a program under the profilers this machine has and answer with its verdict; takes several runs of it."""
        wrong = [word for word in overrides or [] if not _OVERRIDE.fullmatch(word)]
        if wrong:
            raise ConfigError([f"overrides: not allowed (got {as_data(word)}), allowed: key=value" for word in wrong])
        run_dir = self._roots.folders[0] / RUNS / datetime.now().strftime("mcp-%Y%m%d-%H%M%S-%f")
        log = run_dir.with_suffix(".log")
        argv = [sys.executable, "-m", "llm_perf_opt.cli", "run", *(overrides or [])]
        done = run_command(
            [*argv, f"hydra.run.dir={quote(str(run_dir))}", "--", *program],
            env=allowed_environment(os.environ),
            timeout_s=timeout_s,
            log=log,
            cwd=self._roots.folders[0],
        )
        if not (run_dir / MANIFEST_FILE).is_file():
            ended = f"not within {timeout_s} s" if done.timed_out else f"exit code {done.exit_code}"
            raise CommandFailed(f"no run was made ({ended}): {as_data(done.tail[-LONGEST_TEXT:], LONGEST_TEXT)}")
        return self._answer(run_dir, done.exit_code)

    def _answer(self, run_dir: Path, exit_code: int | None) -> str:
        result = read_run_result(run_dir)
        verdict = None if result.diagnosis is None else as_data(result.diagnosis.verdict.text, LONGEST_TEXT)
        name = self._roots.name_of(run_dir)
        failed = [f"{stage.name}: {stage.reason}" for stage in result.stages if stage.status == "failed"]
        return rendered(
            ToolAnswer(
                status="ok" if verdict is not None else "abstained",
                reason=as_data("; ".join(failed), LONGEST_TEXT) if failed else None,
                result=CapturedRun(run=as_data(name), exit_code=exit_code, status=result.status, verdict=verdict),
                more=tuple(Pointer(tool=tool, arguments={"source": as_data(name)}) for tool in ("findings", "analyze")),
            )
        )
