"""Profile a block of code in its own process with torch's profiler, and analyze what it recorded."""

import tempfile
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llm_perf_opt.api.analysis import PerfAnalysis
from llm_perf_opt.api.load import PathLike
from llm_perf_opt.api.sources import CaptureFiles
from llm_perf_opt.errors import ConfigError, ToolError

TRACE = "trace.json.gz"
BLOCK = "profiled block"


class ProfiledBlock:
    """A block that is being profiled; `analysis` is there when it has ended."""

    def __init__(self, *, output: Path | None, shapes: bool, memory: bool, stacks: bool) -> None:
        self._output, self._shapes, self._memory, self._stacks = output, shapes, memory, stacks
        self._profiler: Any = None
        self._source: CaptureFiles | None = None

    def __enter__(self) -> Self:
        try:
            from torch.profiler import ProfilerActivity, profile
        except ModuleNotFoundError as error:
            raise ToolError("profile needs torch, which is not installed: pip install 'llm-perf-opt[run]'") from error
        if self._source is not None or self._profiler is not None:
            raise ConfigError("profile: a block is profiled once, allowed: a new profile() for each")
        activities = [ProfilerActivity.CPU]
        if _cuda_is_there():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(
            activities=activities, record_shapes=self._shapes, profile_memory=self._memory, with_stack=self._stacks
        )
        profiler.__enter__()
        self._profiler = profiler
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _cuda_is_there():
            import torch

            # Kernels that still run would be missing from the trace.
            torch.cuda.synchronize()
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(kind, error, trace)
        if self._output is not None:
            profiler.export_chrome_trace(str(self._output))
            self._source = CaptureFiles([self._output], detail=True)
            return
        with tempfile.TemporaryDirectory(prefix="llm-perf-profile-") as folder:
            path = Path(folder) / TRACE
            profiler.export_chrome_trace(str(path))
            source = CaptureFiles([path], detail=True, name=BLOCK)
            # While the file is there.
            _ = source.read
        self._source = source

    @cached_property
    def analysis(self) -> PerfAnalysis:
        """What the block did, of the same type as that of a file."""
        if self._source is None:
            raise ConfigError("profile: the block has not ended, allowed: .analysis after the with statement")
        return PerfAnalysis(self._source)

    def __repr__(self) -> str:
        state = "not ended" if self._source is None else repr(self.analysis)
        return f"ProfiledBlock({state})"

    def _repr_html_(self) -> str | None:
        return None if self._source is None else self.analysis._repr_html_()


def profile(
    *, output: PathLike | None = None, shapes: bool = True, memory: bool = False, stacks: bool = False
) -> ProfiledBlock:
    """Profile a block: `with profile() as p: model.generate(…)`, then `p.analysis`.

    `output` keeps the trace (.json or .json.gz). Input shapes, memory events and Python stacks cost time while the
    block runs; the slowdown is part of what is measured. Warm the block up before, or its one-time costs are in it.
    """
    path = None if output is None else Path(output).expanduser()
    if path is not None and not path.name.endswith((".json", ".json.gz")):
        raise ConfigError(
            f"profile: output is not a trace file (got {path}), allowed: a name that ends in .json or .json.gz"
        )
    return ProfiledBlock(output=path, shapes=shapes, memory=memory, stacks=stacks)


def _cuda_is_there() -> bool:
    import torch

    return bool(torch.cuda.is_available())
