"""Child of the static_analysis stage: counts the operators of the model on the meta device, calibrates the device."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.children.start import run_child
from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import STATIC_ANALYSIS
from llm_perf_opt.core.records import Progress, begin_step
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.hardware.calibrate import cache_dir, cpu_driver, read_calibration, write_calibration
from llm_perf_opt.model.hardware.hardware import Calibration, Device
from llm_perf_opt.model.hardware.work import Shape, short_dtype
from llm_perf_opt.model.static.operator_count import count_module_parameters, count_operators
from llm_perf_opt.profiling.stages.static_analysis import StaticAnalysisConfig
from llm_perf_opt.profiling.static_child import (
    Facts,
    count_phases,
    page_shape,
    shape_from_config,
    text_shape,
    write_counts,
    write_facts,
    write_parameters,
)
from llm_perf_opt.workload.dataset import PAGES, list_samples, plan_samples, vocabulary_of
from llm_perf_opt.workload.models.base import ModelAdapter, Sample
from llm_perf_opt.workload.models.registry import load_adapter, page_files_of


def main(argv: Sequence[str]) -> int:
    return run_child(_work, argv)


def _work(config: AppConfig, out_dir: Path) -> None:
    """Facts first, so that a failing count does not lose the calibration."""
    stage = config.stages.get(STATIC_ANALYSIS)
    if not isinstance(stage, StaticAnalysisConfig):
        raise ConfigError("pipeline.static_analysis.enable: must be true in the child (got false)")
    adapter = load_adapter(config.model.adapter)
    facts = _find_facts(config, adapter, is_synthetic=stage.use_synthetic_inputs, out_dir=out_dir)
    write_facts(out_dir, facts)
    _say(f"counting operators of {config.model.name} for {facts.shape.prompt} tokens")
    module = _build(config, adapter, facts.dtype)
    begin_step("counting")
    groups = adapter.meta_groups(module)
    write_parameters(out_dir, count_module_parameters(module, groups))
    write_counts(out_dir, count_phases(adapter, module, groups, facts.shape))


def _find_facts(config: AppConfig, adapter: ModelAdapter, *, is_synthetic: bool, out_dir: Path) -> Facts:
    begin_step("imports")
    import torch  # noqa: F401 - its time is distinguished from that of the device's first use

    from llm_perf_opt.workload.device import resolve_device
    from llm_perf_opt.workload.models.registry import choose_dtype

    begin_step("device")
    torch_device = resolve_device(config.run.device)
    device = describe_device(torch_device)
    chosen = choose_dtype(config.model.dtype, device=torch_device, stored=None)
    dtype = short_dtype(chosen.value, where="model.dtype")
    calibration = None
    if device.is_cpu or config.hardware.calibrate:
        calibration = _calibration(device, torch_device, dtype)
    shape = (
        shape_from_config(config, adapter, adapter.geometry(config.model))
        if is_synthetic
        else _sample_shape(config, adapter, out_dir)
    )
    return Facts(device=device, dtype=dtype, shape=shape, calibration=calibration)


def describe_device(torch_device: str) -> Device:
    """The device as torch names it."""
    import psutil
    import torch

    from llm_perf_opt.profiling.vendor.vendor_tools import probe_gpus
    from llm_perf_opt.workload.device import CPUINFO, cpu_name

    if not torch_device.startswith("cuda"):
        memory = psutil.virtual_memory().total
        return Device(name=cpu_name(CPUINFO), is_cpu=True, driver=cpu_driver(os.environ), memory_bytes=memory)
    properties = torch.cuda.get_device_properties(torch_device)
    name = torch.cuda.get_device_name(torch_device)
    gpus, _ = probe_gpus(os.environ)
    driver = next((gpu.driver for gpu in gpus if gpu.name == name), f"CUDA {torch.version.cuda}")
    return Device(name=name, is_cpu=False, driver=driver, memory_bytes=int(properties.total_memory))


def _calibration(device: Device, torch_device: str, dtype: str) -> Calibration:
    """From the cache, or measured and kept. A CPU is measured every time, because others may have kept it busy."""
    from llm_perf_opt.model.hardware.calibrate import better, calibrate

    folder = cache_dir(os.environ)
    known = read_calibration(folder, device, dtype)
    if known is not None and not device.is_cpu:
        return known
    begin_step("calibration")
    _say(f"calibrating {device.name} in {dtype} (about a second, kept in {folder})")

    def operators_in(module: Any, work: Callable[[], Any]) -> int:
        return count_operators(module, {}, work)[0].total.operators

    found = calibrate(device, torch_device=torch_device, dtype=dtype, operators_in=operators_in)
    best = found if known is None else better(known, found)
    write_calibration(folder, best)
    return best


def _sample_shape(config: AppConfig, adapter: ModelAdapter, out_dir: Path) -> Shape:
    """The shape of the first sample the plan uses."""
    reads_pages = adapter.data_kind == PAGES
    geometry = adapter.geometry(config.model)
    vocabulary = None if reads_pages else vocabulary_of(geometry)
    samples = list_samples(
        config.dataset,
        data_kind=adapter.data_kind,
        vocabulary=vocabulary,
        scratch_dir=out_dir,
        page_files=page_files_of(adapter),
    )
    sample = plan_samples(samples, config.dataset.sampling)[0].sample
    how = f"sample {sample.sample_id} of the data set"
    if reads_pages:
        width, height = _page_size(sample)
        return page_shape(config, adapter, geometry, width, height, how=f"{how}, {width} × {height} pixels")
    return text_shape(config, _prompt_tokens(config, sample), how=how)


def _page_size(sample: Sample) -> tuple[int, int]:
    from PIL import Image, ImageOps

    if sample.image is None:
        raise ConfigError(f"dataset: sample {sample.sample_id} is not a page, which the model reads")
    with Image.open(sample.image) as opened:
        picture = ImageOps.exif_transpose(opened)
        return int(picture.width), int(picture.height)


def _prompt_tokens(config: AppConfig, sample: Sample) -> int:
    from llm_perf_opt.workload.models.snapshot import load_tokenizer

    if sample.token_ids is not None:
        return len(sample.token_ids)
    tokenizer = load_tokenizer(config.model.path) if config.model.path is not None else None
    if tokenizer is None or sample.text is None:
        raise ConfigError(
            f"dataset: sample {sample.sample_id} is text and the model has no tokenizer to measure it; "
            "use pipeline.static_analysis.use_synthetic_inputs=true or set model.path"
        )
    return len(tokenizer(sample.text)["input_ids"])


def _build(config: AppConfig, adapter: ModelAdapter, dtype: str) -> Any:
    """The module on the meta device, in the format the run uses."""
    import torch

    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    return adapter.build_meta(replace(config.model, dtype="bfloat16")).to(kind)


def _say(text: str) -> None:
    print(Progress(text=text).line, flush=True)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))
