"""Tensor memory on a CPU: torch.profiler's record of every allocation, and the resident set alongside it."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.plugins.memory.blocks import MemoryBlock

RESIDENT = "resident.csv"
STATM = Path("/proc/self/statm")
DEEPEST_STACK = 40
NS_PER_US = 1000


@dataclass(frozen=True, kw_only=True)
class OperatorMemory:
    """What one operator allocated in all of the recorded window."""

    operator: str
    calls: int
    allocated_bytes: int
    largest_bytes: int


class TensorRecorder:
    """torch.profiler over a stretch of the workload; `modules` are names by the id of a module."""

    def __init__(self, modules: Mapping[int, str]) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._modules = modules
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True)
        self._profiler.__enter__()

    def stop(self) -> list[MemoryBlock]:
        """The blocks that were born meanwhile."""
        self._profiler.__exit__(None, None, None)
        results: Any = self._profiler.profiler
        return blocks_of_tree(results.kineto_results.experimental_event_tree(), self._modules)


def blocks_of_tree(roots: Iterable[Any], modules: Mapping[int, str]) -> list[MemoryBlock]:
    """The profiler's events as blocks: an allocation of a negative size is a free."""
    events = sorted(_allocations(roots), key=lambda node: node.start_time_ns)
    done: list[MemoryBlock] = []
    alive: dict[int, MemoryBlock] = {}
    for node in events:
        extra = node.extra_fields
        at_us, address = node.start_time_ns // NS_PER_US, int(extra.ptr)
        if extra.alloc_size > 0:
            operator, module, stack = _origin(node, modules)
            alive[address] = MemoryBlock(
                address=address,
                size_bytes=int(extra.alloc_size),
                born_us=at_us,
                died_us=None,
                stack=stack,
                operator=operator,
                module=module,
            )
        elif address in alive:
            done.append(replace(alive.pop(address), died_us=at_us))
    return [*done, *alive.values()]


def _allocations(roots: Iterable[Any]) -> Iterator[Any]:
    from torch._C._profiler import _EventType

    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node.tag == _EventType.Allocation:
            yield node
        waiting.extend(node.children)


def _origin(node: Any, modules: Mapping[int, str]) -> tuple[str, str, tuple[str, ...]]:
    """The outermost torch operator right above an allocation, the module around it, and the Python stack."""
    from torch._C._profiler import _EventType

    operator, module = "", ""
    stack: list[str] = []
    parent = node.parent
    while parent is not None:
        if parent.tag == _EventType.TorchOp and not stack:
            operator = parent.name
        elif parent.tag == _EventType.PyCall:
            info = parent.extra_fields.module
            if info is not None:
                module = module or modules.get(int(info.self_ptr), "")
            elif len(stack) < DEEPEST_STACK:
                stack.append(parent.name)
        parent = parent.parent
    return operator, module, tuple(stack)


def by_operator(blocks: Iterable[MemoryBlock], most: int) -> tuple[OperatorMemory, ...]:
    """What each operator allocated, the most first."""
    found: dict[str, list[int]] = {}
    for block in blocks:
        sums = found.setdefault(block.operator or "outside of operators", [0, 0, 0])
        sums[0] += 1
        sums[1] += block.size_bytes
        sums[2] = max(sums[2], block.size_bytes)
    rows = [
        OperatorMemory(operator=name, calls=calls, allocated_bytes=total, largest_bytes=largest)
        for name, (calls, total, largest) in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.allocated_bytes)[:most])


class ResidentSampler:
    """Writes the resident set of this process while it runs, line by line: a process that is killed leaves its file."""

    def __init__(self, path: Path, interval_s: float, statm: Path = STATM) -> None:
        import resource

        self._page = resource.getpagesize()
        self._statm, self._interval_s = statm, interval_s
        self._stop = threading.Event()
        self._file = path.open("w", encoding="ascii")
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while True:
            pages = int(self._statm.read_text().split()[1])
            self._file.write(f"{time.time_ns() // NS_PER_US},{pages * self._page}\n")
            self._file.flush()
            if self._stop.wait(self._interval_s):
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._file.close()


def read_resident(path: Path) -> list[tuple[int, int]]:
    """Moments in µs and bytes; a last line that was cut off is left out."""
    lines = path.read_text(encoding="ascii").split("\n")[:-1] if path.is_file() else []
    return [(int(at), int(size)) for at, _, size in (line.partition(",") for line in lines)]
