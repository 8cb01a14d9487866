"""`llm-perf analyze --kernels-only`: the kernel summary of one nsys export, without reading the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_perf_opt.capture.readers.nsys_summary import summarize_kernels
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.core.units import or_dash
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.system.json_output import print_json


@dataclass(frozen=True, kw_only=True)
class KernelSource:
    """The capture a kernel summary is of."""

    path: str
    kind: Literal["nsys"] = "nsys"


@dataclass(frozen=True, kw_only=True)
class KernelSummaryDocument:
    """What `llm-perf analyze --kernels-only --json` prints."""

    schema_version: Literal[1] = 1
    sources: tuple[KernelSource, ...]
    kernels: tuple[KernelRow, ...]
    notes: tuple[str, ...]


def print_kernels(files: Sequence[Path], *, as_json: bool, top: int) -> int:
    """Print the summary in the columns of nsys's own, or as JSON."""
    if len(files) != 1 or files[0].suffix in (".nsys-rep", ".qdrep"):
        raise ConfigError("analyze --kernels-only: takes exactly one .sqlite export of nsys")
    kernels, notes = summarize_kernels(files[0])
    if as_json:
        source = KernelSource(path=str(files[0]))
        print_json(KernelSummaryDocument(sources=(source,), kernels=kernels, notes=notes))
        return EXIT_OK
    print(f"{'%':>5} {'total ms':>12} {'n':>10} {'avg µs':>10} {'med µs':>10}  {'class':13} kernel")
    for k in kernels[:top]:
        figures = f"{k.time_pct:5.1f} {k.total_ns / 1e6:12,.3f} {k.instances:10,} {k.avg_ns / 1e3:10,.1f}"
        median = or_dash(k.med_ns, "{:,.1f}", unit=1e3, dash="–")
        print(f"{figures} {median:>10}  {k.kernel_class:13} {k.short_name}")
    for note in notes:
        print(f"note: {note}")
    return EXIT_OK
