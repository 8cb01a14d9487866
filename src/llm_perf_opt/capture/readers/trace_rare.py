"""What few traces need, read in a second pass: hardware counters of kernels, and what a foreign trace is made of."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.readers.trace_text import TraceText, read_chunks, read_with_cuts
from llm_perf_opt.capture.rows import CounterRow
from llm_perf_opt.errors import ParseError

COUNTED = "cuda_profiler_range"
CATEGORIES_NAMED = 6
# Whose traces have events of these categories; what to give instead is the same for all.
_TOOLS = (
    ({"Session", "Node"}, "of ONNX Runtime"),
    ({"FEE"}, "of VizTracer"),
    ({"Op"}, "of TensorFlow"),
    ({"cuda_api", "nvtx"}, "made from an nsys export"),
    ({"devtools.timeline"}, "of Chrome's developer tools"),
)
_SCALAR = re.compile(r"thread_inst_executed_op_[dfh](add|mul|fma)_pred_on\.sum$")


class _Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    ph: str = ""
    args: msgspec.Raw = msgspec.Raw(b"null")


def read_counters(path: Path) -> tuple[CounterRow, ...]:
    """What CUPTI counted, by kernel, by the first counter; its times are those of replays and mean nothing."""

    def read(careful: bool) -> dict[str, list[dict[str, float]]]:
        found: dict[str, list[dict[str, float]]] = {}
        for event in _events(path, careful=careful):
            if event.cat == COUNTED:
                args: Any = msgspec.json.decode(event.args)
                counted = args if isinstance(args, dict) else {}
                figures = {str(k): float(v) for k, v in counted.items() if isinstance(v, int | float)}
                found.setdefault(event.name, []).append(figures)
        return found

    return tuple(
        CounterRow(
            name=name,
            short_name=short_kernel_name(name),
            kernel_class=classify_kernel(name),
            instances=len(kernels),
            counters=(counters := _sums(kernels)),
            flop=_flop(counters),
        )
        for name, kernels in sorted(read_with_cuts(path, read).items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _sums(kernels: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(counter for kernel in kernels for counter in kernel)
    return {name: sum(kernel.get(name, 0.0) for kernel in kernels) for name in names}


def _flop(counters: dict[str, float]) -> float | None:
    """Operations on floating-point numbers by scalar instructions: a fused multiplication and addition counts twice."""
    counted = [(_SCALAR.search(name), value) for name, value in counters.items()]
    known = [(match[1], value) for match, value in counted if match]
    return sum(value * (2.0 if kind == "fma" else 1.0) for kind, value in known) if known else None


def categories_of(path: Path) -> Counter[str]:
    """How many complete events of each category a trace holds, regardless of their other fields."""

    def read(careful: bool) -> Counter[str]:
        return Counter(event.cat for event in _events(path, careful=careful) if event.ph == "X")

    return read_with_cuts(path, read)


def not_from_torch(path: Path, categories: Counter[str]) -> ParseError:
    """What to say about a trace in the format of Chrome that torch's profiler did not write."""
    if not categories:
        return ParseError(f"{path}: JSON, but no trace: it holds no complete event (an object with `ph` of `X`)")
    named = ", ".join(f"{cat!r}" for cat, _ in categories.most_common(CATEGORIES_NAMED) if cat)
    what = f"its events are of the categories {named}" if named else "its events have no category"
    tool = next((f"one {tool}: " for marks, tool in _TOOLS if marks <= set(categories)), "")
    return ParseError(
        f"{path}: a Chrome trace, but not one of torch's profiler ({tool}{what}); give the capture it was made from "
        "(an nsys report or export), or a trace written by torch.profiler"
    )


def _events(path: Path, *, careful: bool) -> Iterator[_Event]:
    decoder = msgspec.json.Decoder(list[_Event])
    for piece in read_chunks(path, TraceText(), careful=careful):
        yield from decoder.decode(piece)
