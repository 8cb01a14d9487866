"""Writes metrics.json and samples.jsonl while a run continues: one that is killed keeps what it measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from llm_perf_opt.core.documents import (
    BadSample,
    CleanPass,
    Deployment,
    InputSample,
    Methods,
    MetricsDocument,
    ProfiledPass,
    RanModel,
    RunState,
)
from llm_perf_opt.core.manifest import strict_json, write_json
from llm_perf_opt.core.names import INPUTS_FILE, METRICS_FILE, SAMPLES_FILE
from llm_perf_opt.workload.host_state import cpu_count
from llm_perf_opt.workload.results import PERCENTILE_METHOD, STD_METHOD, SampleResult, pass_metrics, peak_memory, totals

REWRITE_EVERY_S = 1.0
# At most this part of the time between two samples goes into rewriting metrics.json.
REWRITE_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class JournalHeader:
    """What is known before the first sample."""

    model: RanModel
    deployment: Deployment
    nvtx_backend: str
    repeats: int
    samples: int
    warmup_rounds: int


class Journal:
    """The measurements of one run. Every finished sample is on disk before the next one starts."""

    def __init__(
        self, out_dir: Path, *, header: JournalHeader, notes: Sequence[str], parts: Sequence[str], memory_how: str
    ) -> None:
        out_dir.mkdir(parents=True, exist_ok=True)
        self._path = out_dir / METRICS_FILE
        self._lines = (out_dir / SAMPLES_FILE).open("w", encoding="utf-8")
        self._header = header
        self._parts = tuple(parts)
        self._memory_how = memory_how
        self.memory_reason: str | None = None
        self.notes: list[str] = list(notes)
        self.bad: dict[str, str] = {}
        # As planned, or as many as it took.
        self.repeats = header.repeats
        self.other_cpus: float | None = None
        self.clean: list[SampleResult] = []
        self.profiled: list[SampleResult] = []
        # The profiled pass as it was planned; its metrics are those of `profiled`.
        self.profiled_pass: ProfiledPass | None = None
        self.slowdown: Mapping[str, float | None] | None = None
        self._next_write_s = 0.0
        self.write("running")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the results so far, whether the run succeeded or not."""
        self.write("done" if kind is None else "failed")
        self._lines.close()

    def add(self, result: SampleResult) -> None:
        """Keep one finished sample."""
        (self.profiled if result.pass_name == "profiled" else self.clean).append(result)
        self._lines.write(strict_json(result.line()) + "\n")
        self._lines.flush()
        if time.monotonic() >= self._next_write_s:
            self.write("running")

    def add_bad(self, sample_id: str, error: str) -> None:
        """Keep a sample that could not be run."""
        if sample_id not in self.bad:
            self.bad[sample_id] = error
            self.write("running")

    def write(self, status: RunState) -> None:
        """Rewrite metrics.json; a reader never sees half of it."""
        start = time.monotonic()
        write_json(self._path, self._document(status))
        spent_s = time.monotonic() - start
        self._next_write_s = time.monotonic() + max(REWRITE_EVERY_S, spent_s / REWRITE_SHARE)

    def _document(self, status: RunState) -> MetricsDocument:
        header, planned = self._header, self.profiled_pass
        peak_bytes, no_peak = peak_memory(self.clean, reason=self.memory_reason)
        return MetricsDocument(
            status=status,
            model=header.model,
            deployment=header.deployment,
            nvtx_backend=header.nvtx_backend,
            notes=tuple(self.notes),
            clean=CleanPass(
                repeats=self.repeats,
                samples=header.samples,
                warmup_rounds=header.warmup_rounds,
                metrics=pass_metrics(self.clean, self._parts),
                totals=totals(self.clean),
                peak_memory_bytes=peak_bytes,
                peak_memory_how=self._memory_how,
                peak_memory_reason=no_peak,
                other_cpus=self.other_cpus,
                cpu_count=cpu_count(),
            ),
            profiled=planned and replace(planned, metrics=pass_metrics(self.profiled, self._parts)),
            slowdown=self.slowdown,
            bad_samples=tuple(BadSample(sample_id=name, error=text) for name, text in self.bad.items()),
            methods=Methods(percentiles=PERCENTILE_METHOD, std=STD_METHOD),
        )


def write_inputs_file(out_dir: Path, inputs: Sequence[InputSample]) -> None:
    """The samples the run uses, with size and hash."""
    write_json(out_dir / INPUTS_FILE, list(inputs))
