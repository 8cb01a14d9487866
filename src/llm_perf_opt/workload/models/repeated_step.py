"""A decode step over a static cache, run as asked: eager, compiled, or replayed from a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.workload.models.snapshot import first_line

# A static cache is as long as the longest sequence, in steps of this many tokens.
CACHE_STEP = 64
CAPTURE_WARMUP = 2


def cache_length(tokens: int) -> int:
    """Places of a static cache that is to hold this many tokens."""
    return -(-tokens // CACHE_STEP) * CACHE_STEP


class RepeatedStep:
    """`forward(token, *buffers)` gives the logits of the next position; all it reads and writes stays where it is.

    `start_over` says, for every new cache, which counter moves on by one after a step, which further tensors a step
    moves on by itself, and why a step of this cache cannot be captured, if it cannot.
    """

    def __init__(self, forward: Callable[..., Any], infer: InferSection, *, device: str) -> None:
        import torch

        self._torch = torch
        self._mode = infer.compile
        self._step = forward if infer.compile == "none" else _compiled(forward, infer.compile)
        self._wants_graph = infer.cuda_graph
        self._graph: Any = None
        self._graph_logits: Any = None
        self._token: Any = None
        self._counter: Any = None
        self._also_moved: Callable[[], Sequence[Any]] = list
        self._why_no_graph: Callable[[], str | None] = lambda: None
        self.notes: list[str] = []
        self._say_what_cannot_be(device)

    def start_over(
        self, *, counter: Any, also_moved: Callable[[], Sequence[Any]], no_graph: Callable[[], str | None]
    ) -> None:
        """Forget the graph of a cache that is gone."""
        self._graph = None
        self._counter, self._also_moved, self._why_no_graph = counter, also_moved, no_graph

    @property
    def replays_graph(self) -> bool:
        return self._graph is not None

    def run(self, token: Any, buffers: tuple[Any, ...]) -> Any:
        """One step; the logits may be overwritten by the next one."""
        if self._wants_graph and self._graph is None:
            self._capture(token, buffers)
        if self._graph is not None:
            self._token.copy_(token)
            self._graph.replay()
            return self._graph_logits
        if self._mode != "none":
            # What the step before returned may be overwritten from here on.
            self._torch.compiler.cudagraph_mark_step_begin()
        with self._torch.no_grad():
            logits = self._step(token, *buffers)
            self._counter.add_(1)
        return logits

    def _capture(self, token: Any, buffers: tuple[Any, ...]) -> None:
        """Record one decode step as a CUDA graph; where that fails, steps continue without and a note says why."""
        self._wants_graph = False
        if (why := self._why_no_graph()) is not None:
            self._refuse_graph(why)
            return
        torch = self._torch
        moved = [*self._also_moved(), self._counter]
        before = [tensor.clone() for tensor in moved]
        self._token = token.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.no_grad(), torch.cuda.stream(side):
                for _ in range(CAPTURE_WARMUP):
                    self._step(self._token, *buffers)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                logits = self._step(self._token, *buffers)
                self._counter.add_(1)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self._refuse_graph(first_line(error))
        else:
            self._graph, self._graph_logits, self._wants_graph = graph, logits, True
        # The steps before the capture moved the cache on.
        for tensor, value in zip(moved, before, strict=True):
            tensor.copy_(value)

    def _refuse_graph(self, why: str) -> None:
        self.notes.append(f"infer.cuda_graph=true: no CUDA graph was captured, decode steps run without it: {why}")

    def _say_what_cannot_be(self, device: str) -> None:
        on_gpu = device.startswith("cuda")
        if self._wants_graph and not on_gpu:
            self._refuse_graph(f"the model runs on {device}")
            self._wants_graph = False
        if self._mode in ("reduce-overhead", "max-autotune") and not on_gpu:
            self.notes.append(f"infer.compile={self._mode}: compiled, but without CUDA graphs on {device}")


def _compiled(forward: Callable[..., Any], mode: str) -> Any:
    # Inductor is imported only when something is compiled.
    import torch

    from llm_perf_opt.workload.models.compiled_nodes import note_modules_of_graphs

    note_modules_of_graphs()
    return torch.compile(forward, mode=None if mode == "default" else mode, dynamic=False)
