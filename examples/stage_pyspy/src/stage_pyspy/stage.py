"""Stage pyspy: the workload behind py-spy, and a flame graph of its Python stacks on the page."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le

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
    ToolError,
    WorkloadRun,
    run_workload,
)
from stage_pyspy.stacks import draw_flames, read_stacks

TOP = 15


@dataclass(frozen=True, kw_only=True)
class PyspyConfig(StageConfig):  # enable and timeout_s come with StageConfig
    """`pipeline.pyspy.*`: samples a second, whether threads that wait are sampled too, and the program itself."""

    rate: Annotated[int, Gt(0), Le(1000)] = 100
    idle: bool = False
    program: str = "py-spy"


class PyspyStage:
    """See the module."""

    name = "pyspy"
    config_cls = PyspyConfig
    after: tuple[str, ...] = ("torch_profiler", "direct_inference")
    tools: tuple[str, ...] = ()
    runs_model = True  # so that the model's files are checked before anything runs

    def preflight(self, cfg: PyspyConfig, host: Host) -> Sequence[Obstacle]:
        if host.os.startswith(("Linux", "macOS", "Windows")):
            return ()
        return (Obstacle(what=f"py-spy does not know {host.os}", remedy="run on Linux", blocking=False),)

    def run(self, cfg: PyspyConfig, ctx: StageContext) -> StageOutput:
        raw, ending = ctx.out_dir / "stacks.txt", ctx.tmp_dir / "ended.txt"
        ending.unlink(missing_ok=True)
        program = find_program(cfg.program)
        before = [program, "record", "--format", "raw", "--function", "--subprocesses"]
        before += ["--rate", str(cfg.rate), "--output", str(raw), *(["--idle"] if cfg.idle else []), "--"]
        before += [sys.executable, str(Path(__file__).with_name("launch.py")), str(ending)]
        # Raises if py-spy fails or takes too long; `log.txt` and `cmd.txt` are in the stage's directory.
        work = run_workload(ctx, timeout_s=cfg.timeout_s, prefix=before)
        code = ending.read_text(encoding="ascii") if ending.is_file() else "none"
        if code != "0":
            last = work.result.tail.strip().splitlines()[-1:]
            raise CommandFailed(f"the program ended with exit code {code}: {' '.join(last)} (log: {work.result.log})")
        return self._report(cfg, ctx, raw, work)

    def _report(self, cfg: PyspyConfig, ctx: StageContext, raw: Path, work: WorkloadRun) -> StageOutput:
        sampled = read_stacks(raw.read_text(encoding="utf-8", errors="replace"))
        source = f"{self.name}/{raw.name}"
        total = sampled.root.samples
        if not total:
            raise CommandFailed(
                f"py-spy saw no Python at work ({source}); a longer program or pipeline.pyspy.rate helps"
            )
        picture = ctx.out_dir / "flames.svg"
        picture.write_text(draw_flames(sampled.root), encoding="utf-8")
        top = sampled.own.most_common(TOP)
        how = f"py-spy, {cfg.rate} samples a second" + (", waiting threads too" if cfg.idle else "")
        return StageOutput(
            metrics={
                "python_samples": Metric(value=total, unit="samples", how=how, source=source),
                "python_busy_s": Metric(value=total / cfg.rate, unit="s", how=f"{how}, all threads", source=source),
            },
            files=(StageFile(role="pyspy_stacks", path=raw), StageFile(role="picture", path=picture)),
            notes=work.notes,
            samples=work.samples,
            sections=(
                Section(
                    title="Python on the host",
                    paragraphs=("Where the workload's threads were at work in Python, from start to end.",),
                    metrics=("python_samples", "python_busy_s"),
                    tables=(
                        SectionTable(
                            title="Functions at work themselves",
                            columns=("function", "samples", "%"),
                            rows=tuple((name, count, 100 * count / total) for name, count in top),
                            source=source,
                        ),
                    ),
                    picture=Picture(path=f"{self.name}/{picture.name}", shows="flame graph of the Python stacks"),
                    links=(Link(text="all stacks", target=source),),
                ),
            ),
        )


def find_program(name: str) -> str:
    """The program on PATH, or where pip put the one of the package."""
    found = shutil.which(name)
    if found is not None:
        return found
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == name and (path := Path(str(file.locate()))).is_file():
            return str(path.resolve())
    raise ToolError(f"{name} was not found on PATH nor among installed packages: pip install py-spy")


STAGE = PyspyStage()
