"""The rows of the document from the starts of a search: configurations, options, and the frontier."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from llm_perf_opt.optimize.server.server_document import (
    MORE_IS_BETTER,
    ConfigurationRow,
    ConfigurationStatus,
    LoadObservation,
    OptionRow,
    StartOutcome,
    VerifiedGain,
)
from llm_perf_opt.optimize.server.server_search import ServerSearch
from llm_perf_opt.optimize.server.space import START, Configuration, ServerSpace, TunedOption, name_of

# The frontier: requests that count against the time of a whole request.
FRONTIER_X, FRONTIER_X_PLAIN, FRONTIER_Y = "goodput", "tokens_per_s", "e2el_ms"
# From the worst: what a start was says more than that another went well.
WORST_FIRST: tuple[ConfigurationStatus, ...] = ("wrong", "failed", "over a limit")


def configuration_rows(search: ServerSearch, space: ServerSpace) -> tuple[ConfigurationRow, ...]:
    """A row for each configuration in the order of their first starts."""
    of: dict[Configuration, list[StartOutcome]] = {}
    for one in search.outcomes:
        of.setdefault(one.configuration, []).append(one)
    rows = [_row(search, space, configuration, starts) for configuration, starts in of.items()]
    best = frontier(rows)
    return tuple(replace(row, on_frontier=row.name in best) for row in rows)


def frontier(rows: Sequence[ConfigurationRow]) -> set[str]:
    """The names of those that no other beats in both: more of the objective's throughput, less time of a request."""
    x = frontier_axis(rows)
    points = {
        row.name: (row.metrics[x], -row.metrics[FRONTIER_Y])
        for row in rows
        if row.status not in WORST_FIRST and x in row.metrics and FRONTIER_Y in row.metrics
    }
    return {
        name
        for name, point in points.items()
        if not any(o[0] >= point[0] and o[1] >= point[1] and o != point for o in points.values())
    }


def frontier_axis(rows: Sequence[ConfigurationRow]) -> str:
    return FRONTIER_X if any(FRONTIER_X in row.metrics for row in rows) else FRONTIER_X_PLAIN


def option_rows(
    space: ServerSpace,
    tuned: Sequence[TunedOption],
    observed: Sequence[LoadObservation],
    *,
    has_gpu: bool,
    present: Mapping[str, str],
) -> tuple[OptionRow, ...]:
    """Every option of the space with what the evidence says of it."""
    ids = [one.id for one in observed]
    values = {option.id: option.values for option in tuned}
    rows = []
    for option in space.options:
        tried = values.get(option.id, ())
        named = [i for i in ids if any(i in c.when for c in option.choices if c.text in tried)]
        left_out = ""
        if not tried and option.place is not None and (option.place == "gpu") != has_gpu:
            left_out = f"it is for a {option.place.upper()}"
        elif not tried and all(present.get(option.id) == choice.text for choice in option.choices):
            left_out = "it is set already"
        elif not tried:
            wanted = dict.fromkeys(name for choice in option.choices for name in choice.when)
            left_out = f"not seen: {', '.join(wanted)}" if wanted else "only options without loss were requested"
        rows.append(
            OptionRow(
                option=option.id,
                flag=option.flag or option.variable or "",
                tried=tried,
                because=tuple(named),
                left_out=left_out,
            )
        )
    return tuple(rows)


def _row(
    search: ServerSearch, space: ServerSpace, configuration: Configuration, starts: Sequence[StartOutcome]
) -> ConfigurationRow:
    last = starts[-1]
    status, gain = _status(search, configuration, starts)
    metrics = _medians(starts)
    base, own = search.start_value, search.value_of(starts[0])
    ratio = None
    if configuration != START and base and own:
        ratio = own / base if search.objective in MORE_IS_BETTER else base / own
    words = [word for setting in configuration for word in search.words_of(setting)]
    return ConfigurationRow(
        name=name_of(configuration),
        settings=configuration,
        words=tuple(words),
        status=status,
        reason=next((one.reason for one in reversed(starts) if one.reason), ""),
        is_lossy=any(space.choice(setting).lossy for setting in configuration),
        starts=len(starts),
        metrics=metrics,
        ratio=ratio,
        gain=gain,
        check=next((one.check for one in reversed(starts) if one.check is not None), None),
        level=last.level,
        start_s=next((one.start_s for one in reversed(starts) if one.start_s is not None), None),
        log=last.log,
    )


def _status(
    search: ServerSearch, configuration: Configuration, starts: Sequence[StartOutcome]
) -> tuple[ConfigurationStatus, VerifiedGain | None]:
    if configuration == START:
        return "start", None
    seen = {one.status for one in starts}
    worst = next((status for status in WORST_FIRST if status in seen), None)
    rounds = next((one for one in search.verifications if configuration in one.sides), None)
    found = None if rounds is None else search.compared(rounds, START, configuration)
    gain = None if found is None else found.gain
    if worst is not None:
        return worst, gain
    if found is None:
        return "screened", None
    return ("verified" if found.verdict == "better" else "not better"), gain


def _medians(starts: Sequence[StartOutcome]) -> dict[str, float]:
    names = dict.fromkeys(name for one in starts for name in one.metrics)
    return {name: median(one.metrics[name] for one in starts if name in one.metrics) for name in names}
