"""What page and Perfetto trace show of the memory: areas by kind over time, the peak, predictions, operators."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from llm_perf_opt.plugin import (
    ChartBand,
    CounterDocument,
    CounterSpan,
    CounterTrack,
    Link,
    Picture,
    Section,
    SectionTable,
    StageContext,
    draw_chart,
)
from llm_perf_opt.plugins.memory.blocks import KINDS
from llm_perf_opt.plugins.memory.cuda import SNAPSHOT
from llm_perf_opt.plugins.memory.document import MemoryDocument, Peak, RanOut
from llm_perf_opt.plugins.memory.watcher import OOM_SNAPSHOT

NAMES = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "workspace": "workspace",
    "loading": "loading",
    "activations": "activations",
    "fragmentation": "fragmentation",
    "other": "context and other processes",
}
MOST_BANDS = 400
MOST_FRAMES = 12
VIEWER = "https://pytorch.org/memory_viz"


# From this much above the tokens of a request on, a cache holds more than them.
HAS_ROOM = 1.05
ROOM = (
    "The KV cache is measured as it is allocated and predicted for the tokens of one request: one that grows by blocks "
    "holds room for tokens to come."
)


def memory_sections(
    ctx: StageContext,
    document: MemoryDocument,
    ran_out: MemoryDocument | None,
    predicted: Mapping[str, float],
    why: str | None,
    source: str,
) -> tuple[Section, ...]:
    """Memory over time; and the post-mortem, where memory ran out."""
    sections = []
    if ran_out is not None and ran_out.ran_out is not None:
        sections.append(_post_mortem(ctx, ran_out, ran_out.ran_out))
    name = "timeline.svg"
    lines = chart_lines(document)
    bands = [ChartBand(start=p.start_s, end=p.end_s, label=p.name) for p in document.phases]
    drawn = draw_chart(
        {NAMES.get(kind, kind): points for kind, points in lines.items()},
        title="Memory over time by kind",
        x_unit="s",
        y_unit="bytes",
        bands=bands if len(bands) <= MOST_BANDS else (),
        stacked=True,
    )
    (ctx.out_dir / name).write_text(drawn, encoding="utf-8")
    tables = [_compared(document, predicted, source)]
    if document.peak is not None:
        tables.append(_sites(document.peak, source))
    if document.operators:
        tables.append(_operators(document, source))
    paragraphs = [
        f"{document.device}: {document.how}.",
        *([] if document.peak is None else [_peak_words(document.peak)]),
    ]
    if why is not None:
        paragraphs.append(f"Nothing to compare with: {why}.")
    if 0 < HAS_ROOM * predicted.get("kv_cache_bytes", 0.0) < (document.kv_cache_bytes or 0):
        paragraphs.append(ROOM)
    sections.append(
        Section(
            title="Memory over time",
            paragraphs=(*paragraphs, *document.notes),
            tables=tuple(tables),
            picture=Picture(path=f"{ctx.out_dir.name}/{name}", shows="bytes of each kind over time, phases shaded"),
            links=_links(ctx, SNAPSHOT),
        )
    )
    return tuple(sections)


def chart_lines(document: MemoryDocument) -> dict[str, list[tuple[float, float]]]:
    """Every kind at the same moments; what never held anything is left out."""
    lines: dict[str, Sequence[float]] = {kind: document.by_kind[kind] for kind in KINDS}
    total = [sum(document.by_kind[kind][i] for kind in KINDS) for i in range(len(document.at_s))]
    if document.reserved:
        held = [_at(document.reserved, at) for at in document.at_s]
        lines["fragmentation"] = [max(r - t, 0) for r, t in zip(held, total, strict=True)]
        if document.device_used:
            used = [_at(document.device_used, at) for at in document.at_s]
            lines["other"] = [max(u - r, 0) if u else 0 for u, r in zip(used, held, strict=True)]
    return {k: list(zip(document.at_s, v, strict=True)) for k, v in lines.items() if any(v)}


def _at(points: Sequence[tuple[float, int]], moment: float) -> int:
    """The last value reported until a moment; before the first, that."""
    index = bisect_right(points, moment, key=lambda point: point[0])
    return points[max(index - 1, 0)][1]


def _compared(document: MemoryDocument, predicted: Mapping[str, float], source: str) -> SectionTable:
    peak = document.measured_peak_bytes or (None if document.peak is None else document.peak.total_bytes)
    measured = {
        "weights": ("weights_bytes", document.weights_bytes),
        "KV cache": ("kv_cache_bytes", document.kv_cache_bytes),
        "activations": ("activations_bytes", document.activations_bytes),
        "workspace": ("", document.workspace_bytes),
        "peak": ("peak_bytes", peak),
        "reserved at most": ("", document.reserved_peak_bytes),
        "resident set at most": ("", max((size for _, size in document.resident), default=None)),
        "in use on the device before": ("", document.used_before_bytes),
    }
    rows = []
    for label, (key, value) in measured.items():
        expected = predicted.get(key)
        if value is None and expected is None:
            continue
        off = 100 * (expected / value - 1) if expected is not None and value else None
        rows.append((label, _mb(expected), _mb(value), None if off is None else f"{off:+.1f} %"))
    return SectionTable(
        title="Predicted and measured",
        columns=("what", "predicted, MB", "measured, MB", "off by"),
        rows=tuple(rows),
        source=source,
    )


def _mb(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def _sites(peak: Peak, source: str) -> SectionTable:
    return SectionTable(
        title="Alive at the peak",
        columns=("kind", "module", "place", "times", "MB"),
        rows=tuple(
            (NAMES.get(s.kind, s.kind), s.module or None, _short(s.place) or None, s.count, s.size_bytes / 1e6)
            for s in peak.sites
        ),
        source=source,
    )


def _operators(document: MemoryDocument, source: str) -> SectionTable:
    return SectionTable(
        title="Allocated by operator",
        columns=("operator", "allocations", "MB in all", "largest, MB"),
        rows=tuple((o.operator, o.calls, o.allocated_bytes / 1e6, o.largest_bytes / 1e6) for o in document.operators),
        source=source,
    )


def _peak_words(peak: Peak) -> str:
    where = f" in {peak.phase}" if peak.phase else ""
    module = f" in module {peak.module}" if peak.module else ""
    by = f" ({peak.operator})" if peak.operator else ""
    stack = " ← ".join(_short(frame) for frame in peak.stack[:MOST_FRAMES])
    made = f"It was made by an allocation of {peak.made_by_bytes / 1e6:,.2f} MB{module}{by}"
    return f"The peak of {peak.total_bytes / 1e6:,.1f} MB was {peak.at_s:.2f} s after loading began{where}. {made}" + (
        f": {stack}." if stack else "."
    )


def _short(frame: str) -> str:
    """A frame without the folders packages are installed in; ours may run from a checkout."""
    installed = frame.rpartition("site-packages/")[2]
    return installed[installed.rfind("/llm_perf_opt/") + 1 :]


def _post_mortem(ctx: StageContext, document: MemoryDocument, ran_out: RanOut) -> Section:
    words = [f"Memory ran out: {ran_out.error.rstrip('.')}."]
    if ran_out.asked_bytes is not None:
        free = "" if ran_out.device_free_bytes is None else f", {ran_out.device_free_bytes / 1e6:,.1f} MB were free"
        words.append(f"{ran_out.asked_bytes / 1e6:,.1f} MB were requested{free}.")
    if ran_out.stack:
        words.append("By: " + " ← ".join(_short(frame) for frame in ran_out.stack[:MOST_FRAMES]) + ".")
    if ran_out.module:
        words.append(f"In module {ran_out.module}.")
    source = f"{ctx.out_dir.name}/out_of_memory.json"
    tables = () if document.peak is None else (_sites(document.peak, source),)
    return Section(title="Out of memory", paragraphs=tuple(words), tables=tables, links=_links(ctx, OOM_SNAPSHOT))


def _links(ctx: StageContext, snapshot: str) -> tuple[Link, ...]:
    if not (ctx.out_dir / snapshot).is_file():
        return ()
    return (
        Link(text="snapshot of the allocator", target=f"{ctx.out_dir.name}/{snapshot}"),
        Link(text="PyTorch's memory viewer, which opens it", target=VIEWER),
    )


def write_counters(out_dir: Path, document: MemoryDocument) -> Path:
    """Every kind over time with the phases alongside it, for the Perfetto trace."""
    zero = document.zero_monotonic_ns
    tracks = [
        CounterTrack(name=NAMES.get(k, k), unit="bytes", points=tuple((zero + round(at * 1e9), v) for at, v in points))
        for k, points in chart_lines(document).items()
    ]
    if document.resident:
        points = tuple((zero + round(at * 1e9), float(size)) for at, size in document.resident)
        tracks.append(CounterTrack(name="resident set", unit="bytes", points=points))
    spans = tuple(
        CounterSpan(name=p.name, start_ns=zero + round(p.start_s * 1e9), end_ns=zero + round(p.end_s * 1e9))
        for p in document.phases
    )
    content = CounterDocument(title="memory: allocations of its own pass", tracks=tuple(tracks), spans=spans)
    path = out_dir / "counters.json"
    path.write_text(json.dumps(asdict(content), allow_nan=False) + "\n", encoding="utf-8")
    return path
