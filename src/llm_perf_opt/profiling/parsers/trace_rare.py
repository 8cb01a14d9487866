"""What few traces need, read in a second pass: hardware counters of kernels, and what a foreign trace is made of."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.analysis.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.analysis.timeline.rows import CounterRow
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.parsers.trace_text import TraceText, read_chunks, read_with_cuts

COUNTED = "cuda_profiler_range"
CATEGORIES_NAMED = 6


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
            counters={
                counter: sum(kernel.get(counter, 0.0) for kernel in kernels)
                for counter in dict.fromkeys(counter for kernel in kernels for counter in kernel)
            },
        )
        for name, kernels in sorted(read_with_cuts(path, read).items(), key=lambda item: (-len(item[1]), item[0]))
    )


def not_from_torch(path: Path) -> ParseError:
    """What to say about a trace in the format of Chrome that torch's profiler did not write."""

    def read(careful: bool) -> Counter[str]:
        return Counter(event.cat for event in _events(path, careful=careful) if event.ph == "X")

    categories = read_with_cuts(path, read)
    named = ", ".join(f"{cat!r}" for cat, _ in categories.most_common(CATEGORIES_NAMED) if cat)
    what = f"its events are of the categories {named}" if named else "its events have no category"
    return ParseError(
        f"{path}: a Chrome trace, but not one of torch's profiler ({what}); give the capture it was made from (an nsys "
        "report or export), or a trace written by torch.profiler"
    )


def _events(path: Path, *, careful: bool) -> Iterator[_Event]:
    decoder = msgspec.json.Decoder(list[_Event])
    for piece in read_chunks(path, TraceText(), careful=careful):
        yield from decoder.decode(piece)
