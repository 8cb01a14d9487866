"""An emitter of NVTX ranges, whose backend is tried before it is trusted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata

SAM = "sam"
CLIP = "clip"

# Ranges of the PyPI package from this version on are not recorded by nsys 2022.4 and 2023.4.
UNRECORDED_FROM = (0, 2, 12)


@dataclass(frozen=True, kw_only=True)
class RangeEmitter:
    """Opens and closes nested ranges. `backend` says who records them; `note` what a reader must know about it."""

    push: Callable[[str], object]
    pop: Callable[[], object]
    backend: str
    note: str | None = None


def choose_emitter() -> RangeEmitter:
    """The first backend that works here: torch's own (CUDA builds), the package nvtx, or none with the reason."""
    return _torch_emitter() or _package_emitter()


def around(ranges: RangeEmitter, name: str, start: Callable[[], object], stop: Callable[[], object]) -> RangeEmitter:
    """The same ranges, with one call before each range of this name opens and one after it has closed."""
    opened: list[str] = []

    def push(text: str) -> None:
        if text == name:
            start()
        opened.append(text)
        ranges.push(text)

    def pop() -> None:
        ranges.pop()
        if opened.pop() == name:
            stop()

    return replace(ranges, push=push, pop=pop)


def silent(reason: str) -> RangeEmitter:
    """Ranges that are not recorded."""
    return RangeEmitter(
        push=_push_nothing, pop=_pop_nothing, backend="none", note=f"NVTX ranges are not emitted: {reason}"
    )


def package_note(version: str) -> str | None:
    """What is known to go wrong with this version of the package nvtx."""
    if tuple(int(part) for part in version.split(".") if part.isdigit()) < UNRECORDED_FROM:
        return None
    return (
        f"the package nvtx {version} emits the ranges; nsys 2022.4 and 2023.4 do not record those of 0.2.12 and later: "
        "install nvtx<0.2.12 to profile with these"
    )


def _torch_emitter() -> RangeEmitter | None:
    """torch.cuda.nvtx, which raises on a CPU build of torch."""
    import torch

    nvtx = torch.cuda.nvtx
    try:
        nvtx.range_push("nvtx_check")
        nvtx.range_pop()
    except RuntimeError:
        return None
    return RangeEmitter(
        push=nvtx.range_push, pop=nvtx.range_pop, backend=f"torch.cuda.nvtx (torch {torch.__version__})"
    )


def _package_emitter() -> RangeEmitter:
    """The package nvtx, which works without CUDA; a no-op when NVTX_DISABLE is set."""
    try:
        import nvtx
    except ImportError:
        return silent("this torch is a CPU build and the package nvtx is not installed (pip install 'nvtx<0.2.12')")
    if not nvtx.enabled():
        return silent("NVTX_DISABLE is set")
    version = metadata.version("nvtx")
    return RangeEmitter(
        push=nvtx.push_range, pop=nvtx.pop_range, backend=f"nvtx (package nvtx {version})", note=package_note(version)
    )


def _push_nothing(name: str) -> None:
    """Stands in for a backend."""


def _pop_nothing() -> None:
    """Stands in for a backend."""
