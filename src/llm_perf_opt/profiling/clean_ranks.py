"""Clean times of every rank of a run, as metrics and a section; apart from captures of ranks, which need numpy."""

from pathlib import Path

from llm_perf_opt.core.documents import MetricsDocument, Stats
from llm_perf_opt.core.names import METRICS_FILE, RANK_PREFIX
from llm_perf_opt.core.records import Metric
from llm_perf_opt.core.sections import Section, SectionTable
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.profiling.baseline import read_metrics

_TIMES = {"ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "e2e_ms": "request ms", "decode_tokens_per_s": "decode tokens/s"}


def clean_ranks(folder: Path, source: str) -> tuple[dict[str, Metric], tuple[Section, ...]]:
    """The clean times of every rank below a stage's folder, and of the slowest; nothing where it ran alone."""
    documents = read_ranks(folder)
    if len(documents) < 2:
        return {}, ()
    tp = next((d.deployment.tp for d in documents.values() if d.deployment is not None), 1)
    medians = {rank: {name: _median(d, name) for name in _TIMES} for rank, d in documents.items()}
    metrics = {}
    for name in ("ttft_ms", "tpot_ms"):
        known = {rank: value for rank, found in medians.items() if (value := found[name]) is not None}
        if known:
            slowest = max(known, key=lambda rank: known[rank])
            how = f"clean pass, median of rank {slowest}, the slowest of {len(known)}"
            metrics[f"slowest_rank_{name}"] = Metric(value=known[slowest], unit="ms", how=how, source=source)
    rates = [found["decode_tokens_per_s"] for found in medians.values()]
    if tp == 1 and all(rate is not None for rate in rates):
        metrics["all_ranks_decode_tokens_per_s"] = Metric(
            value=sum(rate for rate in rates if rate is not None),
            unit="tokens/s",
            how=f"sum of the clean medians of {len(rates)} ranks, which ran at the same time",
            source=source,
        )
    first = "rank 0 writes where a single process would" if tp == 1 else "all ranks do the same steps together"
    table = SectionTable(
        columns=("rank", "device", *_TIMES.values(), "peak memory"),
        rows=tuple(
            (
                rank,
                documents[rank].model.device_name,
                *found.values(),
                None if (peak := documents[rank].clean.peak_memory_bytes) is None else format_bytes(peak),
            )
            for rank, found in sorted(medians.items())
        ),
        source=source,
    )
    text = f"Clean times, medians of each rank; the headline's are those of rank 0 ({first})."
    return metrics, (Section(title="Ranks: clean times", paragraphs=(text,), metrics=tuple(metrics), tables=(table,)),)


def read_ranks(folder: Path) -> dict[int, MetricsDocument]:
    """What each rank wrote: the first into the folder itself, the others into folders of their own."""
    others = [p.parent for p in folder.glob(f"{RANK_PREFIX}*/{METRICS_FILE}")]
    numbered = {int(p.name.removeprefix(RANK_PREFIX)): p for p in others if p.name[len(RANK_PREFIX) :].isdigit()}
    return {0: read_metrics(folder), **{rank: read_metrics(path) for rank, path in sorted(numbered.items())}}


def _median(document: MetricsDocument, name: str) -> float | None:
    stats: Stats | None = document.clean.metrics.get(name)
    return None if stats is None else stats.p50
