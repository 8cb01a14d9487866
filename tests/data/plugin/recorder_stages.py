"""Two small stages as a plug-in would bring them: each writes a file and remembers that it ran."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.errors import CommandFailed, StageSkipped

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


class Recorder:
    """Writes `<stage>/out.txt`; appends its name to `ran.txt` at the run root."""

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
        with (ctx.run_dir / "ran.txt").open("a") as file:
            file.write(f"{self.name}\n")
        if cfg.fail == "words":
            raise CommandFailed("the probe said no; see log.txt")
        if cfg.fail == "skip":
            raise StageSkipped("there is nothing to record")
        if cfg.fail == "bug":
            raise ZeroDivisionError("division by zero")
        result = ctx.run_command(
            [sys.executable, "-c", CHILD, str(ctx.tmp_dir / "pid"), str(cfg.seconds)], timeout_s=cfg.timeout_s
        )
        if cfg.reads:
            ctx.earlier.get(cfg.reads)
        out = ctx.out_dir / "out.txt"
        out.write_text(" ".join(ctx.earlier))
        return StageOutput(
            metrics={
                "children": Metric(value=result.exit_code, unit="exit code", how="of its child", source="log.txt")
            },
            files=(StageFile(role="out", path=out),),
            samples=({"sample_id": self.name, "size_bytes": 1, "sha256": "0" * 64},),
        )


ALPHA = Recorder("alpha", ())
BETA = Recorder("beta", ("alpha",))
