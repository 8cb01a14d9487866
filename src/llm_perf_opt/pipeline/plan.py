"""Decides which stages run, in which order, and what is in their way.

Finds stages by entry point. A plug-in that cannot be imported hurts only those who enable it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import BUILT_IN, STAGE_GROUP, STATIC_ANALYSIS
from llm_perf_opt.core.records import StageTraits
from llm_perf_opt.core.stage import Obstacle, Stage, traits_of
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.stages.static_analysis import StaticAnalysisConfig

NO_MODEL_NAMED = "no model is named that the program runs; model=<preset>, or model.path, gives its bounds"
COMMAND_INSTEAD = "workload.command replaces our own inference, so there is no model to look at"


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage to run, its settings and its preflight's preflight issues; `skip` says why it has nothing to do."""

    stage: Stage
    config: StageConfig
    obstacles: tuple[Obstacle, ...]
    skip: str | None = None

    @property
    def traits(self) -> StageTraits:
        return traits_of(self.stage)

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def blockers(self) -> tuple[Obstacle, ...]:
        return tuple(o for o in self.obstacles if o.blocking)

    @property
    def will_fail(self) -> bool:
        """Whether a run of this stage on this machine is known to fail, before it starts or soon after."""
        return self.skip is None and any(o.blocking or o.expects_failure for o in self.obstacles)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stages in order."""

    stages: tuple[PlannedStage, ...]

    def document(self, commands: Mapping[str, Sequence[Sequence[str]]]) -> "PlanDocument":
        """For a file, with the commands each stage would start."""
        return PlanDocument(
            stages=tuple(
                PlanDocumentStage(
                    name=step.name,
                    settings=asdict(step.config),
                    skip=step.skip,
                    findings=step.obstacles,
                    commands=tuple(tuple(argv) for argv in commands.get(step.name, ())),
                )
                for step in self.stages
            )
        )


@dataclass(frozen=True, kw_only=True)
class PlanDocumentStage:
    """One stage that would run; `skip` says why it would not, `findings` what its preflight found in the way.

    `commands`: what it would start, word by word.
    """

    name: str
    settings: Mapping[str, Any]
    skip: str | None
    findings: tuple[Obstacle, ...]
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """`plan.json` of a dry run: the stages in order."""

    stages: tuple[PlanDocumentStage, ...]


def build_plan(config: AppConfig, stages: Mapping[str, Stage], host: Host) -> Plan:
    """Order the enabled stages and ask each what it needs."""
    steps = [
        PlannedStage(
            stage=stages[name],
            config=config.stages[name],
            obstacles=tuple(stages[name].preflight(config.stages[name], host)),
            skip=_skip(stages[name], config),
        )
        for name in order({name: stages[name].after for name in config.stages})
    ]
    return Plan(stages=tuple(steps))


def _skip(stage: Stage, config: AppConfig) -> str | None:
    """Why a stage that looks at our model has nothing to look at; static analysis looks at one that is only named."""
    if config.workload.command is None or not traits_of(stage).needs_our_model:
        return None
    if stage.name != STATIC_ANALYSIS:
        return COMMAND_INSTEAD
    settings = config.stages[stage.name]
    finds = isinstance(settings, StaticAnalysisConfig) and settings.find_model
    return None if config.workload.declares_model or finds else NO_MODEL_NAMED


def order(after: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The built-in stages in their fixed order, then plug-ins by their `after`, by name where that leaves a choice."""
    first = [name for name in BUILT_IN if name in after]
    plugins = {name: set(after[name]) & set(after) for name in sorted(after) if name not in BUILT_IN}
    sorter = TopologicalSorter({name: needs - set(first) for name, needs in plugins.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ConfigError(f"pipeline: the stages wait for each other ({circle}); one `after` must go") from error
    result = list(first)
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        result += ready
        sorter.done(*ready)
    return result


GROUP = STAGE_GROUP


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
