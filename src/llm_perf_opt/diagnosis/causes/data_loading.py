"""The GPU waits for the next data; workers that load in parallel hide that behind the rest of the step."""

import re

from llm_perf_opt.diagnosis.causes.cell_alone import confidence_of_owners, joined_owner, named_cells, owner_facts
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import HOST_LOADING, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

DATA_LOADING = "idle.data_loading"
# As many cores as a host can be expected to have for the loader of one GPU.
WORKERS = 16
# Ranges and frames of torch's loader where worker processes load: it waits for their next batch.
_HAS_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter|dataloader\.py\(\d+\): (_try)?_get_data")


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.ledger.ns(HOST_LOADING):
        return _on_the_host(scope)
    cells = scope.ledger.below(DATA_LOADING)
    loading = sum(cell.time_ns for cell in cells)
    rest, named = scope.wall_ns - loading, named_cells(cells)
    has_workers = any(_HAS_WORKERS.search(name) for cell in named for name in cell.owner)
    # What workers leave over is hidden already as far as they can: by how many more is not known.
    floor_ns = None if has_workers else max(0, loading // WORKERS - rest)
    facts = [Fact(key="gaps", values={"time": loading}), *owner_facts(named)]
    if has_workers:
        facts.append(Fact(key="more_workers", values={"factor": scope.wall_ns / max(rest, 1)}))
    elif loading > rest:
        facts.append(Fact(key="workers", values={"factor": loading / max(rest, 1)}))
    return Claim(
        title="named" if named else "title",
        values={"owner": joined_owner(named), "gaps": sum(cell.count for cell in cells)},
        cells=scope.ledger.by_id(DATA_LOADING),
        floor_ns=floor_ns,
        floor=None if has_workers else "overlap",
        evidence=tuple(facts),
        traits=frozenset({"workers"} if has_workers else ()),
        confidence=confidence_of_owners(cells, named),
    )


def _on_the_host(scope: Scope) -> Claim:
    """A program without GPU work: workers would need the processors that compute, so nothing is promised."""
    (cell,) = scope.ledger.below(HOST_LOADING)
    has_workers = any(_HAS_WORKERS.search(name) for name in cell.owner)
    return Claim(
        title="host",
        values={"owner": " ← ".join(cell.owner)},
        cells={HOST_LOADING: cell.time_ns},
        evidence=(Fact(key="host", values={"time": cell.time_ns}),),
        traits=frozenset({"workers"} if has_workers else {"host"}),
        confidence="high",
    )
