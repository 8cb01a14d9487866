"""The document about a start, from its samples and the server's log."""

from llm_perf_opt.serving.startup.sampler import StartupSamples
from llm_perf_opt.serving.startup.startup_memory import memory_rows
from llm_perf_opt.serving.startup.startup_path import critical_path, startup_parts
from llm_perf_opt.serving.startup.startup_records import StartupDocument


def explain_startup(samples: StartupSamples, *, engine: str, log: str, model: str | None) -> StartupDocument:
    """Time by purpose along the critical path, and memory by purpose; parts sum to the time until ready."""
    processes = samples.processes
    return StartupDocument(
        engine=engine,
        ready_s=samples.ready_s,
        sampler=samples.sampler,
        parts=startup_parts(processes, ready_s=samples.ready_s) if processes else (),
        path=critical_path(processes, ready_s=samples.ready_s) if processes else (),
        memory=memory_rows(log, model),
        notes=() if samples.trouble is None else (samples.trouble,),
    )
