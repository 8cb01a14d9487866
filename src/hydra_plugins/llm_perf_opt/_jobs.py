"""The sweeper and the launchers of `llm_perf_opt.pipeline.jobs`, under names that Hydra accepts."""

from llm_perf_opt.pipeline.jobs.launchers import waiting_launcher as __getattr__
from llm_perf_opt.pipeline.jobs.sweeper import JobSweeper

__all__ = ["JobSweeper", "__getattr__"]
