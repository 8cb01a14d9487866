"""How far estimates may be off, by what is estimated: factors that contain nine of ten measured or published runs.

docs/accuracy.md has the runs; a test asserts the share of them inside. Bands are wider where less was measured: rates
transferred from another device, serving engines, several devices, experts.
"""

from dataclasses import dataclass

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.efficiency import MEASURED, maker_of, rates_of
from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.model.static.parts import Model, Moe


@dataclass(frozen=True, kw_only=True)
class Band:
    """A time may be up to `slower` times as long as estimated, or as short as a `faster`-th. `why` it is that wide."""

    slower: float
    faster: float
    why: str


OWN = Band(slower=1.18, faster=1.18, why="rates and engine measured on this device")
OTHER = Band(slower=1.45, faster=1.45, why="rates transferred, or a serving engine: dense models on one device")
SPREAD = Band(slower=1.65, faster=1.45, why="tensor parallel: communication was not measured")
STAGES = Band(slower=1.65, faster=1.65, why="pipeline parallel: one model on one kind of GPU was published")
EXPERTS = Band(slower=2.2, faster=1.35, why="experts: routing is uneven, engines' grouped kernels were not measured")
EXPERTS_SPREAD = Band(slower=2.6, faster=2.4, why="experts on several devices: balance and layout differ by engine")


UNLIKE = Band(
    slower=2.2,
    faster=1.45,
    why="rates transferred to a GPU unlike those they were compared on (Ampere and older, or little compute for its "
    "bandwidth)",
)
EAGER = Band(slower=3.7, faster=1.45, why="eager mode: the host's time per operator was assumed")
AMD = Band(slower=1.8, faster=1.65, why="AMD: rates were fitted to runs of MI300X in tensor parallel")
ANOTHER = Band(slower=2.4, faster=1.65, why="rates were measured on NVIDIA GPUs and never compared with a run there")


# bf16 FLOPs per byte of bandwidth. Of the GPUs that were compared H20 has 37, all others have 96 and more.
LEAST_BALANCE = 60


def band_of(model: Model, engine: str, layout: Layout, hardware: HardwareSection) -> Band:
    """The band of a step's time on the device."""
    rates, maker = rates_of(hardware), maker_of(hardware)
    is_measured = rates is not None and rates.label == MEASURED
    found = _band_of_kind(model, engine, layout, is_measured=is_measured)
    if is_measured or (maker == "NVIDIA" and _is_like_compared(hardware)):
        return found
    return _wider(found, {"NVIDIA": UNLIKE, "AMD": AMD}.get(maker, ANOTHER))


def served_band_of(model: Model, engine: str, layout: Layout, hardware: HardwareSection) -> Band:
    """The band of whole requests: in eager mode the host counts, which is not the one of the measured rates."""
    found = band_of(model, engine, layout, hardware)
    return _wider(found, EAGER) if engine == "eager" else found


def _wider(found: Band, wide: Band) -> Band:
    return Band(
        slower=max(found.slower, wide.slower), faster=max(found.faster, wide.faster), why=f"{found.why}; {wide.why}"
    )


def _is_like_compared(hardware: HardwareSection) -> bool:
    """Ada, Hopper and Blackwell, which multiply fp8, unless a variant has lost most of its compute."""
    peaks, bandwidth = hardware.peak_tflops, hardware.memory_bandwidth_gb_s
    if "fp8" not in peaks:
        return False
    return bandwidth is None or "bf16" not in peaks or 1e3 * peaks["bf16"] / bandwidth >= LEAST_BALANCE


def _band_of_kind(model: Model, engine: str, layout: Layout, *, is_measured: bool) -> Band:
    has_experts = any(isinstance(layer.feed_forward, Moe) for layer, _ in model.decoder.blocks)
    if has_experts and layout.model_devices * layout.sharing > 1:
        return EXPERTS_SPREAD
    if layout.pp > 1:
        return STAGES
    if layout.tp > 1:
        return SPREAD
    if is_measured and engine != "server":
        return OWN
    return EXPERTS if has_experts else OTHER
