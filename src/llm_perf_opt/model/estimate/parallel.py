"""A model spread over several devices, and what it costs to bring results together.

Tensor parallel devices (`tp`) split every matrix and all-reduce twice a layer; pipeline stages (`pp`) hold some of the
layers each and pass rows on; expert parallel devices (`ep`) hold some of the experts each and exchange rows before and
behind them; replicas (`dp`) share nothing. Devices in use: tp · pp · dp; `ep` spreads experts over those of one
replica's stage (ep ≤ tp) or, with attention replicated, over replicas.
"""

from dataclasses import dataclass

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.efficiency import link_share
from llm_perf_opt.model.hardware.work import DeviceShare
from llm_perf_opt.model.static.forms import expected_experts
from llm_perf_opt.model.static.parts import Decoder, Layer, Moe, StateMixer

# A collective's start: kernels on both sides and one trip over the switch. Assumed, not measured here: a few to ten
# microseconds are usual over NVLink, and PCI Express goes through the host.
NVLINK_US, PCIE_US = 8.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Devices of each kind of parallelism; all 1: one device."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def experts_split(self) -> int:
        """Over how many devices the routed experts' work is spread: their own, else as every other matrix."""
        return max(self.tp, self.ep)

    @property
    def sharing(self) -> int:
        """Replicas whose rows meet in the same experts: 1 unless experts are spread beyond one replica's devices."""
        return max(1, self.ep // self.tp)

    @property
    def spread(self) -> DeviceShare:
        return DeviceShare(tp=self.tp, sharing=self.sharing, stages=self.pp)

    @property
    def model_devices(self) -> int:
        """Devices that hold one copy of the weights."""
        return self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes per second in one direction of one device, and the share that is reached; None: the link is not known."""

    bytes_per_s: float | None
    start_us: float
    share: float

    def all_reduce_us(self, size: float, devices: int) -> float:
        return 2 * self._moved_us(size, devices)

    def all_to_all_us(self, size: float, devices: int) -> float:
        return self._moved_us(size, devices)

    def send_us(self, size: float) -> float:
        return self.start_us + self._wire_us(size)

    def layer_us(self, layer: Layer, rows: int, hidden: int, element_bytes: float, layout: Layout) -> float:
        """Two all-reduces of the hidden rows; experts spread on their own exchange rows twice instead of the second."""
        size = rows * hidden * element_bytes
        once = self.all_reduce_us(size, layout.tp) if layout.tp > 1 else 0.0
        block = layer.feed_forward
        if layout.ep > 1 and isinstance(block, Moe):
            # A row goes once to each device that holds one of its experts.
            routed = rows * block.routed_hidden(hidden) * element_bytes
            sent = routed / layout.tp * expected_experts(layout.ep, 1, block.top_k)
            return once + 2 * self.all_to_all_us(sent, layout.ep)
        return 2 * once

    def _moved_us(self, size: float, devices: int) -> float:
        return self.start_us / 2 + self._wire_us(size * (devices - 1) / devices)

    def _wire_us(self, size: float) -> float:
        return 0.0 if self.bytes_per_s is None else 1e6 * size / (self.bytes_per_s * self.share)


def layout_problem(decoder: Decoder, layout: Layout) -> str | None:
    """Why no engine runs a model spread like this, or None."""
    for layer, _ in decoder.blocks:
        a, block = layer.attention, layer.feed_forward
        if not isinstance(a, StateMixer) and a.heads % layout.tp:
            return f"tp {layout.tp} does not divide its {a.heads} attention heads"
        if isinstance(block, Moe) and block.experts % layout.ep:
            return f"ep {layout.ep} does not divide its {block.experts} experts"
    if layout.pp > decoder.layers:
        return f"pp {layout.pp} is more than its {decoder.layers} layers"
    if layout.ep > 1 and not any(isinstance(layer.feed_forward, Moe) for layer, _ in decoder.blocks):
        return f"ep {layout.ep}: it has no experts to spread"
    if layout.ep > layout.tp and (layout.ep % layout.tp or layout.tp * layout.dp % layout.ep):
        return f"ep {layout.ep} needs as many devices, tp times dp is {layout.tp * layout.dp}"
    return None


def link_of(hardware: HardwareSection) -> Wire:
    """The data sheet gives the sum of both directions."""
    rate = hardware.link_gb_s
    is_pcie = hardware.link is None or hardware.link.startswith("PCIe")
    return Wire(
        bytes_per_s=None if rate is None else rate * 1e9 / 2,
        start_us=PCIE_US if is_pcie else NVLINK_US,
        share=link_share(hardware),
    )
