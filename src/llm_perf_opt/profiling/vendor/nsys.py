"""Command lines of nsys, as pure functions, and the reading of what it left behind."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.names import RANK_PREFIX
from llm_perf_opt.errors import ConfigError

# Python strings are not registered strings; without this a range never opens the capture.
NVTX_ANY_STRING = "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
CAPTURE_ENDS = re.compile(r"none|stop|stop-shutdown|repeat(:[1-9]\d*)?|repeat-shutdown:[1-9]\d*")
CAPTURE_ENDS_WORDS = "none, stop, stop-shutdown, repeat, repeat:N or repeat-shutdown:N (N a whole number of at least 1)"
# Runs the workload and writes its exit code down, because nsys replaces it by its own or passes it on unmarked.
# It also gives the workload its own TMPDIR back: nsys gets another one.
_KEEP_EXIT_CODE = (
    'file=$1; if [ -n "$2" ]; then export TMPDIR="$2"; else unset TMPDIR; fi; shift 2; '
    '"$@"; code=$?; echo "$code" > "$file${RANK:+.$RANK}"; exit "$code"'
)


# The ways to trace CUDA: as nsys likes, in hardware, in software.
_CUDA_TRACES = frozenset(("cuda", "cuda-hw", "cuda-sw"))
# From this version on `cuda` is traced in hardware where GPU and driver (CUDA 13) can. Its records of GPU work are
# complete only when the program ends: a window that closes before that has none of them (0 of 8,400 kernels under
# nsys 2026.3.1, 8,624 with `cuda-sw` in the same window).
_HARDWARE_TRACE_FROM = (2025, 6)

# What becomes of a report: kept if no secret is in it, always kept, or removed after its export.
KeepReport = Literal["clean", "always", "never"]
RANK_SUFFIX = f".{RANK_PREFIX}%q{{RANK}}"
# Two nsys that start in the same moment can lose their agents ("Agent launcher failed"); later ones do not disturb.
_IN_TURN = 'sleep "$((LOCAL_RANK * 3))"; exec "$@"'


def build_nsys_cmd(
    out_base: Path | str,
    work_argv: Sequence[str],
    *,
    nsys: str = "nsys",
    trace: str | Sequence[str] = "cuda,nvtx,osrt",
    sample: str = "none",
    cpuctxsw: str = "none",
    capture: str = "none",
    capture_end: str | None = None,
    nvtx_capture: str | None = None,
    nvtx_domain_include: str | None = None,
    nvtx_domain_exclude: str | None = None,
    cuda_graph_trace: str = "node",
    delay_s: int = 0,
    duration_s: int | None = None,
    extra_args: Sequence[str] = (),
    per_rank: bool = False,
) -> list[str]:
    """`nsys profile` around a workload. Writes `<out_base>.nsys-rep`, or `<out_base>.N.nsys-rep` when repeating.

    `nvtx_capture="none"` applies no gate, regardless of `capture`. `per_rank`: it is one of several that torchrun
    starts, and its report carries the number of the rank.
    """
    trace = trace if isinstance(trace, str) else ",".join(trace)
    if capture == "nvtx" and nvtx_capture == "none":
        capture = "none"
    if capture == "nvtx" and not (nvtx_capture or "").strip():
        raise ConfigError("nvtx_capture: needed because capture_range is nvtx, allowed: the name of an NVTX range")
    argv = [
        nsys,
        "profile",
        # nsys puts process ids and host names for `%p` and `%h`.
        f"--output={str(out_base).replace('%', '%%')}{RANK_SUFFIX if per_rank else ''}",
        "--force-overwrite=true",
        f"--trace={trace}",
        # Both are passed even when off: left out, nsys samples the process tree and traces context switches.
        f"--sample={sample}",
        f"--cpuctxsw={cpuctxsw}",
    ]
    if traces_cuda(trace):
        argv.append(f"--cuda-graph-trace={cuda_graph_trace}")
    argv += _gate(capture, capture_end, nvtx_capture)
    if nvtx_domain_include:
        argv.append(f"--nvtx-domain-include={nvtx_domain_include}")
    if nvtx_domain_exclude:
        argv.append(f"--nvtx-domain-exclude={nvtx_domain_exclude}")
    if delay_s:
        argv.append(f"--delay={delay_s}")
    if duration_s is not None:
        argv.append(f"--duration={duration_s}")
    return [*argv, *extra_args, *work_argv]


def traces_cuda(trace: str) -> bool:
    """Whether CUDA is among the APIs to trace, in hardware or in software."""
    return not _CUDA_TRACES.isdisjoint(trace.split(","))


def trace_of_window(trace: str, version: str | None) -> str:
    """The APIs to trace in a capture that may end before the program: CUDA in software, where nsys has a choice."""
    numbers = tuple(int(part) for part in (version or "").split(".")[:2] if part.isdigit())
    if numbers < _HARDWARE_TRACE_FROM:
        return trace
    return ",".join("cuda-sw" if kind == "cuda" else kind for kind in trace.split(","))


def _gate(capture: str, capture_end: str | None, nvtx_capture: str | None) -> list[str]:
    """The flags that start and end the capture by a range."""
    if capture == "none":
        return []
    argv = [f"--capture-range={capture}"]
    if capture_end:
        argv.append(f"--capture-range-end={capture_end}")
    if capture == "nvtx":
        argv.append(f"--nvtx-capture={nvtx_capture}")
        argv.append(f"--env-var={NVTX_ANY_STRING}")
    return argv


def build_nsys_launch_cmd(
    session: str, *, nsys: str = "nsys", trace: str = "cuda,nvtx,osrt", cuda_graph_trace: str = "graph"
) -> list[str]:
    """`nsys launch`: the program behind it runs ready to be recorded, and is not until `nsys start`.

    Graphs are traced as a whole unless something else is requested: a server makes its graphs before the window opens,
    and nsys 2026.3 then recorded almost none of the work of their nodes.
    """
    graphs = [f"--cuda-graph-trace={cuda_graph_trace}"] if traces_cuda(trace) else []
    return [nsys, "launch", f"--session-new={session}", f"--trace={trace}", *graphs, "--wait=primary"]


def build_nsys_start_cmd(session: str, out_base: Path | str, *, nsys: str = "nsys") -> list[str]:
    """`nsys start`: open the window of a launched program."""
    return [
        nsys,
        "start",
        f"--session={session}",
        f"--output={str(out_base).replace('%', '%%')}",
        "--force-overwrite=true",
        "--sample=none",
        "--cpuctxsw=none",
    ]


def build_nsys_stop_cmd(session: str, *, nsys: str = "nsys") -> list[str]:
    """`nsys stop`: close the window and write the report; the program continues."""
    return [nsys, "stop", f"--session={session}"]


def build_nsys_export_cmd(report: Path | str, sqlite: Path | str, *, nsys: str = "nsys") -> list[str]:
    """`nsys export` of a report to SQLite."""
    return [
        nsys,
        "export",
        "--type=sqlite",
        "--quiet=true",
        "--force-overwrite=true",
        f"--output={sqlite}",
        str(report),
    ]


def keep_exit_code(work_argv: Sequence[str], code_file: Path, *, tmp_dir: str | None = None) -> list[str]:
    """The workload under a shell that writes its exit code to a file, so that it is not confused with nsys's."""
    return ["sh", "-c", _KEEP_EXIT_CODE, "sh", str(code_file), tmp_dir or "", *work_argv]


def start_in_turn(nsys_argv: Sequence[str]) -> list[str]:
    """An nsys that torchrun starts alongside others, one after the other; the ranks wait for each other later."""
    return ["sh", "-c", _IN_TURN, "sh", *nsys_argv]


def find_reports(out_base: Path) -> list[Path]:
    """All reports of one capture in order: `run.nsys-rep`, `run.1.nsys-rep`, …, or `run.rank0.nsys-rep`, …"""
    single = out_base.with_name(out_base.name + ".nsys-rep")
    if single.is_file():
        return [single]
    numbered = []
    for path in out_base.parent.glob(f"{_literal(out_base.name)}.*.nsys-rep"):
        number = path.name.removeprefix(out_base.name + ".").removesuffix(".nsys-rep").removeprefix(RANK_PREFIX)
        if number.isdigit():
            numbered.append((int(number), path))
    return [path for _, path in sorted(numbered)]


def find_unimported(out_base: Path) -> list[Path]:
    """Captures nsys could not turn into a report."""
    return sorted(out_base.parent.glob(f"{_literal(out_base.name)}*.qdstrm"))


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
