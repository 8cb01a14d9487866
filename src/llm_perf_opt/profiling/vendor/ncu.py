"""Command lines of Nsight Compute, as pure functions: values in, argv out."""

import fnmatch
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.errors import ConfigError

REPORT_SUFFIX = ".ncu-rep"
# The set `default` of versions up to 2022 is called `basic` in later ones.
SET_ALIASES = {"default": "basic", "basic": "default"}

# These come from the launch, the device or the code itself; `--query-metrics` does not list them.
_NOT_LISTED = re.compile(
    r"(?:regex|group|breakdown):|launch__|device__|derived__|sass__|profiler__|smsp__pcsamp|source|nvlink|numa"
)
_NCU_SYNTAX = re.compile(r"regex:|[@\[\]\\,]|/$|(?:^|/)\*(?:/|$)")


def build_ncu_cmd(
    out_base: Path | str,
    work_argv: Sequence[str],
    *,
    nvtx_expr: str | Sequence[str] | None,
    kernel_regex: str | None = None,
    use_nvtx: bool,
    set_name: str | None,
    metrics: str | Sequence[str] | None,
    sections: Sequence[str] | None,
    target_processes: str | None = "all",
    csv_log: Path | str | None = None,
    invocations: str | None = None,
    kernel_name_base: str = "demangled",
    replay_mode: str = "kernel",
    launch_skip: int | None = None,
    launch_count: int | None = None,
    clock_control: str = "none",
    force_overwrite: bool = True,
    extra_args: Sequence[str] = (),
    ncu: str = "ncu",
) -> list[str]:
    """Profile `work_argv` into `<out_base>.ncu-rep`: the kernels `kernel_regex` fits, and with `invocations` (a regex
    over the running number of each kernel's launches) only those launches of each of them.

    `csv_log` is taken for old callers and makes no flag: with a report being written, ncu puts no rows into a log. The
    rows come from `build_ncu_import_cmd`.
    """
    if csv_log is not None:
        warnings.warn(
            f"build_ncu_cmd(csv_log=…) writes no file; print the rows of {out_base}{REPORT_SUFFIX} with "
            "build_ncu_import_cmd",
            DeprecationWarning,
            stacklevel=2,
        )
    return [
        ncu,
        *_flag("--target-processes", target_processes),
        *_nvtx_flags(nvtx_expr if use_nvtx else None),
        *_collect_flags(set_name, sections, metrics),
        *_flag("--replay-mode", replay_mode),
        *_kernel_flags(kernel_regex, invocations, kernel_name_base),
        *_flag("--launch-skip", launch_skip),
        *_flag("--launch-count", launch_count),
        *_flag("--clock-control", clock_control),
        *extra_args,
        *(["--force-overwrite"] if force_overwrite else []),
        *_flag("--export", str(out_base)),
        *work_argv,
    ]


def metrics_csv(metrics: str | Sequence[str] | None) -> str | None:
    """A list or a comma-separated string of metrics, as ncu wants them; None when there are none."""
    names = metrics.split(",") if isinstance(metrics, str) else list(metrics or ())
    return ",".join(name.strip() for name in names if name.strip()) or None


def filter_metrics(
    metrics: str | Sequence[str] | None, available: Sequence[str]
) -> tuple[str | list[str] | None, tuple[str, ...]]:
    """The metrics an ncu that lists `available` can measure, as string or list like what was given, and the others.

    `--query-metrics` lists hardware counters by base name and nothing else; where it lists none, none is left out.
    """
    listed = metrics_csv(metrics)
    names = listed.split(",") if listed else []
    counters = {name for name in available if "__" in name}
    left = tuple(n for n in names if counters and not _NOT_LISTED.match(n) and n.partition(".")[0] not in counters)
    kept = [name for name in names if name not in left]
    if not kept:
        return None, left
    return (",".join(kept) if isinstance(metrics, str) else kept), left


def _filter_metrics(metrics: str | Sequence[str] | None, available: Sequence[str] = ()) -> str | list[str] | None:
    """The same without the metrics left out, under the name document 002 gives it (docs/founding.md, row 127)."""
    return filter_metrics(metrics, available)[0]


def nvtx_expressions(include: str | Sequence[str] | None) -> list[str]:
    """What a person writes for NVTX ranges, as the expressions that make ncu match them.

    ncu matches a push/pop range only as `decode/` and a start/end range only as `decode`, so a plain name becomes both.
    A glob becomes a regex. What is already in ncu's own syntax is left alone.
    """
    names = [include] if isinstance(include, str) else list(include or ())
    out: list[str] = []
    for name in (n.strip() for n in names):
        if name:
            out += [e for e in _translate(name) if e not in out]
    return out


def check_nvtx_include(include: str | Sequence[str] | None) -> str | None:
    """Why an include cannot be translated, or None."""
    try:
        nvtx_expressions(include)
    except ConfigError as error:
        return str(error)
    return None


def pick_set(wanted: str, available: Sequence[str]) -> str | None:
    """The name this version has for a section set, or None when it has none."""
    if wanted in available:
        return wanted
    alias = SET_ALIASES.get(wanted)
    return alias if alias in available else None


def parse_listing(text: str) -> list[str]:
    """The identifiers in the first column of `ncu --list-sets` or `--list-sections`."""
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith("---")]
    body = lines[rules[1] + 1 :] if len(rules) > 1 else []
    return [line.split()[0] for line in body if line and not line[0].isspace() and not line.startswith("---")]


def _translate(name: str) -> list[str]:
    if _NCU_SYNTAX.search(name):
        return [name]
    is_glob = "*" in name or "?" in name
    if "/" not in name:
        core = f"regex:{_glob_regex(name)}" if is_glob else name
        return [f"{core}/", core]
    if is_glob:
        raise ConfigError(
            f"a glob inside nested ranges cannot be translated (got {name!r}), allowed: plain names such as "
            "decode/decode_step, or an expression in ncu's own syntax"
        )
    return [name]


def _glob_regex(pattern: str) -> str:
    translated = fnmatch.translate(pattern)
    inner = re.fullmatch(r"\(\?s:(.*)\)\\[zZ]", translated)
    return inner[1] if inner else translated


def _nvtx_flags(include: str | Sequence[str] | None) -> list[str]:
    expressions = nvtx_expressions(include)
    return ["--nvtx", *(part for e in expressions for part in ("--nvtx-include", e))] if expressions else []


def _collect_flags(
    set_name: str | None, sections: Sequence[str] | None, metrics: str | Sequence[str] | None
) -> list[str]:
    return [
        *_flag("--set", set_name),
        *(part for section in sections or () for part in ("--section", section)),
        *_flag("--metrics", metrics_csv(metrics)),
    ]


def _kernel_flags(kernel_regex: str | None, invocations: str | None, name_base: str) -> list[str]:
    if kernel_regex is None and invocations is None:
        return []
    base = ["--kernel-name-base", name_base]
    if invocations is None:
        return [*base, "--kernel-name", f"regex:{kernel_regex}"]
    # --kernel-id splits at colons, so the pattern must not hold one, not even that of a group that does not capture.
    pattern = (kernel_regex or ".*").replace("(?:", "(").replace(":", r"\x3a")
    return [*base, "--kernel-id", f"::regex:{pattern}:{invocations}"]


def _flag(name: str, value: str | int | None) -> list[str]:
    return [] if value is None else [name, str(value)]
