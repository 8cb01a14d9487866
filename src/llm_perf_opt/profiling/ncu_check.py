"""Whether this ncu has the set, the sections and the metrics a configuration asks for."""

import difflib
from collections.abc import Callable, Sequence

from llm_perf_opt.errors import ToolError
from llm_perf_opt.profiling.vendor.ncu import filter_metrics, metrics_csv, parse_listing, pick_set

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


def check_metrics(wanted: str | Sequence[str] | None, ask: Ask) -> tuple[str | Sequence[str] | None, tuple[str, ...]]:
    """The metrics known for the GPU of this machine, and a note for each left out. Without a GPU all are kept."""
    if metrics_csv(wanted) is None:
        return None, ()
    available = parse_listing(ask(["--query-metrics"]))
    kept, unknown = filter_metrics(wanted, available)
    return kept, tuple(
        f"left out: this ncu has no metric {_with_nearest([name], available)} for this GPU (`ncu --query-metrics`)"
        for name in unknown
    )


def _with_nearest(unknown: Sequence[str], available: Sequence[str]) -> str:
    described = []
    for name in unknown:
        nearest = difflib.get_close_matches(name.partition(".")[0], available, n=1, cutoff=0.5)
        described.append(f"{name} (nearest: {nearest[0]})" if nearest else name)
    return ", ".join(described)
