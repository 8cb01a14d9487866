"""What a GEMM or convolution kernel's name says: the precision it multiplies in, its units, the alignment it needs."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from llm_perf_opt.capture.kernels.names import classify_kernel

PRODUCTS = ("GEMM", "convolution")
ITEM_BYTES = {
    "complex128": 16.0, "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5,
}  # fmt: skip
# Matrix units are fed in accesses of this size; operands that are not aligned to it need kernels that load them by the
# element.
ACCESS_BYTES = 16.0
_ALIGNMENT = re.compile(r"_align(?:a)?(\d+)|_ldg(\d+)_")


@dataclass(frozen=True, kw_only=True)
class GemmTraits:
    """What a kernel's name says; None where it does not.

    `precision` is that of the operands. `alignment` is the number of elements by which every row of the operands has to
    be aligned for this kernel.
    """

    precision: str | None
    tensor_cores: bool | None
    alignment: int | None

    @property
    def is_misaligned(self) -> bool:
        """Whether the kernel is one for operands whose rows are not aligned to whole accesses of the matrix units.

        Those for 8 bytes and more per element load by the element anyway.
        """
        if not self.tensor_cores or self.alignment is None or self.precision is None:
            return False
        item = ITEM_BYTES[self.precision]
        return item < ACCESS_BYTES / 2 and self.alignment * item < ACCESS_BYTES


@dataclass(frozen=True, kw_only=True)
class _Rule:
    precision: str | None
    tensor_cores: bool | None
    pattern: re.Pattern[str]


@cache
def _rules() -> tuple[_Rule, ...]:
    text = Path(__file__).with_name("gemm_names.toml").read_text(encoding="utf-8")
    return tuple(
        _Rule(
            precision=rule["precision"] or None,
            tensor_cores=rule.get("tensor_cores"),
            pattern=re.compile(rule["pattern"], re.VERBOSE),
        )
        for rule in tomllib.loads(text)["rule"]
    )


@lru_cache(maxsize=1 << 16)
def gemm_traits(name: str) -> GemmTraits | None:
    """What the name of a GEMM or convolution kernel says; None for any other kernel."""
    if classify_kernel(name) not in PRODUCTS:
        return None
    rule = next((rule for rule in _rules() if rule.pattern.search(name)), None)
    aligned = [int(first or second) for first, second in _ALIGNMENT.findall(name)]
    return GemmTraits(
        precision=None if rule is None else rule.precision,
        tensor_cores=None if rule is None else rule.tensor_cores,
        alignment=min(aligned) if aligned else None,
    )
