"""Finds stages by entry point. A plug-in that cannot be imported hurts only those who enable it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.stage import Stage

GROUP = "llm_perf_opt.stages"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The stages that could be imported, and why the others could not."""

    stages: Mapping[str, Stage]
    broken: Mapping[str, str] = field(default_factory=dict)
    known: tuple[str, ...] = ()

    @property
    def config_classes(self) -> dict[str, type[StageConfig]]:
        return {name: stage.config_cls for name, stage in self.stages.items()}


def find_entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def load_registry(points: Mapping[str, EntryPoint], wanted: set[str]) -> Registry:
    """Import the wanted stages. Others are known by name only."""
    stages: dict[str, Stage] = {}
    broken: dict[str, str] = {}
    for name, point in points.items():
        if name not in wanted:
            continue
        try:
            stages[name] = point.load()
        except (ImportError, AttributeError, SyntaxError) as error:
            broken[name] = f"{point.value}: {type(error).__name__}: {error}"
    return Registry(stages=stages, broken=broken, known=tuple(points))


def open_plugin_keys(overrides: Sequence[str], plugins: Collection[str]) -> list[str]:
    """Let `pipeline.<plug-in>.key=value` be given without a `+`, though conf/config.yaml does not know the section."""
    prefixes = tuple(f"pipeline.{name}." for name in plugins)
    return [f"++{o}" if prefixes and o.startswith(prefixes) else o for o in overrides]
