"""A model spread over several devices, and what it costs to bring results together.

Tensor parallel devices (`tp`) split every matrix and all-reduce twice a layer; pipeline stages (`pp`) hold some of the
layers each and pass rows on; expert parallel devices (`ep`) hold some of the experts each and exchange rows before and
behind them; replicas (`dp`) share nothing. Devices in use: tp · pp · dp; `ep` spreads experts over those of one
replica's stage (ep ≤ tp) or, with attention replicated, over replicas.
"""

from dataclasses import dataclass

from llm_perf_opt.analysis.static.parts import Layer, Moe
from llm_perf_opt.config.schema import HardwareSection

# A collective's start: kernels on both sides and one trip over the switch. Assumed, not measured here: a few to ten
# microseconds are usual over NVLink, and PCI Express goes through the host.
NVLINK_US, PCIE_US = 8.0, 20.0
LINK_SHARE = 0.75


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
    def model_devices(self) -> int:
        """Devices that hold one copy of the weights."""
        return self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes per second in one direction of one device; None: the device's link is not known."""

    bytes_per_s: float | None
    start_us: float

    def all_reduce_us(self, size: float, devices: int) -> float:
        return 2 * self._moved_us(size, devices)

    def all_gather_us(self, size: float, devices: int) -> float:
        return self._moved_us(size, devices)

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
            return once + 2 * self.all_to_all_us(size * block.top_k / layout.ep, layout.ep)
        return 2 * once

    def _moved_us(self, size: float, devices: int) -> float:
        return self.start_us / 2 + self._wire_us(size * (devices - 1) / devices)

    def _wire_us(self, size: float) -> float:
        return 0.0 if self.bytes_per_s is None else 1e6 * size / (self.bytes_per_s * LINK_SHARE)


def link_of(hardware: HardwareSection) -> Wire:
    """The data sheet gives the sum of both directions."""
    rate = hardware.link_gb_s
    is_pcie = hardware.link is None or hardware.link.startswith("PCIe")
    return Wire(bytes_per_s=None if rate is None else rate * 1e9 / 2, start_us=PCIE_US if is_pcie else NVLINK_US)
