"""The input a static analysis is made for."""

from dataclasses import dataclass

from llm_perf_opt.analysis.static.vision_form import View


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`prompt` counts image tokens too; `context` is what the cache holds before the decode step; `how` says whence."""

    batch: int
    prompt: int
    context: int
    how: str
    views: tuple[View, ...] = ()
