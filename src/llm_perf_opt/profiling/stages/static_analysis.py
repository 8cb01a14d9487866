"""Stage static_analysis: FLOPs, bytes and memory from the model's configuration, checked by counting operators."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig, HardwareSection, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import STATIC_ANALYSIS, STATIC_JSON, STATIC_MD
from llm_perf_opt.core.records import StageFile, StageOutput
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.errors import CommandFailed, ConfigError, ProfilingError, StageSkipped
from llm_perf_opt.model.estimate.what_if import what_if
from llm_perf_opt.model.hardware.calibrate import cpu_driver
from llm_perf_opt.model.hardware.hardware import (
    AUTO,
    CPU,
    Device,
    Resolved,
    load_catalogue,
    resolve_hardware,
    with_calibration,
)
from llm_perf_opt.model.hardware.work import Dtypes, short_dtype
from llm_perf_opt.model.static.config_json import NotInClosedForm
from llm_perf_opt.model.static.counted import (
    CountedAnalysis,
    counted_document,
    counted_markdown,
    counted_metrics,
    unknown_text,
)
from llm_perf_opt.model.static.double_entry import disagreements
from llm_perf_opt.model.static.model_analysis import Analysis, analyse
from llm_perf_opt.model.static.model_what_if import WhatIf
from llm_perf_opt.model.static.operator_count import Count
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.model.static.quantised import Quantised, read_quantised, run_dtypes
from llm_perf_opt.model.static.static_document import StaticDocument, build_document, static_metrics
from llm_perf_opt.model.static.static_markdown import render_markdown
from llm_perf_opt.profiling.found_model import read_found_model, with_found_model
from llm_perf_opt.profiling.static_child import (
    COUNTS_FILE,
    FACTS_FILE,
    PARAMETERS_FILE,
    Facts,
    read_counts,
    read_facts,
    read_parameters,
    shape_from_config,
)
from llm_perf_opt.profiling.vendor.launch import build_work_argv, stage_overrides, workload_overrides
from llm_perf_opt.system.files import write_page
from llm_perf_opt.system.process import CommandResult
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import choose_dtype, load_adapter

NO_MODEL_FOUND = (
    "no model is named that the program runs, and no generate() of transformers was seen in it; model=<preset>, or "
    "model.path, gives its bounds"
)
STATIC_RUNNER = "llm_perf_opt.children.static_counts"


@dataclass(frozen=True, kw_only=True)
class StaticAnalysisConfig(StageConfig):
    """`pipeline.static_analysis.*`

    `use_analytic_fallback`: the closed form is used alone when operators cannot be counted; else the stage fails.
    `use_synthetic_inputs`: shapes are synthetic; else the first sample sets them. `write_reports`: files, or the
    manifest alone. `find_model`: of a program whose model is not named, the one that a library of it generates with.
    """

    write_reports: bool = True
    use_analytic_fallback: bool = True
    use_synthetic_inputs: bool = True
    find_model: bool = False


class StaticAnalysisStage:
    """See the module."""

    name = STATIC_ANALYSIS
    config_cls = StaticAnalysisConfig
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    runs_model = False
    gives_clean_pass = False
    needs_our_model = True

    def preflight(self, cfg: StaticAnalysisConfig, host: Host) -> Sequence[Obstacle]:
        if host.packages.get("torch") is not None:
            return ()
        remedy = "install torch, or take the closed form alone"
        return (
            Obstacle(
                what="torch is not installed, so operators cannot be counted",
                remedy=remedy,
                blocking=not cfg.use_analytic_fallback,
            ),
        )

    def run(self, cfg: StaticAnalysisConfig, ctx: StageContext) -> StageOutput:
        """Closed form here, operators and calibration in a child; then both counts side by side."""
        if ctx.config.infer.tp > 1:
            raise StageSkipped(
                f"bounds are those of a whole model on one device, and infer.tp={ctx.config.infer.tp} splits it; "
                "`llm-perf plan` estimates split models"
            )
        is_found = cfg.find_model and ctx.config.workload.command is not None and not declares_model(ctx)
        if is_found:
            ctx = replace(ctx, config=config_of_found_model(ctx, cfg.timeout_s))
        if ctx.config.workload.command is not None:
            ctx = replace(ctx, config=lengths_of_program(ctx, cfg.timeout_s))
        config = ctx.config
        adapter = load_adapter(config.model.adapter)
        try:
            geometry = adapter.geometry(config.model)
        except ConfigError as error:
            if not is_found:
                raise
            raise StageSkipped(f"the model that was found has no bounds here: {error}") from error
        where = _where(config)
        try:
            model = adapter.parts(geometry, where=where)
        except NotInClosedForm as error:
            return self._count_alone(cfg, ctx, unknown_text(error.what))
        asked = config.model.quantization
        stored = Quantised(weight=asked) if asked != "none" else read_quantised(geometry, where=where)
        notes = _count_in_child(cfg, ctx, self.name)
        facts = read_facts(ctx.tmp_dir) or _facts_without_child(config, ctx.host, adapter)
        analysis = _analyse(config, model, facts, stored, ctx.tmp_dir)
        notes = (*notes, *facts.notes, *_config_notes(config, analysis.hardware, facts), *_notes(analysis))
        files: tuple[StageFile, ...] = ()
        if cfg.write_reports:
            document = build_document(analysis, notes=notes, what_if=_what_if(config, analysis))
            files = _write(document, render_markdown(analysis, notes=notes), ctx.out_dir)
        source = f"{self.name}/{STATIC_JSON}" if cfg.write_reports else None
        return StageOutput(metrics=static_metrics(analysis, source=source), files=files, notes=notes)

    def _count_alone(self, cfg: StaticAnalysisConfig, ctx: StageContext, reason: str) -> StageOutput:
        """A model the closed form has no rule for: without a count there is nothing to say."""
        problem = _run_child(cfg, ctx, self.name)
        facts = read_facts(ctx.tmp_dir)
        if problem is not None or facts is None:
            raise CommandFailed(f"{problem or 'operators could not be counted'}, and {reason}")
        section, resolved = _find_hardware(ctx.config, facts)
        analysis = CountedAnalysis(
            name=ctx.config.model.name,
            reason=reason,
            dtypes=Dtypes.uniform(facts.dtype),
            shape=facts.shape,
            hardware=section,
            hardware_reason=resolved.reason,
            capacity_bytes=_capacity(ctx.config, section, facts),
            parameters=read_parameters(ctx.tmp_dir),
            counts=read_counts(ctx.tmp_dir),
        )
        said = f"{reason}: FLOPs and bytes are counted by operators alone, and there are no bounds"
        notes = (said, *facts.notes, *_config_notes(ctx.config, section, facts), *_unknown_operators(analysis.counts))
        files: tuple[StageFile, ...] = ()
        if cfg.write_reports:
            document = counted_document(analysis, notes=notes)
            files = _write(document, counted_markdown(analysis, notes=notes), ctx.out_dir)
        source = f"{self.name}/{STATIC_JSON}" if cfg.write_reports else None
        return StageOutput(metrics=counted_metrics(analysis, source=source), files=files, notes=notes)


def declares_model(ctx: StageContext) -> bool:
    return bool(ctx.config.workload.declares_model)


def config_of_found_model(ctx: StageContext, timeout_s: float) -> AppConfig:
    """The configuration with the model that a library of the program generates with."""
    from llm_perf_opt.profiling.baseline import CLEAN_DIR, clean_baseline

    clean_baseline(ctx, timeout_s)
    found = read_found_model(ctx.workload_dir / CLEAN_DIR)
    if found is None:
        raise StageSkipped(NO_MODEL_FOUND)
    ctx.say(f"{ctx.out_dir.name}: the program generates with {found.name} in {found.dtype} on {found.device}")
    return with_found_model(ctx.config, found, ctx.tmp_dir)


def lengths_of_program(ctx: StageContext, timeout_s: float) -> AppConfig:
    """The configuration with prompt, output and batch as the phases of the user's program give them."""
    from llm_perf_opt.profiling.baseline import clean_baseline

    config = ctx.config
    try:
        metrics = clean_baseline(ctx, timeout_s).metrics.clean.metrics
    except ProfilingError as error:
        ctx.say(f"lengths are those of workload.*, since the program could not be timed: {error}")
        return config
    known = {name: round(stats.p50) for name, stats in metrics.items() if stats.p50}
    workload = replace(
        config.workload,
        prompt=known.get("prompt_tokens", config.workload.prompt),
        output=known.get("tokens", config.workload.output),
        batch=known.get("batch", config.workload.batch),
    )
    return replace(config, workload=workload)


def _where(config: AppConfig) -> str:
    """What to name in an error about the model's configuration."""
    reads_path = config.model.weights == "snapshot" or config.model.geometry is None
    path = config.model.path
    return str(path / "config.json") if reads_path and path is not None and path.is_dir() else "model.geometry"


def _count_in_child(cfg: StaticAnalysisConfig, ctx: StageContext, name: str) -> tuple[str, ...]:
    """What the user must know of the count: nothing, or why only the closed form is used."""
    problem = _run_child(cfg, ctx, name)
    if problem is None:
        return ()
    if not cfg.use_analytic_fallback:
        raise CommandFailed(
            f"{problem}; pipeline.static_analysis.use_analytic_fallback=true takes the closed form alone"
        )
    return (f"{problem}; only the closed form is used",)


def _run_child(cfg: StaticAnalysisConfig, ctx: StageContext, name: str) -> str | None:
    """Start the child; its files lie in the stage's scratch directory. Returns what went wrong."""
    overrides = [*workload_overrides(ctx.config), *stage_overrides(name, asdict(cfg))]
    # A child that fails leaves the answers of an earlier one, which may have counted another model.
    for answer in (FACTS_FILE, PARAMETERS_FILE, COUNTS_FILE):
        (ctx.tmp_dir / answer).unlink(missing_ok=True)
    argv = build_work_argv(STATIC_RUNNER, overrides, hydra_run_dir=ctx.tmp_dir)
    # Without reports nothing but scratch is written, the child's log included.
    place = ctx.out_dir if cfg.write_reports else ctx.tmp_dir
    result = ctx.run_command(
        argv,
        timeout_s=cfg.timeout_s,
        log=os.path.relpath(place / "log.txt", ctx.out_dir),
        cmd_file=os.path.relpath(place / "cmd.txt", ctx.out_dir),
        label="static analysis",
    )
    if result.ok:
        return None
    log = f"{name}/log.txt" if cfg.write_reports else f"tmp/{name}/log.txt"
    return f"operators could not be counted: {_ending(result)} (log: {log})"


def _ending(result: CommandResult) -> str:
    if result.timed_out:
        return f"the child was ended after {result.duration_s:.0f} s (pipeline.static_analysis.timeout_s)"
    lines = [line for line in result.tail.splitlines() if line.strip()]
    return f"the child ended with exit code {result.exit_code}" + (f": {lines[-1].strip()}" if lines else "")


def _facts_without_child(config: AppConfig, host: Host, adapter: ModelAdapter) -> Facts:
    """What can be known without torch: the first GPU nvidia-smi lists, or the CPU."""
    wants_cpu = config.run.device == "cpu" or not host.gpus
    if wants_cpu:
        device = Device(name=host.cpu, is_cpu=True, driver=cpu_driver(os.environ), memory_bytes=host.memory_bytes)
    else:
        gpu = next((g for g in host.gpus if config.run.device == f"cuda:{g.index}"), host.gpus[0])
        device = Device(name=gpu.name, is_cpu=False, driver=gpu.driver, memory_bytes=gpu.memory_bytes)
    chosen = choose_dtype(config.model.dtype, device="cpu" if wants_cpu else "cuda", stored=None)
    return Facts(
        device=device,
        dtype=short_dtype(chosen.value, where="model.dtype"),
        shape=shape_from_config(config, adapter, adapter.geometry(config.model)),
        calibration=None,
        notes=("device and shape were worked out without torch",),
    )


def _analyse(config: AppConfig, model: Model, facts: Facts, stored: Quantised | None, tmp_dir: Path) -> Analysis:
    section, resolved = _find_hardware(config, facts)
    return analyse(
        model,
        facts.shape,
        run_dtypes(facts.dtype, stored),
        section,
        name=config.model.name,
        hardware_reason=resolved.reason,
        capacity_bytes=facts.device.memory_bytes if config.hardware.memory_gb is None else None,
        counts=read_counts(tmp_dir),
    )


def _what_if(config: AppConfig, analysis: Analysis) -> WhatIf | None:
    """Predicted times of other choices, run as this run was."""
    catalogue = load_catalogue(conf_dir() / "hardware")
    engine = "graph" if config.infer.replays_graphs else "eager"
    return what_if(analysis.model, analysis.shape, analysis.dtypes, analysis.hardware, catalogue, engine=engine)


def _find_hardware(config: AppConfig, facts: Facts) -> tuple[HardwareSection | None, Resolved]:
    """The ceilings to reckon with, calibrated where they are this device's, and how they were found."""
    resolved = resolve_hardware(config.hardware, facts.device, load_catalogue(conf_dir() / "hardware"))
    section = _calibrated(resolved, facts) if _is_this_device(config, resolved, facts) else resolved.section
    return section, resolved


def _capacity(config: AppConfig, hardware: HardwareSection | None, facts: Facts) -> float | None:
    """The device's own figure where it could be queried and nothing else was given; else the data sheet's."""
    if config.hardware.memory_gb is None:
        return facts.device.memory_bytes
    return None if hardware is None or hardware.memory_gb is None else hardware.memory_gb * 1e9


def _is_this_device(config: AppConfig, resolved: Resolved, facts: Facts) -> bool:
    """Whether the hardware reckoned with is the one the run uses, so that its calibration applies."""
    section = resolved.section
    if config.hardware.name == AUTO or section is None:
        return True
    return section.name == CPU if facts.device.is_cpu else facts.device.name in section.device_names


def _calibrated(resolved: Resolved, facts: Facts) -> HardwareSection | None:
    """An unknown device that was calibrated has its own achievable ceilings, though no data-sheet peaks."""
    if facts.calibration is None:
        return resolved.section
    return with_calibration(resolved.section or HardwareSection(name=facts.device.name), facts.calibration)


def _config_notes(config: AppConfig, hardware: HardwareSection | None, facts: Facts) -> tuple[str, ...]:
    """What was requested and is not what runs."""
    found = []
    if config.workload.command is None and config.workload.batch not in (1, config.infer.batch):
        found.append(
            f"workload.batch={config.workload.batch} is not used here: the workload runs {config.infer.batch} "
            "sequences together (infer.batch), and so does its analysis"
        )
    if hardware is not None and not _is_this_device(config, Resolved(section=hardware), facts):
        found.append(
            f"hardware={hardware.name} was requested, the model runs on {facts.device.name}: bounds are those of "
            f"{hardware.name}, and utilisation against them means nothing"
        )
    return tuple(found)


def _notes(analysis: Analysis) -> tuple[str, ...]:
    found = []
    if analysis.hardware is None and analysis.hardware_reason:
        found.append(f"no bounds, MFU or MBU: {analysis.hardware_reason}")
    found += [
        f"{e.phase}, {e.group}: operator count is {e.counted:.4g} {e.quantity}, closed form {e.closed_form:.4g}: "
        f"{e.explanation}"
        for e in disagreements(analysis.entries)
    ]
    found += _unknown_operators(analysis.counts)
    if _fits_cache(analysis):
        found.append("the weights fit into the device's last cache, so memory bounds at DRAM bandwidth can be beaten")
    return tuple(found)


def _unknown_operators(counts: Mapping[str, Count]) -> tuple[str, ...]:
    unknown = sorted({name for count in counts.values() for name in count.unknown})
    return (f"operators without a formula, counted as 0 FLOPs: {', '.join(unknown)}",) if unknown else ()


def _fits_cache(analysis: Analysis) -> bool:
    hardware = analysis.hardware
    return hardware is not None and hardware.l2_mb is not None and analysis.memory.weights_bytes < hardware.l2_mb * 1e6


def _write(document: StaticDocument, markdown: str, out_dir: Path) -> tuple[StageFile, ...]:
    path = write_json(out_dir / STATIC_JSON, document)
    text = out_dir / STATIC_MD
    write_page(text, markdown)
    return (StageFile(role="static_json", path=path), StageFile(role="static_md", path=text))


STAGE = StaticAnalysisStage()
