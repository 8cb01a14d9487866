"""Small stages as a plug-in would bring them: two write a file and remember that they ran, one times the model."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.plugin import (
    CommandFailed,
    Host,
    Link,
    Metric,
    Obstacle,
    Picture,
    Section,
    SectionTable,
    StageConfig,
    StageContext,
    StageFile,
    StageOutput,
    StageSkipped,
)

CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
print("working", flush=True)
time.sleep(float(sys.argv[2]))
child.kill()
"""


@dataclass(frozen=True, kw_only=True)
class RecorderConfig(StageConfig):
    """What the tests steer."""

    seconds: float = 0.0
    fail: str = ""
    setting: int = 1
    reads: str = ""
    needs: str = ""
    leave_kb: int = 0


class Recorder:
    """Writes `<stage>/out.txt`; adds a line to `tmp/<stage>/ran.txt` each time it runs."""

    config_cls = RecorderConfig
    tools: tuple[str, ...] = ()

    def __init__(self, name: str, after: tuple[str, ...]) -> None:
        self.name = name
        self.after = after

    def preflight(self, cfg: RecorderConfig, host: Host) -> Sequence[Obstacle]:
        if cfg.fail == "preflight":
            return [Obstacle(what="the probe is missing", remedy="plug it in")]
        return [Obstacle(what="it is only a recorder", remedy="nothing to do", blocking=False)]

    def run(self, cfg: RecorderConfig, ctx: StageContext) -> StageOutput:
        with (ctx.tmp_dir / "ran.txt").open("a") as file:
            file.write(f"{time.time_ns()} {self.name}\n")
        if cfg.fail == "words":
            raise CommandFailed("the probe said no; see log.txt")
        if cfg.needs and not Path(cfg.needs).exists():
            raise CommandFailed(f"{cfg.needs} is not there; make it")
        if cfg.fail == "skip":
            raise StageSkipped("there is nothing to record")
        if cfg.fail == "bug":
            raise ZeroDivisionError("division by zero")
        result = ctx.run_command(
            [sys.executable, "-c", CHILD, str(ctx.tmp_dir / "pid"), str(cfg.seconds)], timeout_s=cfg.timeout_s
        )
        if result.timed_out:
            raise CommandFailed(f"the probe took too long (pipeline.{self.name}.timeout_s); see log.txt")
        if cfg.reads:
            ctx.earlier.get(cfg.reads)
        source = f"{self.name}/log.txt"
        out = ctx.out_dir / "out.txt"
        out.write_text(" ".join(ctx.earlier))
        if cfg.leave_kb:
            (ctx.out_dir / "filler").write_bytes(bytes(shutil.disk_usage(ctx.out_dir).free - cfg.leave_kb * 1000))
        return StageOutput(
            metrics={"children": Metric(value=result.exit_code, unit="exit code", how="of its child", source=source)},
            files=(StageFile(role="out", path=out),),
            samples=({"sample_id": self.name, "size_bytes": 1, "sha256": "0" * 64},),
        )


@dataclass(frozen=True, kw_only=True)
class TimerConfig(StageConfig):
    """Nothing to steer."""


class Timer:
    """Runs the model without a profiler and says so, and has a section of its own on the page."""

    name = "timer"
    config_cls = TimerConfig
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    runs_model = True
    gives_clean_pass = True
    needs_our_model = True

    def preflight(self, cfg: TimerConfig, host: Host) -> Sequence[Obstacle]:
        return ()

    def run(self, cfg: TimerConfig, ctx: StageContext) -> StageOutput:
        (ctx.out_dir / "steps.csv").write_text("step,ms\n1,4.0\n2,5.5\n")
        (ctx.out_dir / "steps.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
        )
        how, source = "stopwatch, median of 2", "timer/steps.csv"
        return StageOutput(
            metrics={
                "tpot_ms": Metric(value=4.75, unit="ms", how=how, source=source),
                "watch_error_ms": Metric(value=None, unit="ms", how=how, reason="the watch does not say"),
            },
            files=(StageFile(role="steps", path=ctx.out_dir / "steps.csv"),),
            sections=(
                Section(
                    title="Stopwatch <b>",
                    paragraphs=("Timed by hand | <script>alert(2)</script>",),
                    metrics=("tpot_ms", "watch_error_ms"),
                    tables=(
                        SectionTable(
                            title="Steps",
                            columns=("step", "ms", "who"),
                            rows=((1, 4.0, "<i>Ada</i>"), (2, 5.5, None)),
                            source="timer/steps.csv",
                        ),
                    ),
                    picture=Picture(path="timer/steps.svg", shows="steps over time"),
                    links=(Link(text="all steps", target="timer/steps.csv"),),
                ),
            ),
        )


TIMER = Timer()
ALPHA = Recorder("alpha", ())
BETA = Recorder("beta", ("alpha",))
