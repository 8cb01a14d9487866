"""What a resumed run keeps of the earlier one, and when a stage runs again."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.manifest import LAST_START, RunManifest, RunWarning, left_out
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.stage import Stage
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.pipeline.resume import Carried, EarlierRecords, carry_over, fingerprint, why_run, why_stale
from llm_perf_opt.profiling.stages.ncu import STAGE as NCU
from llm_perf_opt.profiling.stages.nsys import STAGE as NSYS
from llm_perf_opt.profiling.stages.static_analysis import STAGE as STATIC
from llm_perf_opt.testing import plain_host

pytestmark = pytest.mark.slow

HOST = plain_host()
STAGES: dict[str, Stage] = {"static_analysis": STATIC, "nsys": NSYS, "ncu": NCU}
STATIC_OFF = "pipeline.static_analysis.enable=false"
NSYS_ON = "pipeline.nsys.enable=true"


def configure(*overrides: str) -> AppConfig:
    base = ("model=llama_tiny", "dataset=synthetic", "pipeline.torch_profiler.enable=false")
    return type_config(compose_config([*base, *overrides]), user_dir=Path("/"))


def earlier_run(config: AppConfig, *warnings: RunWarning) -> RunManifest:
    """A run in which every enabled stage went well."""
    records = [
        StageRecord(name=name, status="ok", fingerprint=fingerprint(STAGES[name], settings, config, HOST))
        for name, settings in config.stages.items()
    ]
    return RunManifest(
        run_id="r",
        created_at="2026-01-01T00:00:00+00:00",
        status="ok",
        config=config.resolved,
        environment={},
        stages=tuple(records),
    ).warn(*warnings)


def test_a_run_that_is_not_resumed_starts_with_nothing() -> None:
    assert carry_over(None, configure(), STAGES, HOST) == Carried()


def test_the_result_of_a_stage_that_is_disabled_now_stays_while_its_settings_do() -> None:
    previous = earlier_run(configure())
    assert carry_over(previous, configure(STATIC_OFF, NSYS_ON), STAGES, HOST) == Carried(stages=previous.stages)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("dataset.prompt_tokens=7", "the workload's settings changed (dataset.prompt_tokens: 1024 -> 7)"),
        (
            "pipeline.static_analysis.use_synthetic_inputs=false",
            "its settings changed (pipeline.static_analysis.use_synthetic_inputs: True -> False)",
        ),
    ],
)
def test_the_result_of_a_stage_that_is_disabled_now_goes_with_what_it_depends_on(override: str, reason: str) -> None:
    carried = carry_over(earlier_run(configure()), configure(STATIC_OFF, NSYS_ON, override), STAGES, HOST)
    text = f"static_analysis: left out of this run because {reason}; its files stay in static_analysis/"
    assert carried == Carried(warnings=(RunWarning(text=text, id=left_out("static_analysis")),))


@dataclass(frozen=True, kw_only=True)
class Demanding(StageConfig):
    """A stage that is off and needs a key that was not given."""

    needed: str


class DemandingStage(type(STATIC)):  # type: ignore[misc]
    config_cls = Demanding


def test_the_result_of_a_stage_that_is_off_and_lacks_a_setting_now_goes() -> None:
    config = configure()
    config = replace(config, resolved={**config.resolved, "pipeline": {}}, stages={})
    stages: dict[str, Stage] = {**STAGES, "static_analysis": DemandingStage()}
    reason = "its present settings are not valid (pipeline.static_analysis)"
    text = f"static_analysis: left out of this run because {reason}; its files stay in static_analysis/"
    warning = RunWarning(text=text, id=left_out("static_analysis"))
    assert carry_over(earlier_run(configure()), config, stages, HOST) == Carried(warnings=(warning,))


def test_a_key_only_the_new_version_has_is_no_change_of_anything_the_user_set() -> None:
    config = configure()
    stage, settings = STAGES["static_analysis"], config.stages["static_analysis"]
    new = fingerprint(stage, settings, config, HOST)
    dry = {**config.resolved, "run": {**config.resolved["run"], "dry_run": True}}
    before = {**new, "workload": "of another version"}
    reason = why_stale("static_analysis", before, new, old_config=config.resolved, new_config=dry)
    said = "this version has a key, or a default, that the one which made the run had not"
    assert reason == f"the workload's settings changed ({said})"


def test_what_another_model_changes_most_is_named_first() -> None:
    (warning,) = carry_over(
        earlier_run(configure()), configure(STATIC_OFF, NSYS_ON, "model=deepseek_v2_tiny"), STAGES, HOST
    ).warnings
    assert "model.name: 'llama_tiny' -> 'deepseek_v2_tiny'; model.geometry." in warning.text
    assert " more); its files stay" in warning.text


def test_a_stage_whose_plug_in_is_gone_is_left_out() -> None:
    without = {"nsys": NSYS}
    carried = carry_over(earlier_run(configure()), configure(STATIC_OFF, NSYS_ON), without, HOST)
    assert [warning.text.partition(";")[0] for warning in carried.warnings] == [
        "static_analysis: left out of this run because its plug-in cannot be loaded now"
    ]


def test_the_old_result_of_a_stage_that_will_run_again_is_not_carried_and_not_warned_about() -> None:
    previous = earlier_run(configure())
    assert carry_over(previous, configure("dataset.prompt_tokens=7"), STAGES, HOST) == Carried()


def test_a_warning_stays_until_its_stage_is_enabled_again() -> None:
    gone = RunWarning(text="of the first pass", id=left_out("static_analysis"))
    # As a stage's own would begin, which decides nothing.
    other = RunWarning(text="nsys: the run could not continue")
    previous = earlier_run(configure(STATIC_OFF, NSYS_ON), gone, other)
    assert carry_over(previous, configure(STATIC_OFF, NSYS_ON), STAGES, HOST).warnings == (gone, other)
    assert carry_over(previous, configure(NSYS_ON), STAGES, HOST).warnings == (other,)


def test_what_stopped_the_last_start_is_over_and_warnings_without_ids_are_not_repeated() -> None:
    config = configure(NSYS_ON)
    stopped = earlier_run(config, RunWarning(text="the disk was full", id=LAST_START))
    assert stopped.warnings == ("the disk was full",)
    older = replace(stopped, warning_ids=())
    assert [carry_over(run, config, STAGES, HOST).warnings for run in (stopped, older)] == [(), ()]
    kept = RunWarning(text="kept")
    assert older.warn(kept).warned == (RunWarning(text="the disk was full"), kept)


def _attempt(second: int) -> StageRecord:
    return StageRecord(name="nsys", status="ok", started_at=f"2026-01-01T00:00:{second:02}+00:00", duration_s=1.5)


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ({"nsys": _attempt(1)}, {"nsys": _attempt(1)}, None),
        ({"nsys": _attempt(1)}, {"nsys": _attempt(2)}, "it reads the result of nsys, which was run again"),
        ({"nsys": _attempt(1)}, {}, "it reads the result of nsys, which is not there now"),
        ({}, {"nsys": _attempt(1)}, "it reads the result of nsys, which was not there before"),
        ({}, {}, None),
    ],
)
def test_a_stage_runs_again_when_what_it_read_is_another_one(
    before: dict[str, StageRecord], now: dict[str, StageRecord], reason: str | None
) -> None:
    config = configure(STATIC_OFF, "pipeline.ncu.enable=true")
    marks = fingerprint(NCU, config.stages["ncu"], config, HOST)
    read = EarlierRecords(before)
    assert list(read) == list(before)
    assert read.marks() == {}
    read.get("nsys")
    old = StageRecord(name="ncu", status="ok", fingerprint={**marks, **read.marks()})
    settings = {"old_config": config.resolved, "new_config": config.resolved}
    assert why_run("ncu", old, marks, earlier=now, **settings) == reason
