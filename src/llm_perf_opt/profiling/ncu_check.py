"""Whether this ncu has the set, the sections and the metrics a configuration asks for."""

import difflib
import re
from collections.abc import Callable, Sequence

from llm_perf_opt.errors import ToolError
from llm_perf_opt.profiling.vendor.ncu import metrics_csv, parse_listing, pick_set

# These come from the launch, the device or the code itself; `--query-metrics` lists hardware counters only.
_NOT_LISTED = re.compile(
    r"(?:regex|group|breakdown):|launch__|device__|derived__|sass__|profiler__|smsp__pcsamp|source|nvlink|numa"
)

Ask = Callable[[Sequence[str]], str]


def check_set(wanted: str | None, ask: Ask) -> tuple[str | None, str | None]:
    """The set's name in this version and, where it differs from the one asked for, a note."""
    if wanted is None:
        return None, None
    available = parse_listing(ask(["--list-sets"]))
    if not available:
        return wanted, None
    found = pick_set(wanted, available)
    if found is None:
        raise ToolError(
            f"pipeline.ncu.ncu_cli.set: this ncu has no section set {wanted!r}; it has {', '.join(available)} "
            "(`ncu --list-sets`)"
        )
    return found, None if found == wanted else f"the section set {wanted} is called {found} in this ncu"


def check_sections(wanted: Sequence[str] | None, ask: Ask) -> None:
    """Raise when a section is not known; `regex:` patterns are ncu's to judge."""
    names = [name for name in wanted or () if not name.startswith("regex:")]
    available = parse_listing(ask(["--list-sections"])) if names else []
    unknown = [name for name in names if available and name not in available]
    if unknown:
        raise ToolError(
            f"pipeline.ncu.ncu_cli.sections: this ncu has no section {_with_nearest(unknown, available)} "
            "(`ncu --list-sections`)"
        )


def check_metrics(wanted: str | Sequence[str] | None, ask: Ask) -> None:
    """Raise when a metric is not known for the GPU of this machine. Without a GPU nothing can be said."""
    listed = metrics_csv(wanted)
    names = [name for name in (listed.split(",") if listed else ()) if not _NOT_LISTED.match(name)]
    available = [name for name in parse_listing(ask(["--query-metrics"])) if "__" in name] if names else []
    unknown = [name for name in names if available and name.partition(".")[0] not in available]
    if unknown:
        raise ToolError(
            f"pipeline.ncu.ncu_cli.metrics: this ncu has no metric {_with_nearest(unknown, available)} for this GPU "
            "(`ncu --query-metrics`)"
        )


def _with_nearest(unknown: Sequence[str], available: Sequence[str]) -> str:
    described = []
    for name in unknown:
        nearest = difflib.get_close_matches(name.partition(".")[0], available, n=1, cutoff=0.5)
        described.append(f"{name} (nearest: {nearest[0]})" if nearest else name)
    return ", ".join(described)
