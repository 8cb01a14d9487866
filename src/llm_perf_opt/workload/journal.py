"""Writes metrics.json and samples.jsonl while a run goes on: one that is killed keeps what it measured."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import INPUTS_FILE, METRICS_FILE, SAMPLES_FILE
from llm_perf_opt.workload.aggregate import PERCENTILE_METHOD, STD_METHOD
from llm_perf_opt.workload.results import SampleResult, pass_metrics, peak_memory, totals

SCHEMA_VERSION = 1
REWRITE_EVERY_S = 1.0
# At most this part of the time between two samples goes into rewriting metrics.json.
REWRITE_SHARE = 0.05


class Journal:
    """The measurements of one run. Every finished sample is on disk before the next one starts."""

    def __init__(self, out_dir: Path, *, header: Mapping[str, Any], parts: Sequence[str], memory_how: str) -> None:
        out_dir.mkdir(parents=True, exist_ok=True)
        self._path = out_dir / METRICS_FILE
        self._lines = (out_dir / SAMPLES_FILE).open("w", encoding="utf-8")
        self._parts = tuple(parts)
        self._memory_how = memory_how
        self.memory_reason: str | None = None
        self.header: dict[str, Any] = dict(header)
        self.bad: dict[str, str] = {}
        self.clean: list[SampleResult] = []
        self.profiled: list[SampleResult] = []
        self.profile: dict[str, Any] = {}
        self._next_write_s = 0.0
        self.write("running")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what there is, whether the run ended well or not."""
        self.write("done" if kind is None else "failed")
        self._lines.close()

    def add(self, result: SampleResult) -> None:
        """Keep one finished sample."""
        (self.profiled if result.pass_name == "profiled" else self.clean).append(result)
        self._lines.write(json.dumps(result.line(), ensure_ascii=False) + "\n")
        self._lines.flush()
        if time.monotonic() >= self._next_write_s:
            self.write("running")

    def add_bad(self, sample_id: str, error: str) -> None:
        """Keep a sample that could not be run."""
        if sample_id not in self.bad:
            self.bad[sample_id] = error
            self.write("running")

    def write(self, status: Literal["running", "done", "failed"]) -> None:
        """Rewrite metrics.json; a reader never sees half of it."""
        start = time.monotonic()
        write_json(self._path, self._data(status))
        spent_s = time.monotonic() - start
        self._next_write_s = time.monotonic() + max(REWRITE_EVERY_S, spent_s / REWRITE_SHARE)

    def _data(self, status: str) -> dict[str, Any]:
        head = {name: self.header[name] for name in ("model", "nvtx_backend", "notes")}
        clean = {
            **self.header["clean"],
            "metrics": pass_metrics(self.clean, self._parts),
            "totals": totals(self.clean),
            **peak_memory(self.clean, how=self._memory_how, reason=self.memory_reason),
        }
        profile: dict[str, Any] = {"profiled": None, "slowdown": None, "modules": None, **self.profile}
        if profile["profiled"] is not None:
            profile["profiled"] = {**profile["profiled"], "metrics": pass_metrics(self.profiled, self._parts)}
        return {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            **head,
            "clean": clean,
            **profile,
            "bad_samples": [{"sample_id": name, "error": text} for name, text in self.bad.items()],
            "methods": {"percentiles": PERCENTILE_METHOD, "std": STD_METHOD},
        }


def write_inputs_file(out_dir: Path, inputs: Sequence[Mapping[str, Any]]) -> None:
    """The samples the run uses, with size and hash."""
    write_json(out_dir / INPUTS_FILE, list(inputs))
