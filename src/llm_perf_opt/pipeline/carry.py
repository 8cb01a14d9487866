"""Decides which records of the earlier run stay in a resumed one, and says which do not."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.config.load import validate
from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.stage import Stage
from llm_perf_opt.pipeline.resume import fingerprint, why_stale


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a run starts with. `warnings` name the stages that were left out and why."""

    stages: tuple[StageRecord, ...] = ()
    warnings: tuple[str, ...] = ()


def carry_over(previous: RunManifest | None, config: AppConfig, stages: Mapping[str, Stage], host: Host) -> Carried:
    """The earlier records that are results of this configuration; those of other settings would mix two runs in one.

    A planned stage tells itself why it runs again, so only stages that are not enabled now are warned about.
    """
    if previous is None:
        return Carried()
    kept: list[StageRecord] = []
    said = [text for text in previous.warnings if not text.startswith(tuple(f"{name}: " for name in config.stages))]
    for record in previous.stages:
        stale = _why_stale(record, previous, config, stages, host)
        if record.name in config.stages:
            kept += [record] if stale is None or record.fingerprint is None else []
            continue
        reason = stale if record.status == "ok" else f"it was {record.status} before and is not enabled now"
        if reason is None:
            kept.append(record)
        else:
            said.append(f"{record.name}: left out of this run because {reason}; its files stay in {record.name}/")
    return Carried(stages=tuple(kept), warnings=tuple(dict.fromkeys(said)))


def _why_stale(
    record: StageRecord, previous: RunManifest, config: AppConfig, stages: Mapping[str, Stage], host: Host
) -> str | None:
    name = record.name
    if record.fingerprint is None:
        return "the earlier run did not record its settings"
    if name not in stages:
        return "its plug-in cannot be loaded now"
    settings = _settings(stages[name], config)
    if settings is None:
        return f"its present settings are not valid (pipeline.{name})"
    marks = fingerprint(stages[name], settings, config, host)
    return why_stale(name, record.fingerprint, marks, old_config=previous.config, new_config=config.resolved)


def _settings(stage: Stage, config: AppConfig) -> StageConfig | None:
    """A stage's present settings, though it may be disabled; None if they are not valid."""
    if stage.name in config.stages:
        return config.stages[stage.name]
    # The section of a plug-in is there only if the user gave one of its keys.
    section = config.resolved["pipeline"].get(stage.name, {})
    settings, _ = validate(stage.config_cls, section, f"pipeline.{stage.name}")
    return settings if settings is None or config.run.mode != "light" else settings.light()
