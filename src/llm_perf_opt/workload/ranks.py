"""The ranks of one job: who this process is, how it meets the others, and which part of the work is its own.

torchrun gives every process its rank. With `infer.tp` the ranks are one model and do the same steps together; without,
each has a whole model and a part of the samples of its own.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from llm_perf_opt.core.names import COMMUNICATION, RANK_PREFIX
from llm_perf_opt.workload.nvtx import RangeEmitter

T = TypeVar("T")
# A rank that lost another one says so after that, instead of waiting for ever.
TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of a job. `tp`: over how many ranks each model is split."""

    rank: int
    local_rank: int
    world_size: int
    tp: int

    @property
    def moves_together(self) -> bool:
        """Whether a step needs the other ranks: then no rank may leave one out."""
        return self.tp > 1

    @property
    def note(self) -> str:
        how = (
            f"one model split over them (infer.tp={self.tp})"
            if self.tp > 1
            else "each with a model and samples of its own"
        )
        return f"rank {self.rank} of {self.world_size}, {how}; times are those of this rank"

    def folder(self, out_dir: Path) -> Path:
        """Where this rank writes: the first one where a single process would."""
        return out_dir if self.rank == 0 else out_dir / f"{RANK_PREFIX}{self.rank}"

    def device(self, wanted: str) -> str:
        """`run.device` for this rank: each has the GPU of its number on its node."""
        return wanted if wanted == "cpu" else f"cuda:{self.local_rank}"

    def part(self, planned: Sequence[T]) -> tuple[T, ...]:
        """The samples of this rank: all where ranks are one model, else every n-th; none is idle."""
        if self.moves_together or self.world_size == 1:
            return tuple(planned)
        return tuple(planned[self.rank :: self.world_size]) or (planned[self.rank % len(planned)],)


def own_rank(environ: Mapping[str, str], *, tp: int) -> Rank | None:
    """This process among those torchrun started; None: it was started alone."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    numbers = {name: int(environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return Rank(rank=numbers["RANK"], local_rank=numbers["LOCAL_RANK"], world_size=numbers["WORLD_SIZE"], tp=tp)


def meet(device: str) -> str:
    """Form the process group: NCCL between GPUs, gloo between processors; which of them it is."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if device.startswith("cuda") else "gloo"
    bound = {"device_id": torch.device(device)} if backend == "nccl" else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S), **bound)
    return backend


def line_up(rank: Rank | None) -> None:
    """Wait until every rank is here, so that what follows is measured while all of them work."""
    if rank is not None:
        import torch.distributed as dist

        dist.barrier()


def part_ways(rank: Rank | None) -> None:
    if rank is not None:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


@contextmanager
def communication_ranges(rank: Rank | None, ranges: RangeEmitter) -> Iterator[None]:
    """Open a range around every collective a step makes, with what it is and how many bytes it moves.

    transformers splits a model with DTensors, whose layouts are changed by `redistribute`, and with `all_reduce`.
    """
    if rank is None or rank.world_size == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    undo: list[Callable[[], None]] = []

    def watch(owner: Any, name: str, label: Callable[..., str | None]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def watched(*args: Any, **options: Any) -> Any:
            text = label(*args, **options)
            if text is None:
                return original(*args, **options)
            ranges.push(text)
            try:
                return _waited(original(*args, **options))
            finally:
                ranges.pop()

        setattr(owner, name, watched)
        undo.append(lambda: setattr(owner, name, original))

    watch(dist, "all_reduce", lambda tensor, *_, **__: _label("all_reduce", tensor))
    watch(DTensor, "redistribute", _redistribution)
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _redistribution(tensor: Any, device_mesh: Any = None, placements: Any = None, **_: Any) -> str | None:
    """What a change of layout costs: partial sums are added up, pieces are gathered; the rest moves nothing."""
    before, after = tensor.placements[0], (placements or tensor.placements)[0]
    if before.is_partial() and not after.is_partial():
        return _label("all_reduce" if after.is_replicate() else "reduce_scatter", tensor.to_local())
    if before.is_shard() and after.is_replicate():
        return f"{COMMUNICATION}:all_gather:{tensor.numel() * tensor.element_size()}"
    return None


def _label(operation: str, tensor: Any) -> str:
    return f"{COMMUNICATION}:{operation}:{tensor.numel() * tensor.element_size()}"


def _waited(result: Any) -> Any:
    """A result that is still on its way on a processor is waited for, so that the range holds all of it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor

    local = result.to_local() if isinstance(result, DTensor) else result
    if isinstance(local, AsyncCollectiveTensor) and local.device.type == "cpu":
        local.wait()
    return result


def this_rank(config_tp: int) -> Rank | None:
    return own_rank(os.environ, tp=config_tp)
