"""Inside the process that runs the model: notes what weights and caches hold, records allocations, writes them."""

import json
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from llm_perf_opt.plugin import LoadedModel, StepOutput, WorkloadWatcher
from llm_perf_opt.plugins.memory import cuda
from llm_perf_opt.plugins.memory.blocks import (
    ACTIVATIONS,
    WORKSPACE,
    CacheNote,
    MemoryBlock,
    PeakOf,
    Seen,
    course_of,
    kinds_of,
    most_of,
    sites_of,
)
from llm_perf_opt.plugins.memory.cpu import (
    RESIDENT,
    OperatorMemory,
    ResidentSampler,
    TensorRecorder,
    by_operator,
    read_resident,
)
from llm_perf_opt.plugins.memory.document import MemoryDocument, MemoryPhase, Peak, RanOut, Site
from llm_perf_opt.plugins.memory.module_names import ModuleNames

MEMORY_JSON = "memory.json"
OOM_JSON = "out_of_memory.json"
OOM_SNAPSHOT = "out_of_memory.pickle"
MOST_OBJECTS = 20_000
MOST_SITES = 25
MOST_OPERATORS = 25
# A cache has at least sequences, positions and features; masks and positions have fewer dimensions.
CACHE_DIMENSIONS = 3
NOTED = ("prefill", "decode")
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|Unable to allocate", re.IGNORECASE)

ASKED_OF_THE_CPU = re.compile(r"you tried to allocate (\d+) bytes")


class MemoryWatcher(WorkloadWatcher):
    """See the module."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(folder, settings)
        self._device = "cpu"
        self._zero_us = _now_us()
        self._zero_monotonic_ns = time.monotonic_ns()
        self._weights: dict[int, int] = {}
        self._caches: list[CacheNote] = []
        self._starts_us: list[int] = []
        self._loaded_us = 0
        self._open: list[tuple[str, int]] = []
        self._phases: list[tuple[str, int, int]] = []
        self._used: list[tuple[int, int]] = []
        self._highest = self._highest_reserved = 0
        self._names: ModuleNames | None = None
        self._modules: dict[int, str] = {}
        self._resident: ResidentSampler | None = None
        self._tensors: TensorRecorder | None = None
        self._tensor_blocks: list[MemoryBlock] = []
        self._steps = 0
        self._is_recorded = False
        self._ran_out: RanOut | None = None
        self._failed_start_us: int | None = None

    @property
    def _on_gpu(self) -> bool:
        return self._device.startswith("cuda")

    def before_load(self, device: str) -> None:
        self._device = device
        if self._on_gpu:
            cuda.start_history(self.settings["max_entries"])
        else:
            self._resident = ResidentSampler(self.folder / RESIDENT, self.settings["interval_ms"] / 1e3)

    def loaded(self, model: LoadedModel) -> LoadedModel:
        module = model.module
        tensors = [*module.parameters(), *module.buffers()]
        self._weights = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors) if s.data_ptr()}
        self._names = ModuleNames(module)
        self._modules = {id(one): name for name, one in module.named_modules()}
        self._note_device()
        self._loaded_us = _now_us()
        return cast(LoadedModel, WatchedModel(model, self))

    def began(self, name: str) -> None:
        if name == "prefill":
            self._starts_us.append(_now_us())
            if not self._on_gpu and not self._is_recorded and self._tensors is None:
                self._tensors = TensorRecorder(self._modules)
        self._open.append((name, _now_us()))

    def ended(self, name: str) -> None:
        opened = self._open.pop()[1]
        if name in NOTED:
            self._phases.append((name, opened, _now_us()))
            self._note_device()
        if self._tensors is not None:
            self._steps += name == "decode_step"
            # The request may end with its prefill: then the next one begins.
            if self._steps >= self.settings["max_decode_steps"] or name == "decode":
                self._stop_tensors()

    def stepped(self, step: StepOutput) -> None:
        """A forward has returned: what its state holds now is the cache."""
        found = {k: v for k, v in storages_of(step.state).items() if k not in self._weights}
        self._caches.append(CacheNote(at_us=_now_us(), storages=found))

    def failed(self, error: BaseException) -> None:
        if self._ran_out is not None or not OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
            return
        if self._on_gpu:
            cuda.write_snapshot(self.folder / OOM_SNAPSHOT)
        if self._tensors is not None:
            self._stop_tensors()
        self._failed_start_us = self._starts_us[-1] if self._starts_us else None
        text, stack = str(error), frames_of(error)
        asked = ASKED_OF_THE_CPU.search(text)
        self._ran_out = RanOut(
            error=text.splitlines()[0] if text else type(error).__name__,
            at_s=self._seconds(_now_us()),
            asked_bytes=None if asked is None else int(asked[1]),
            device_free_bytes=None,
            module=self._names.of(stack) if self._names is not None else "",
            stack=stack,
        )
        self._write(OOM_JSON)

    def close(self) -> None:
        if self._tensors is not None:
            self._stop_tensors()
        if self._resident is not None:
            self._resident.stop()
        if self._on_gpu:
            cuda.write_snapshot(self.folder / cuda.SNAPSHOT)
        self._write(MEMORY_JSON)

    def _stop_tensors(self) -> None:
        assert self._tensors is not None
        recorder, self._tensors = self._tensors, None
        self._is_recorded = True
        self._tensor_blocks = recorder.stop()

    def _note_device(self) -> None:
        """Torch's own counters and the device's, at the edge of a phase; the workload resets peaks between samples."""
        if not self._on_gpu:
            return
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        self._used.append((_now_us(), total - free))
        self._highest = max(self._highest, torch.cuda.max_memory_allocated(self._device))
        self._highest_reserved = max(self._highest_reserved, torch.cuda.max_memory_reserved(self._device))

    def _seconds(self, at_us: int) -> float:
        return max(at_us - self._zero_us, 0) / 1e6

    def _write(self, name: str) -> None:
        document = self._describe()
        (self.folder / name).write_text(json.dumps(asdict(document), allow_nan=False) + "\n", encoding="utf-8")

    def _describe(self) -> MemoryDocument:
        seen = Seen(
            weights=self._weights,
            caches=tuple(self._caches),
            request_starts_us=tuple(self._starts_us),
            loaded_us=self._loaded_us or _now_us(),
            ended_us=_now_us(),
            failed_start_us=self._failed_start_us,
        )
        history = cuda.take_history(self._index, self.settings["max_entries"]) if self._on_gpu else None
        blocks = list(history.blocks) if history is not None else [*self._weight_blocks(), *self._tensor_blocks]
        kinds = kinds_of(blocks, seen)
        course, peak = course_of(blocks, kinds)
        resident = [] if self._on_gpu else read_resident(self.folder / RESIDENT)
        return MemoryDocument(
            device=self._device,
            how=GPU_HOW if self._on_gpu else CPU_HOW,
            zero_monotonic_ns=self._zero_monotonic_ns,
            at_s=tuple(self._seconds(at) for at in course.at_us),
            by_kind=dict(course.bytes_by_kind),
            reserved=tuple((self._seconds(r.at_us), r.size_bytes) for r in (history.reserved if history else ())),
            device_used=tuple((self._seconds(at), size) for at, size in self._used),
            resident=tuple((self._seconds(at), size) for at, size in resident),
            phases=tuple(
                MemoryPhase(name=n, start_s=self._seconds(start), end_s=self._seconds(end))
                for n, start, end in self._phases
            ),
            weights_bytes=sum(self._weights.values()) or None,
            # A state without a tensor may be that of a model without a cache, or of one that keeps it to itself.
            kv_cache_bytes=max((note.size_bytes for note in self._caches), default=0) or None,
            activations_bytes=self._activations(blocks, kinds, is_cut=history is not None and history.is_cut),
            workspace_bytes=most_of(blocks, kinds, WORKSPACE) if self._on_gpu else None,
            measured_peak_bytes=self._highest or None,
            reserved_peak_bytes=self._highest_reserved or None,
            used_before_bytes=self.settings.get("used_before_bytes"),
            peak=self._peak(peak) if blocks else None,
            operators=self._operators(),
            ran_out=self._with_history(history),
            notes=self._notes(history, peak),
        )

    def _activations(self, blocks: list[MemoryBlock], kinds: Sequence[str], *, is_cut: bool) -> int | None:
        """The most at once; where the history lacks its beginning, what the counters leave for them."""
        if not is_cut:
            return most_of(blocks, kinds, ACTIVATIONS) if blocks else None
        cache = min((note.size_bytes for note in self._caches), default=0)
        return max(self._highest - sum(self._weights.values()) - cache, 0)

    @property
    def _index(self) -> int:
        return int(self._device.partition(":")[2] or 0)

    def _weight_blocks(self) -> list[MemoryBlock]:
        """The profiler does not know what was there before it started."""
        born = self._loaded_us
        return [
            MemoryBlock(address=a, size_bytes=size, born_us=born, died_us=None) for a, size in self._weights.items()
        ]

    def _operators(self) -> tuple[OperatorMemory, ...]:
        return by_operator(self._tensor_blocks, MOST_OPERATORS) if self._tensor_blocks else ()

    def _module(self, block: MemoryBlock) -> str:
        return block.module or (self._names.of(block.stack) if self._names is not None else "")

    def _peak(self, peak: PeakOf) -> Peak:
        maker = peak.maker
        named = [(replace(block, module=self._module(block)), kind) for block, kind in peak.alive]
        return Peak(
            at_s=self._seconds(peak.at_us),
            phase=next((n for n, start, end in self._phases if start <= peak.at_us <= end), ""),
            total_bytes=peak.total_bytes,
            by_kind=dict(peak.by_kind),
            made_by_bytes=0 if maker is None else maker.size_bytes,
            module="" if maker is None else self._module(maker),
            operator="" if maker is None else maker.operator,
            stack=() if maker is None else maker.stack,
            sites=tuple(
                Site(kind=kind, module=module, place=place, count=count, size_bytes=size)
                for kind, module, place, count, size in sites_of(named, MOST_SITES)
            ),
        )

    def _with_history(self, history: cuda.History | None) -> RanOut | None:
        """What failed, with what the allocator itself wrote down about it."""
        if self._ran_out is None or history is None or not history.failures:
            return self._ran_out
        last = history.failures[-1]
        return replace(
            self._ran_out,
            asked_bytes=last.asked_bytes,
            device_free_bytes=last.device_free_bytes,
            stack=last.stack,
            module=self._names.of(last.stack) if self._names is not None else "",
        )

    def _notes(self, history: cuda.History | None, peak: PeakOf) -> tuple[str, ...]:
        if history is None:
            steps = self.settings["max_decode_steps"]
            return (
                f"tensors were recorded over one prefill and at most {steps} decode steps, the resident set over all",
            )
        notes = []
        if history.is_cut:
            notes.append(
                f"the allocator's history is longer than pipeline.memory.max_entries={self.settings['max_entries']}: "
                "it begins in the middle of the run, and activations are the peak less weights and a prompt's cache"
            )
        if self._highest and peak.total_bytes < 0.98 * self._highest:
            notes.append("the peak by torch's own counter is not in the recorded history")
        return tuple(notes)


class WatchedModel:
    """The model as it is, whose steps are reported to the watcher."""

    def __init__(self, model: LoadedModel, watcher: MemoryWatcher) -> None:
        self._model = model
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, inputs: Any, ranges: Any) -> StepOutput:
        step = self._model.prefill(inputs, ranges)
        self._watcher.stepped(step)
        return step

    def decode(self, token: Any, state: Any) -> StepOutput:
        step = self._model.decode(token, state)
        self._watcher.stepped(step)
        return step


GPU_HOW = "history of the CUDA caching allocator: sizes as asked for, which it rounds up to 512 bytes"
CPU_HOW = "torch.profiler's allocations of the CPU allocator, and the resident set of the process"


def frames_of(error: BaseException) -> tuple[str, ...]:
    """Where an exception came from, the innermost frame first, as the allocator's history has frames."""
    return tuple(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(traceback.extract_tb(error.__traceback__)))


def storages_of(value: Any) -> dict[int, int]:
    """Address and bytes of every tensor storage reachable from a value, modules left out."""
    import torch

    found: dict[int, int] = {}
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or one is None or isinstance(one, str | bytes | int | float | type | torch.nn.Module):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.ndim >= CACHE_DIMENSIONS and one.device.type != "meta":
                storage = one.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            waiting.extend(one)
        elif not callable(one):
            waiting.extend(getattr(one, "__dict__", {}).values())
    found.pop(0, None)
    return found


def _now_us() -> int:
    return time.time_ns() // 1000
