"""Numbers as people read them: a few digits, a unit, never a bare zero for something small."""

import math

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
PLURALS = {
    "launch": "launches",
    "batch": "batches",
    "copy": "copies",
    "fix": "fixes",
    "flush": "flushes",
    "process": "processes",
    "query": "queries",
}


def digits(value: float, count: int = 3) -> str:
    """`count` significant digits without an exponent; whole numbers from there on with separators."""
    if not math.isfinite(value):
        # A file of another user may hold any number.
        return "unknown"
    if value == 0:
        return f"{value:g}"
    places = count - 1 - math.floor(math.log10(abs(value)))
    if places <= 0:
        return f"{value:,.0f}"
    return f"{value:,.{min(places, 12)}f}"


def si(value: float | None, unit: str = "", *, count: int = 4) -> str:
    """A number with an SI prefix and `count` digits, for tables where columns are compared; a dash for none."""
    if value is None:
        return "–"
    for size, prefix in _SI:
        if abs(value) >= size:
            return f"{value / size:.{count}g} {prefix}{unit}"
    return f"{value:.{count}g} {unit}".rstrip()


def or_dash(value: float | None, form: str, *, unit: float = 1.0, dash: str = "—") -> str:
    """A number in multiples of `unit` and a format such as `{:.1f} %`, or a dash where there is none."""
    return dash if value is None else form.format(value / unit)


def format_ms(ms: float) -> str:
    """A time given in milliseconds, in the unit that fits it."""
    size = abs(ms)
    if size >= 10_000:
        return f"{digits(ms / 1e3, 4)} s"
    if size >= 0.0995 or ms == 0:
        return f"{digits(ms, 4 if size >= 1 else 3)} ms"
    if size >= 1e-4:
        return f"{digits(ms * 1e3)} µs"
    return f"{digits(ms * 1e6)} ns"


def format_ms_in_column(ms: float, *, places: int = 3) -> str:
    """A time next to others in a column: always milliseconds, so that digits of equal weight are below each other."""
    if 0 < abs(ms) < 0.5 * 10.0**-places:
        return f"< {10.0**-places:.{places}f} ms"
    return f"{ms:,.{places}f} ms" if ms else "0 ms"


def format_bytes(size: float) -> str:
    """Decimal units, as data sheets use them."""
    return _scaled(size, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def format_rate(per_s: float, unit: str) -> str:
    """Bytes or FLOP per second."""
    return _scaled(per_s, ((f"T{unit}/s", 1e12), (f"G{unit}/s", 1e9), (f"M{unit}/s", 1e6)), f"{unit}/s")


def format_count(value: float, unit: str) -> str:
    """Large counts such as FLOPs and parameters."""
    return _scaled(value, ((f"P{unit}", 1e15), (f"T{unit}", 1e12), (f"G{unit}", 1e9), (f"M{unit}", 1e6)), unit)


def count_of(count: float, noun: str) -> str:
    """A number and its noun, singular or plural: "1 launch", "1,024 launches"."""
    start, space, last = noun.rpartition(" ")
    return f"{count:,.0f} {noun if count == 1 else start + space + PLURALS.get(last, last + 's')}"


def format_percent(share: float) -> str:
    """A share of one, as percent."""
    if 0 < abs(share) < 1e-4:
        return "< 0.01 %"
    return f"{digits(100 * share, 3 if abs(share) < 0.9995 else 4)} %"


def format_factor(factor: float) -> str:
    """A ratio: 1.53×, 7.8×, 5,236×."""
    return f"{factor:,.{2 if factor < 2 else 1 if factor < 999.5 else 0}f}×"


def format_quantity(value: float, unit: str) -> str:
    """By unit: the words used in manifests and facts."""
    if unit == "ms":
        return format_ms(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "FLOP":
        return format_count(value, "FLOP")
    if unit in ("x", "×"):
        return format_factor(value)
    if unit in ("share", "%"):
        return format_percent(value if unit == "share" else value / 100)
    return f"{digits(value, 4)} {unit}".strip()


def _scaled(value: float, steps: tuple[tuple[str, float], ...], plain: str) -> str:
    for name, size in steps:
        if abs(value) >= size:
            return f"{digits(value / size)} {name}"
    return f"{digits(value, 4)} {plain}"
