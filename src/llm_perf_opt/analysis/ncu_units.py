"""Numbers and units as Nsight Compute prints them, brought to base units.

ncu scales with decimal prefixes (a Kbyte is 1000 bytes) and has changed its words between versions: `usecond` and `us`,
`cycle/nsecond` and `Ghz`, `Gbyte/second` and `Gbyte/s`.
"""

import re

from llm_perf_opt.analysis.ncu_records import NcuValue

_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# Whole factors, so that 239.008 us is exactly 239008 ns.
_PER_NS = {"": 1e9, "m": 1e6, "u": 1e3, "n": 1.0}
_COUNTED = re.compile(
    r"([KkMGTP]?)(byte|bit|hz|inst|cycle|sector|request|warp|thread|block|wavefront|flop|op|tag|instruction)s?"
)
_TIME = re.compile(r"([mun]?)(?:second|s)")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
# With `--print-metric-instances` the aggregate is followed by the instances in brackets or after a semicolon.
_WITH_INSTANCES = re.compile(r"([-+]?[\d.,eE+-]+)\s*[(;{].*", re.DOTALL)


def parse_number(text: str) -> float | None:
    """The number in a cell, or None for `n/a`, `no data`, words and anything ambiguous."""
    text = text.strip()
    match = _WITH_INSTANCES.fullmatch(text)
    if match:
        text = match[1]
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    return float(text) if _PLAIN.fullmatch(text) else None


def base_unit(unit: str) -> tuple[float, str]:
    """The factor that brings a value in this unit to the base unit, and the base unit's name."""
    numerator, *denominators = unit.strip().split("/")
    factor, name = _base_part(numerator)
    for part in denominators:
        divisor, below = _base_part(part)
        factor, name = (factor * 1e9 / divisor, f"{name}/s") if below == "ns" else (factor / divisor, f"{name}/{below}")
    return (factor, "hz") if name == "cycle/s" else (factor, name)


def parse_value(text: str, unit: str) -> NcuValue:
    """A cell with its unit as a value in base units."""
    factor, name = base_unit(unit)
    number = parse_number(text)
    printed = f"{text.strip()} {unit.strip()}".strip()
    return NcuValue(value=None if number is None else number * factor, unit=name, text=printed)


def _base_part(part: str) -> tuple[float, str]:
    part = part.strip()
    time = _TIME.fullmatch(part)
    if time:
        return _PER_NS[time[1]], "ns"
    counted = _COUNTED.fullmatch(part)
    return (_PREFIX[counted[1]], counted[2]) if counted else (1.0, part)
