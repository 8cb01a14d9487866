"""The catalogue of hardware, the lookup by device name, bounds, estimates and utilisation."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.cli import main
from llm_perf_opt.config.load import validate
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.hardware.calibrate import (
    MATMUL_SIDES,
    better,
    cache_dir,
    cpu_driver,
    read_calibration,
    write_calibration,
)
from llm_perf_opt.model.hardware.hardware import (
    GIVEN,
    PEAK_NAMES,
    Calibration,
    Device,
    Resolved,
    find_by_device_name,
    load_catalogue,
    resolve_hardware,
    with_calibration,
)
from llm_perf_opt.model.hardware.roofline import (
    Ceilings,
    achievable_ceilings,
    bound,
    datasheet_ceilings,
    estimate,
    limit_of,
    mbu,
    mfu,
    missing_ceiling,
)
from llm_perf_opt.model.hardware.work import Dtypes, Work
from llm_perf_opt.pipeline.compose import compose_config, type_config
from tests.support.fixtures_dir import REPO

RATES = ("peak_tflops", "achieved_tflops")
BF16 = Dtypes.uniform("bf16")


def catalogue() -> dict[str, HardwareSection]:
    return load_catalogue(conf_dir() / "hardware")


def gpu(name: str) -> Device:
    return Device(name=name, is_cpu=False, driver="580.65")


def test_peaks_are_dense_and_as_the_data_sheets_say() -> None:
    found = {
        name: (entry.peak_tflops.get("bf16"), entry.memory_bandwidth_gb_s, entry.memory_gb)
        for name, entry in catalogue().items()
        if name != "cpu"
    }
    assert found == {
        "a10": (125.0, 600.0, 24.15),
        "a100_40gb": (312.0, 1555.0, 42.95),
        "a100_80gb": (312.0, 2039.0, 85.9),
        "a100_80gb_pcie": (312.0, 1935.0, 85.9),
        "a10g": (70.0, 600.0, 24.15),
        "a30": (165.0, 933.0, 25.77),
        "a40": (149.7, 696.0, 48.31),
        "apple_m1": (None, 68.25, None),
        "apple_m1_max": (None, 400.0, None),
        "apple_m1_pro": (None, 200.0, None),
        "apple_m1_ultra": (None, 800.0, None),
        "apple_m2": (None, 100.0, None),
        "apple_m2_max": (None, 400.0, None),
        "apple_m2_pro": (None, 200.0, None),
        "apple_m2_ultra": (None, 800.0, None),
        "apple_m3": (None, 100.0, None),
        "apple_m3_max": (None, 400.0, None),
        "apple_m3_pro": (None, 150.0, None),
        "apple_m3_ultra": (None, 819.0, None),
        "apple_m4": (None, 120.0, None),
        "apple_m4_max": (None, 546.0, None),
        "apple_m4_pro": (None, 273.0, None),
        "apple_m5": (None, 153.6, None),
        "apple_m5_max": (None, 614.0, None),
        "apple_m5_pro": (None, 307.0, None),
        "b200": (2250.0, 8000.0, 192.27),
        "b300": (2250.0, 8000.0, 288.4),
        "epyc_7763": (None, 204.8, None),
        "epyc_9654": (None, 460.8, None),
        "epyc_9755": (None, 614.4, None),
        "gaudi2": (432.0, 2450.0, 103.08),
        "gaudi3": (1835.0, 3700.0, 137.44),
        "gb10": (125.0, 273.0, 128.0),
        "gb200": (2500.0, 8000.0, 198.67),
        "gb300": (2500.0, 8000.0, 288.4),
        "gh200": (989.4, 4000.0, 102.63),
        "grace": (None, 500.0, None),
        "h100_nvl": (835.5, 3938.0, 100.49),
        "h100_pcie": (756.0, 2039.0, 85.52),
        "h100_sxm": (989.4, 3350.0, 85.52),
        "h20": (148.0, 4000.0, 102.63),
        "h200": (989.4, 4800.0, 150.75),
        "h200_nvl": (835.5, 4800.0, 150.75),
        "h800": (989.4, 3350.0, 85.52),
        "jetson_agx_orin": (None, 204.8, 64.0),
        "jetson_thor": (258.8, 273.0, 128.0),
        "l4": (121.0, 300.0, 24.15),
        "l40s": (362.05, 864.0, 48.31),
        "mi210": (181.0, 1638.4, 68.72),
        "mi250x": (191.5, 1638.4, 68.72),
        "mi300x": (1307.4, 5300.0, 206.16),
        "mi325x": (1307.4, 6000.0, 274.88),
        "mi355x": (2516.6, 8000.0, 309.24),
        "rtx3070": (40.6, 448.0, 8.59),
        "rtx3080": (59.5, 760.0, 10.74),
        "rtx3090": (71.0, 936.0, 25.77),
        "rtx3090_ti": (80.0, 1008.0, 25.76),
        "rtx4070_ti": (80.2, 504.0, 12.88),
        "rtx4080": (97.5, 716.8, 17.17),
        "rtx4090": (165.2, 1008.0, 25.76),
        "rtx5070_ti": (87.9, 896.0, 17.09),
        "rtx5080": (112.6, 960.0, 17.09),
        "rtx5090": (209.5, 1792.0, 34.19),
        "rtx6000_ada": (364.2, 960.0, 51.53),
        "rtx_a6000": (154.8, 768.0, 51.53),
        "rtx_pro_6000": (503.8, 1792.0, 102.64),
        "rtx_pro_6000_server": (503.8, 1597.0, 102.64),
        "t4": (None, 320.0, 16.11),
        "tpu_v5e": (197.0, 819.0, 16.0),
        "tpu_v5p": (459.0, 2765.0, 102.01),
        "tpu_v6e": (918.0, 1638.0, 32.0),
        "v100_sxm_16gb": (None, 900.0, 17.18),
        "v100_sxm_32gb": (None, 900.0, 34.36),
        "xeon_8380": (None, 204.8, None),
        "xeon_8480": (None, 307.2, None),
        "xeon_8592": (None, 358.4, None),
        "ascend_910b2": (353.9, 1600.0, 68.72),
        "ascend_910b3": (294.9, 1600.0, 68.72),
        "l40": (181.05, 864.0, 48.31),
        "mi350x": (2306.9, 8000.0, 309.24),
        "rtx2080_ti": (None, 616.0, 11.81),
        "rtx4060_ti": (44.2, 288.0, 17.18),
        "rtx4070": (58.2, 504.0, 12.88),
        "rtx5060_ti": (47.4, 448.0, 17.1),
        "rubin": (4000.0, 22000.0, 288.0),
        "rx7900_xtx": (122.8, 960.0, 25.77),
        "strix_halo": (59.4, 256.0, 137.44),
        "trainium2": (667.0, 2900.0, 103.08),
    }


def test_every_entry_is_a_valid_configuration() -> None:
    for path in sorted((conf_dir() / "hardware").glob("*.yaml")):
        section, problems = validate(HardwareSection, yaml.safe_load(path.read_text()), "hardware")
        assert (section is not None, problems) == (True, []), path
        assert section is not None and section.name == path.stem


def test_every_figure_has_a_source() -> None:
    for name, entry in catalogue().items():
        if name == "cpu":
            continue
        figures = {
            "peak_tflops": entry.peak_tflops,
            "memory_bandwidth_gb_s": entry.memory_bandwidth_gb_s,
            "memory_gb": entry.memory_gb,
            "l2_mb": entry.l2_mb,
            "link_gb_s": entry.link_gb_s,
            "achieved_tflops": entry.achieved_tflops,
            "achieved_bandwidth_gb_s": entry.achieved_bandwidth_gb_s,
            "launch_us": entry.launch_us,
        }
        assert sorted(entry.sources) == sorted(key for key, figure in figures.items() if figure), name
        # What every use needs is there, or the notes say why it is not.
        assert entry.notes is not None or (entry.memory_gb is not None and "bf16" in entry.peak_tflops), name


@pytest.mark.parametrize(
    ("device", "entry"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA A100 80GB PCIe", "a100_80gb_pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_device_name_maps_to_one_entry(device: str, entry: str) -> None:
    found = find_by_device_name(catalogue(), device)
    assert found is not None and found.name == entry


@pytest.mark.parametrize(
    "device", ["NVIDIA H2", "NVIDIA H200 Max", "NVIDIA A10M", "NVIDIA GeForce RTX 3090 Ti Max", "h200"]
)
def test_a_name_that_only_resembles_one_is_unknown(device: str) -> None:
    assert find_by_device_name(catalogue(), device) is None


def test_an_unknown_device_has_no_peaks_and_says_what_to_do() -> None:
    found = resolve_hardware(HardwareSection(), gpu("NVIDIA Imaginary 1"), catalogue())
    assert found.section is None
    assert found.reason == (
        "the peaks of 'NVIDIA Imaginary 1' are not known: give them as hardware.peak_tflops.bf16=… and "
        "hardware.memory_bandwidth_gb_s=…, or measure with hardware.calibrate=true"
    )


def test_the_users_own_peaks_are_taken_for_an_unknown_device() -> None:
    own = HardwareSection(peak_tflops={"bf16": 100.0}, memory_bandwidth_gb_s=1000.0)
    found = resolve_hardware(own, gpu("NVIDIA Imaginary 1"), catalogue()).section
    assert found is not None
    assert (found.name, found.peak_tflops, found.memory_bandwidth_gb_s, found.sources) == (
        "NVIDIA Imaginary 1",
        {"bf16": 100.0},
        1000.0,
        {"peak_tflops.bf16": GIVEN, "memory_bandwidth_gb_s": GIVEN},
    )


OWN = HardwareSection(achieved_tflops={"fp32": 123.0}, achieved_bandwidth_gb_s=456.0, launch_us=7.0, memory_gb=1.0)
OWN_SOURCES = {
    "achieved_tflops.fp32": GIVEN,
    "achieved_bandwidth_gb_s": GIVEN,
    "launch_us": GIVEN,
    "memory_gb": GIVEN,
}


@pytest.mark.parametrize("entry", ["auto", "cpu", "a10"])
def test_the_key_of_every_number_format_is_known_whatever_the_entry(entry: str) -> None:
    rates = {name: 10.0 + i for i, name in enumerate(PEAK_NAMES)}
    overrides = [f"hardware.{key}.{name}={rate}" for key in RATES for name, rate in rates.items()]
    found = type_config(compose_config([f"hardware={entry}", *overrides]), user_dir=Path.cwd()).hardware
    assert (found.peak_tflops, found.achieved_tflops) == (rates, rates)
    plain = type_config(compose_config([f"hardware={entry}"]), user_dir=Path.cwd()).hardware
    expected = {} if entry == "auto" else catalogue()[entry].peak_tflops
    assert (plain.peak_tflops, plain.achieved_tflops) == (expected, {})


@pytest.mark.slow
def test_the_command_of_the_documentation_takes_peaks_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (REPO / "docs" / "static-analysis.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("llm-perf profile hardware.peak_tflops")]
    monkeypatch.chdir(tmp_path)
    code = main([*line.split()[1:], "experiment=demo", "run.dry_run=true", "run.device=cpu"])
    assert (code, "error" in capsys.readouterr().err) == (0, False)
    _, _, *given = line.split()
    assert main(["predict", "model=llama_tiny", "model.dtype=bfloat16", *given, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert (found["hardware"]["peak_tflops"]["bf16"], found["hardware"]["memory_bandwidth_gb_s"]) == (200, 1500)
    decode = found["phases"]["decode"]
    assert decode["bound_ms"]["datasheet"] == pytest.approx(1e3 * decode["bytes_needed"] / 1.5e12)


def test_every_figure_can_be_given_for_a_device_that_is_looked_up() -> None:
    entry = catalogue()["h200"]
    found = resolve_hardware(OWN, gpu("NVIDIA H200"), catalogue())
    assert found == Resolved(
        section=replace(
            entry,
            achieved_tflops={**entry.achieved_tflops, "fp32": 123.0},
            achieved_bandwidth_gb_s=456.0,
            launch_us=7.0,
            memory_gb=1.0,
            sources={**entry.sources, **OWN_SOURCES},
        )
    )


def test_one_given_peak_leaves_the_catalogues_other_figures() -> None:
    entry = catalogue()["h200"]
    own = HardwareSection(peak_tflops={"bf16": 800.0}, sources={"peak_tflops.bf16": "our own data sheet"})
    found = resolve_hardware(own, gpu("NVIDIA H200"), catalogue())
    assert found.section == replace(
        entry,
        peak_tflops={**entry.peak_tflops, "bf16": 800.0},
        sources={**entry.sources, "peak_tflops.bf16": "given in the configuration: our own data sheet"},
    )


def test_figures_that_are_no_peaks_leave_an_unknown_devices_peaks_unknown() -> None:
    found = resolve_hardware(OWN, gpu("NVIDIA Imaginary 1"), catalogue())
    assert found.section == replace(OWN, name="NVIDIA Imaginary 1", sources=OWN_SOURCES)
    assert found.reason is not None and found.reason.startswith("the peaks of 'NVIDIA Imaginary 1' are not known")


def test_given_figures_win_over_a_calibration() -> None:
    measured = calibration("bf16", tflops=700.0, bandwidth_gb_s=4000.0, launch_us=9.0)
    found = resolve_hardware(OWN, gpu("NVIDIA H200"), catalogue()).section
    assert found is not None
    calibrated = with_calibration(found, measured)
    assert (calibrated.achieved_tflops, calibrated.achieved_bandwidth_gb_s, calibrated.launch_us) == (
        {"bf16": 700.0, "fp32": 123.0},
        456.0,
        7.0,
    )
    assert calibrated.sources["achieved_tflops"] == "products at 700.0"
    assert {key: calibrated.sources[key] for key in OWN_SOURCES} == OWN_SOURCES
    # A named entry is composed with the changes in it: what differs from the catalogue was given.
    named = resolve_hardware(replace(catalogue()["h200"], launch_us=7.0), None, catalogue()).section
    assert named is not None
    calibrated = with_calibration(named, measured)
    assert (calibrated.achieved_tflops, calibrated.achieved_bandwidth_gb_s, calibrated.launch_us) == (
        {"bf16": 700.0},
        4000.0,
        7.0,
    )


def test_a_peak_under_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hardware: peak_tflops.bfloat16: not a number format"):
        resolve_hardware(replace(HardwareSection(), peak_tflops={"bfloat16": 1.0}), gpu("x"), catalogue())


def test_one_device_name_in_two_entries_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\ndevice_names: [NVIDIA X]\n")
    with pytest.raises(ConfigError, match="'NVIDIA X' belongs to a already"):
        load_catalogue(tmp_path)


def calibration(dtype: str, *, tflops: float, bandwidth_gb_s: float, launch_us: float) -> Calibration:
    return Calibration(
        device="NVIDIA H200",
        driver="580.65",
        dtype=dtype,
        tflops=tflops,
        bandwidth_gb_s=bandwidth_gb_s,
        launch_us=launch_us,
        tflops_how=f"products at {tflops}",
        bandwidth_how=f"memory at {bandwidth_gb_s}",
        launch_how=f"operators at {launch_us}",
    )


def test_the_best_of_two_calibrations_keeps_how_each_figure_was_measured() -> None:
    quiet = calibration("fp32", tflops=0.1, bandwidth_gb_s=47.71, launch_us=4.0)
    busy = calibration("fp32", tflops=0.12, bandwidth_gb_s=18.6, launch_us=3.0)
    best = calibration("fp32", tflops=0.12, bandwidth_gb_s=47.71, launch_us=3.0)
    assert better(quiet, busy) == best
    assert better(busy, quiet) == best


def test_a_calibration_is_measured_on_products_a_model_could_have() -> None:
    assert min(MATMUL_SIDES) == 1024


def test_a_cpu_is_known_only_by_its_calibration() -> None:
    cpu = Device(name="Some CPU", is_cpu=True, driver="torch 2.13, 2 threads")
    section = resolve_hardware(HardwareSection(), cpu, catalogue()).section
    assert section is not None
    assert datasheet_ceilings(section) is None
    assert achievable_ceilings(section) is None
    assert missing_ceiling(section, None, BF16, "datasheet") == "cpu has no data-sheet peaks"
    calibrated = with_calibration(section, calibration("fp32", tflops=0.1, bandwidth_gb_s=20.0, launch_us=4.0))
    assert calibrated.sources == {
        "achieved_tflops": "products at 0.1",
        "achieved_bandwidth_gb_s": "memory at 20.0",
        "launch_us": "operators at 4.0",
    }
    ceilings = achievable_ceilings(calibrated)
    assert ceilings == Ceilings(kind="achievable", flops_per_s={"fp32": 0.1e12}, bytes_per_s=20e9)


def test_the_threads_of_a_cpu_are_known_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert cpu_driver({}).endswith(", 10 threads")
    assert cpu_driver({"OMP_NUM_THREADS": "3"}).endswith(", 3 threads")


def test_calibrations_are_kept_per_device_driver_and_format(tmp_path: Path) -> None:
    folder = cache_dir({"XDG_CACHE_HOME": str(tmp_path)})
    assert folder == tmp_path / "llm-perf" / "calibration"
    device = gpu("NVIDIA H200")
    kept = calibration("bf16", tflops=819.0, bandwidth_gb_s=4250.0, launch_us=9.0)
    path = write_calibration(folder, kept)
    assert read_calibration(folder, device, "bf16") == kept
    assert read_calibration(folder, device, "fp16") is None
    assert read_calibration(folder, replace(device, driver="590.1"), "bf16") is None
    path.write_text(json.dumps({"schema_version": 0}))
    assert read_calibration(folder, device, "bf16") is None
    path.write_text("{")
    assert read_calibration(folder, device, "bf16") is None


def test_the_bound_is_the_larger_of_compute_and_memory() -> None:
    ceilings = Ceilings(kind="datasheet", flops_per_s={"bf16": 1e12}, bytes_per_s=1e9)
    found = bound(Work(flops=4e9, flops_masked=1e9, weight_bytes=2e6, activation_bytes=9e9), BF16, ceilings)
    assert (found.compute_ms, found.memory_ms, found.ms, found.limit) == (3.0, 2.0, 3.0, "compute")


def test_narrow_weights_run_at_the_rate_of_their_own_format_where_there_is_one() -> None:
    work = Work(flops=3e9, flops_quantised=2e9)
    fp8 = Dtypes(compute="bf16", weight="fp8", kv="bf16")
    with_units = Ceilings(kind="datasheet", flops_per_s={"bf16": 1e12, "fp8": 2e12}, bytes_per_s=1e9)
    without = Ceilings(kind="datasheet", flops_per_s={"bf16": 1e12}, bytes_per_s=1e9)
    int4 = Dtypes(compute="bf16", weight="int4", kv="bf16")
    assert bound(work, fp8, with_units).compute_ms == 2.0
    assert bound(work, fp8, without).compute_ms == 3.0
    # Kernels in use widen 4 bits to 8, so no bound may be slower than that; what the user says of activations counts.
    assert bound(work, int4, with_units).compute_ms == 2.0
    assert bound(work, replace(int4, activation="bf16"), with_units).compute_ms == 3.0


def test_launches_limit_a_phase_that_the_device_would_finish_sooner() -> None:
    ceilings = Ceilings(kind="achievable", flops_per_s={"bf16": 1e15}, bytes_per_s=4e12)
    groups = {"mlp": Work(flops=1e9, weight_bytes=2e9, activation_bytes=0)}
    on_gpu = estimate(groups, BF16, ceilings, operators=700, launch_us=10.0, other_bytes=0.0, is_synchronous=False)
    assert (on_gpu.limit, on_gpu.launch_ms, on_gpu.mid_ms) == ("launch", 14.0, 14.0)
    assert on_gpu.low_ms == 7.0 and on_gpu.high_ms == 28.0
    on_cpu = estimate(groups, BF16, ceilings, operators=700, launch_us=10.0, other_bytes=0.0, is_synchronous=True)
    assert on_cpu.mid_ms == pytest.approx(14 + 0.5 / 0.8)
    assert limit_of(bound(groups["mlp"], BF16, ceilings), 0.1) == "memory"


def test_utilisation_is_need_over_what_the_peak_would_have_done() -> None:
    assert mfu(5e11, 1.0, 1e15) == pytest.approx(0.5)
    # Llama of 1,235,814,400 parameters on an H200: 15.13 ms a token where weights and cache take 0.58 ms.
    assert mbu(2.505e9, 15.13, 4.8e12) == pytest.approx(0.0345, abs=0.0001)


def test_other_formats_of_a_calibration_are_ceilings_of_their_own() -> None:
    one = Calibration(
        device="NVIDIA H200",
        driver="580",
        dtype="bf16",
        tflops=800.0,
        bandwidth_gb_s=4000.0,
        launch_us=5.0,
        tflops_how="a",
        bandwidth_how="b",
        launch_how="c",
        other_tflops={"fp8": 1400.0, "int8": 900.0},
        link_gb_s=400.0,
    )
    two = replace(one, other_tflops={"fp8": 1300.0, "int8": 1000.0}, link_gb_s=None)
    best = better(one, two)
    assert (best.other_tflops, best.link_gb_s) == ({"fp8": 1400.0, "int8": 1000.0}, 400.0)
    section = with_calibration(catalogue()["h200"], best)
    assert section.achieved_tflops == {"fp8": 1400.0, "int8": 1000.0, "bf16": 800.0}


def test_products_in_narrow_formats_can_be_timed() -> None:
    """On the CPU, where torch has the same calls; the rate itself is the machine's."""
    pytest.importorskip("torch")
    from llm_perf_opt.model.hardware.calibrate import _square_tflops

    assert [_square_tflops("cpu", name, 64, lambda: None) > 0 for name in ("bf16", "fp16", "fp8", "int8")] == [True] * 4
