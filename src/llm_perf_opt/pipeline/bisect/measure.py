"""One pass at a point: the wall time of the program, or a number of a clean pass of llm-perf."""

import os
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.comparison.comparison import WALL
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.errors import CommandFailed, ManifestError, ToolError
from llm_perf_opt.pipeline.bisect.line import PointFails, RunPlace
from llm_perf_opt.pipeline.compare.interleave import CLEAN_PASS_ALONE, llm_perf
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.report.run_facts import clean_metric
from llm_perf_opt.system.process import run_command
from llm_perf_opt.system.redact import Redactor

LAST_LINES = 300


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is measured at each point. `overrides` are those of llm-perf, `logs` where output goes."""

    metric: str
    overrides: tuple[str, ...]
    timeout_s: float
    logs: Path

    def value(self, place: RunPlace, name: str) -> float:
        """One value of the metric; `name` names the log. Raises PointFails."""
        log = self.logs / f"{name}.log"
        found = self._wall_ms(place, log) if self.metric == WALL else self._clean(place, log)
        if found <= 0:
            raise PointFails(f"{self.metric} is {found:g} (log: {log})")
        return found

    def _wall_ms(self, place: RunPlace, log: Path) -> float:
        try:
            result = run_command(
                place.command,
                env=place.env,
                timeout_s=self.timeout_s,
                log=log,
                cwd=place.cwd,
                redactor=Redactor.of(os.environ),
            )
        except ToolError as error:
            raise PointFails(str(error)) from error
        if result.timed_out:
            raise PointFails(f"it did not end within {self.timeout_s:g} s (log: {log})")
        if not result.ok:
            said = " ".join(result.tail.split())[-LAST_LINES:]
            raise PointFails(f"exit code {result.exit_code}: {said or 'it printed nothing'} (log: {log})")
        return 1e3 * result.duration_s

    def _clean(self, place: RunPlace, log: Path) -> float:
        folder = log.with_suffix("")
        command = [f"workload.command={quote(list(place.command))}"] if place.command else []
        words = [*CLEAN_PASS_ALONE, *command, *self.overrides, *place.overrides]
        try:
            llm_perf("profile", words, folder, env=dict(place.env), cwd=place.cwd, timeout_s=self.timeout_s)
            manifest = read_manifest(folder)
        except (CommandFailed, ManifestError, ToolError) as error:
            raise PointFails(str(error)) from error
        found = clean_metric(manifest, self.metric)
        if manifest.status != "ok" or not isinstance(found, Known):
            reason = "" if isinstance(found, Known) else f": {found.reason}"
            raise PointFails(f"{self.metric} was not measured, the run is {manifest.status}{reason} ({folder})")
        return found.value
