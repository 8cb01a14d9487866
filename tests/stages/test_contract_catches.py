"""The contract finds what it is there to find: each bad stage breaks the tests named alongside it, and no other."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.errors import ProfilingError, StageSkipped
from llm_perf_opt.testing import Ending, StageCase, StageContract, run_case

Work = Callable[[StageContext], StageOutput]


@dataclass(frozen=True, kw_only=True)
class Settings(StageConfig):
    """`case` says which of the four is meant."""

    case: str = "success"


class BadStage:
    """Does what a good stage does, but for the one case that is replaced."""

    name = "bad"
    config_cls = Settings
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    runs_model = gives_clean_pass = needs_our_model = False

    def __init__(self, case: str, work: Work) -> None:
        self._works = {"success": _good, "failure": _fails, "skip": _skips, "timeout": _times_out, case: work}

    def preflight(self, cfg: Settings, host: Host) -> tuple[Obstacle, ...]:
        return ()

    def run(self, cfg: Settings, ctx: StageContext) -> StageOutput:
        return self._works[cfg.case](ctx)


def _good(ctx: StageContext) -> StageOutput:
    path = ctx.out_dir / "out.txt"
    path.write_text("1")
    metric = Metric(value=1, unit="", how="counted", source="bad/out.txt")
    return StageOutput(metrics={"one": metric}, files=(StageFile(role="out", path=path),))


def _fails(ctx: StageContext) -> StageOutput:
    raise ProfilingError("it broke; mend it")


def _skips(ctx: StageContext) -> StageOutput:
    raise StageSkipped("nothing to do")


def _times_out(ctx: StageContext) -> StageOutput:
    raise ProfilingError("too long (pipeline.bad.timeout_s)")


@dataclass(frozen=True, kw_only=True)
class _Claims(StageOutput):
    status: str = "ok"


def _claims_a_status(ctx: StageContext) -> StageOutput:
    return _Claims()


def _writes_at_the_root(ctx: StageContext) -> StageOutput:
    (ctx.run_dir / "mine.txt").write_text("x")
    return _good(ctx)


def _writes_where_it_stands(ctx: StageContext) -> StageOutput:
    Path("core").write_text("x")
    return _good(ctx)


def _leaves_a_process(ctx: StageContext) -> StageOutput:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"], start_new_session=True)
    time.sleep(0.1)
    return _good(ctx)


def _names_a_file_that_is_not_there(ctx: StageContext) -> StageOutput:
    return StageOutput(files=(StageFile(role="out", path=ctx.out_dir / "nowhere"),))


def _has_a_figure_without_its_file(ctx: StageContext) -> StageOutput:
    return StageOutput(metrics={"one": Metric(value=1, unit="", how="counted", source="out.txt")})


def _returns(ctx: StageContext) -> StageOutput:
    return StageOutput(notes=("it did not work",))


def _says_nothing(ctx: StageContext) -> StageOutput:
    raise ProfilingError("")


def _does_not_name_the_key(ctx: StageContext) -> StageOutput:
    raise ProfilingError("too long")


def _broken(stage: BadStage, folder: Path) -> set[str]:
    """The tests of the contract that this stage does not pass."""

    class Contract(StageContract):
        def success(self, folder: Path) -> StageCase:
            return StageCase(settings=Settings())

        def failure(self, folder: Path) -> StageCase:
            return StageCase(settings=Settings(case="failure"))

        def skip(self, folder: Path) -> StageCase:
            return StageCase(settings=Settings(case="skip"))

        def timeout(self, folder: Path) -> StageCase:
            return StageCase(settings=Settings(case="timeout"))

    Contract.stage = stage
    contract = Contract()
    (folder / "done").mkdir()
    given: dict[str, Ending | Path] = {"done": run_case(stage, contract.success, folder / "done")}
    broken = set()
    for name in (n for n in dir(contract) if n.startswith("test_")):
        test = getattr(contract, name)
        given["tmp_path"] = folder / name
        (folder / name).mkdir()
        arguments = test.__code__.co_varnames[1 : test.__code__.co_argcount]
        try:
            test(*(given[argument] for argument in arguments))
        except AssertionError:
            broken.add(name)
    return broken


@pytest.mark.parametrize(
    ("case", "work", "broken"),
    [
        ("success", _good, set()),
        ("success", _claims_a_status, {"test_a_success_claims_no_status"}),
        ("success", _writes_at_the_root, {"test_a_success_writes_only_in_its_own_directories"}),
        ("success", _writes_where_it_stands, {"test_a_success_writes_only_in_its_own_directories"}),
        ("success", _leaves_a_process, {"test_a_success_leaves_no_process_behind"}),
        ("success", _names_a_file_that_is_not_there, {"test_a_success_reports_files_that_are_there_and_its_own"}),
        ("success", _has_a_figure_without_its_file, {"test_every_figure_names_a_file_it_can_be_checked_against"}),
        ("failure", _returns, {"test_a_failure_is_an_error_in_words"}),
        ("failure", _says_nothing, {"test_a_failure_is_an_error_in_words"}),
        ("skip", _fails, {"test_a_skip_says_why"}),
        ("timeout", _does_not_name_the_key, {"test_a_timeout_ends_all_that_was_started_and_names_its_key"}),
    ],
)
def test_a_bad_stage_breaks_the_test_that_is_there_for_it(
    case: str, work: Work, broken: set[str], tmp_path: Path
) -> None:
    assert _broken(BadStage(case, work), tmp_path) == broken
