"""The ranks of a job as sections of a report: who waited for whom, and what communication cost."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from llm_perf_opt.capture.ranks.collectives import CollectiveRow, LongestCollective
from llm_perf_opt.capture.ranks.identify import REPEATS
from llm_perf_opt.capture.ranks.overlap import Split
from llm_perf_opt.capture.ranks.rank_analysis import DeviceRow, RankRow, RanksAnalysis
from llm_perf_opt.capture.ranks.traffic import TrafficRow, bus_gb_s
from llm_perf_opt.core.sections import Cell, Section, SectionTable, filled
from llm_perf_opt.core.units import format_bytes, format_ms, format_percent

# On the page; analysis.json has all.
ROWS = 60


def rank_sections(ranks: RanksAnalysis, source: str | None) -> Iterator[Section]:
    """Time of each rank, and communication where there is any."""
    yield _ranks(ranks, source)
    if ranks.collectives:
        yield _communication(ranks, source)


def traffic_section(
    rows: Sequence[TrafficRow], ranks: RanksAnalysis | None, *, link_gb_s: float | None, source: str
) -> Section:
    """What the ranks sent each other, and how near that came to the link."""
    by_kernel = {} if ranks is None else {row.rank: row.time.communication_ns for row in ranks.rows}
    on_gpu = any(by_kernel.values())
    cells: list[tuple[Cell, ...]] = []
    for row in rows[:ROWS]:
        whole_ns = sum(other.time_ns for other in rows if other.rank == row.rank)
        # Kernels do not say whose bytes they move, so their time is shared out by the calls' own.
        share = row.time_ns / whole_ns if whole_ns else 0.0
        time_ns = by_kernel.get(row.rank, 0) * share if on_gpu else float(row.time_ns)
        rate = bus_gb_s(row, time_ns)
        of_link = None if rate is None or link_gb_s is None else 100.0 * rate / (link_gb_s / 2)
        cells.append((row.rank, row.operation, row.count, format_bytes(row.size_bytes), time_ns / 1e6, rate, of_link))
    busiest = max(rows, key=lambda row: row.share_of_phases_pct or 0.0)
    spread = max(r.time_ns for r in rows) - min(r.time_ns for r in rows)
    texts = [
        f"Ranks spend up to {format_percent((busiest.share_of_phases_pct or 0.0) / 100)} of prefill and decode in "
        f"calls that communicate (rank {busiest.rank}); ranks differ by up to {format_ms(spread / 1e6)} in one kind of "
        "call, which is what the faster ones waited.",
        "Time is that of the communication kernels, shared out by call."
        if on_gpu
        else "There are no communication kernels: time is that of the calls on the host, which wait until the data is "
        "there, so nothing overlaps and all of it is exposed.",
    ]
    if link_gb_s is not None:
        texts.append(
            f"Bus GB/s as nccl-tests counts it; of link: of {link_gb_s / 2:g} GB/s, one direction of the data sheet's."
        )
    columns = ("rank", "collective", "n", "message total", "time ms", "bus GB/s", "of link %")
    whole = {name: [row[index] for row in cells] for index, name in enumerate(columns)}
    return Section(title="Traffic between ranks", paragraphs=tuple(texts), tables=(filled("", whole, source),))


def _ranks(ranks: RanksAnalysis, source: str | None) -> Section:
    several = len(ranks.rows) > 1
    texts = ["Busy: a kernel or graph ran on at least one GPU of the process, between its first GPU work and its last."]
    if ranks.straggler is not None:
        late = next(row for row in ranks.rows if row.rank == ranks.straggler)
        if late.arrivals is not None:
            texts.append(
                f"Rank {ranks.straggler} delays the others: it arrives last in {late.arrivals.came_last} of "
                f"{late.arrivals.matched} matched collectives, and they wait "
                f"{format_ms(late.arrivals.held_up_ns / 1e6)} for it in all."
            )
    elif several and any(row.arrivals is not None for row in ranks.rows):
        texts.append("No rank delays the others for long.")
    tables = [_time_table("", [(_name(row, ranks), row.time) for row in ranks.rows], source)]
    if ranks.devices:
        named = [(f"{_who(row, ranks)}, GPU {row.device}", row.time) for row in ranks.devices]
        tables.append(_time_table("By GPU: busy is the union of what ran on that one", named, source))
    waiting = _arrivals(ranks, source)
    return Section(
        title=("Repetitions" if ranks.files_are == REPEATS else "Ranks") if several else "GPU time",
        paragraphs=tuple(texts),
        tables=(*tables, *([waiting] if waiting is not None else [])),
    )


def _name(row: RankRow, ranks: RanksAnalysis) -> str:
    gpus = ", ".join(str(device) for device in row.devices if device >= 0)
    return _who(row, ranks) + (f", GPU {gpus}" if gpus else "")


def _who(row: RankRow | DeviceRow, ranks: RanksAnalysis) -> str:
    """The rank, else the process; of repetitions the file, which alone distinguishes them."""
    if ranks.files_are == REPEATS:
        return PurePath(row.source).name
    if row.rank is not None:
        return f"rank {row.rank}"
    several = len({other.source for other in ranks.rows}) > 1
    parts = [*([PurePath(row.source).name] if several or row.process is None else []), row.process]
    return ", ".join(part for part in parts if part)


def _time_table(title: str, rows: Sequence[tuple[str, Split]], source: str | None) -> SectionTable:
    return SectionTable(
        title=title,
        columns=("who", "kernels", "span ms", "busy ms", "busy %", "compute ms", "copies ms", "communication ms"),
        rows=tuple(
            (
                name,
                time.kernel_count,
                time.span_ns / 1e6,
                time.busy_ns / 1e6,
                100.0 * time.busy_ns / time.span_ns if time.span_ns else None,
                time.computation_ns / 1e6,
                time.copy_ns / 1e6,
                time.communication_ns / 1e6,
            )
            for name, time in rows[:ROWS]
        ),
        source=source,
    )


def _arrivals(ranks: RanksAnalysis, source: str | None) -> SectionTable | None:
    known = [(row, row.arrivals) for row in ranks.rows if row.arrivals is not None]
    if not known:
        return None
    return SectionTable(
        title="Waiting between ranks, in collectives that ended together on all ranks given",
        columns=("who", "matched", "waited ms", "came last", "others waited for it ms"),
        rows=tuple(
            (_name(row, ranks), came.matched, came.waited_ns / 1e6, came.came_last, came.held_up_ns / 1e6)
            for row, came in known[:ROWS]
        ),
        source=source,
    )


def _communication(ranks: RanksAnalysis, source: str | None) -> Section:
    talking = [row for row in ranks.rows if row.time.communication_ns]
    exposed = max(talking, key=lambda row: row.time.exposed_pct)
    texts = [
        f"Exposed is communication alongside which nothing ran: at most "
        f"{format_percent(exposed.time.exposed_pct / 100)} of a rank's time ({_name(exposed, ranks)}). "
        "HTA's overlap is the share of communication time during which a computation kernel ran."
    ]
    if ranks.longest is not None:
        texts.append(_longest(ranks.longest))
    overlap = SectionTable(
        columns=(
            "who", "communication ms", "overlapped ms", "exposed ms", "exposed, % of span", "overlap, % (HTA)",
            "idle % (HTA)", "compute % (HTA)", "non-compute % (HTA)",
        ),
        rows=tuple(
            (
                _name(row, ranks),
                row.time.communication_ns / 1e6,
                row.time.overlapped_ns / 1e6,
                row.time.exposed_ns / 1e6,
                row.time.exposed_pct,
                row.time.hta_overlap_pct,
                row.time.hta_idle_pct,
                row.time.hta_compute_pct,
                row.time.hta_non_compute_pct,
            )
            for row in talking[:ROWS]
        ),
        source=source,
    )  # fmt: skip
    return Section(title="Communication", paragraphs=tuple(texts), tables=(overlap, _collectives(ranks, source)))


def _longest(longest: LongestCollective) -> str:
    """The longest collective as a sentence, with as much as the capture says of it."""
    size = "" if longest.message_bytes is None else f" of {format_bytes(longest.message_bytes)}"
    rank = "" if longest.rank is None else f" on rank {longest.rank}"
    place = next((f", launched in {name}" for name in (longest.range_name, longest.operator) if name is not None), "")
    return (
        f"Longest collective: {longest.collective}{size}{rank}, {longest.length_ns / 1e6:,.3f} ms{place}; the median "
        f"of its kind is {longest.median_ns / 1e6:,.3f} ms."
    )


def _collectives(ranks: RanksAnalysis, source: str | None) -> SectionTable:
    rows = ranks.collectives[:ROWS]
    columns: dict[str, list[Cell]] = {
        "collective": [row.collective for row in rows],
        "n": [row.count for row in rows],
        "message": [None if row.message_bytes is None else format_bytes(row.message_bytes) for row in rows],
        "dtype": [row.dtype for row in rows],
        "group": [_group(row) for row in rows],
        "total ms": [row.total_ns / 1e6 for row in rows],
        "median ms": [row.median_ns / 1e6 for row in rows],
        "max ms": [row.max_ns / 1e6 for row in rows],
        "algorithm GB/s": [row.algorithm_gb_s for row in rows],
        "bus GB/s": [row.bus_gb_s for row in rows],
        "matched": [row.matched or None for row in rows],
        "skew, median ms": [None if row.skew_median_ns is None else row.skew_median_ns / 1e6 for row in rows],
        "skew, max ms": [None if row.skew_max_ns is None else row.skew_max_ns / 1e6 for row in rows],
        "kernels": [", ".join(row.kernels) for row in rows],
    }
    return filled("Collectives", columns, source)


def _group(row: CollectiveRow) -> str | None:
    if row.group is None:
        return None if row.group_size is None else f"{row.group_size} ranks"
    return row.group if row.group_size is None else f"{row.group} ({row.group_size})"
