"""What this machine has, as plain data; probed in `profiling/vendor/vendor_tools.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as nvidia-smi names it."""

    index: int
    name: str
    memory_bytes: int
    driver: str
    compute_capability: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A vendor tool. `problem` says what is wrong with it, or is None; `remedy` the fix."""

    name: str
    path: str | None = None
    version: str | None = None
    problem: str | None = None
    remedy: str | None = None

    @property
    def usable(self) -> bool:
        return self.path is not None and self.problem is None

    @property
    def trouble(self) -> str:
        """What is wrong and what to do, in one line; for a tool that cannot be used."""
        return "; ".join(text for text in (self.problem or f"{self.name} was not found", self.remedy) if text)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The facts preflight checks and provenance need. `has_gpu_files`: a GPU nvidia-smi does not list may be there."""

    os: str
    cpu: str
    cpu_cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str | None]
    gpus: tuple[Gpu, ...]
    cuda_driver: str | None
    tools: dict[str, Tool]
    counters_restricted: bool | None
    disk_free_bytes: int
    has_gpu_files: bool = False

    def tool(self, name: str) -> Tool:
        return self.tools.get(name, Tool(name=name, problem=f"{name} was not looked for on this machine"))
