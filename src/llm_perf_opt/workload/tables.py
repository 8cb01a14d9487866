"""Operator and kernel tables as CSV and Markdown files."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.workload.operators import KernelRow, OperatorRow

SHOWN = 40
SHAPES_SHOWN = 80
NAME_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the trace holds besides CPU times. Columns of what it does not hold stay empty; they are not zero."""

    device: bool
    memory: bool
    shapes: bool


def write_operators_csv(path: Path, rows: Sequence[OperatorRow], recorded: Recorded) -> Path:
    """Every operator."""
    header = ["name", *(["input_shapes"] if recorded.shapes else []), "calls", "self_cpu_us", "total_cpu_us"]
    header += ["self_device_us", "total_device_us", "self_cpu_memory_bytes", "self_device_memory_bytes"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            shapes = [row.input_shapes] if recorded.shapes else []
            cpu = [_us(row.self_cpu_ns), _us(row.total_cpu_ns)]
            device = [_us(row.self_device_ns), _us(row.total_device_ns)] if recorded.device else ["", ""]
            memory: list[int | str] = [row.self_cpu_memory_bytes if recorded.memory else ""]
            memory += [row.self_device_memory_bytes if recorded.memory and recorded.device else ""]
            writer.writerow([row.name, *shapes, row.calls, *cpu, *device, *memory])
    return path


def write_kernels_csv(path: Path, rows: Sequence[KernelRow]) -> Path:
    """Every kernel, the most time first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "launches", "total_us", "mean_us", "min_us", "max_us", "share"])
        for row in rows:
            times = [_us(row.total_ns), _us(row.mean_ns), _us(row.min_ns), _us(row.max_ns)]
            writer.writerow([row.name, row.launches, *times, f"{row.share:.6f}"])
    return path


def write_operators_md(
    path: Path, by_name: Sequence[OperatorRow], rows: Sequence[OperatorRow], recorded: Recorded, *, pass_note: str
) -> Path:
    """The operators that matter, by device time where there is any and by CPU time; by name, then by input shapes."""
    parts = ["# Operators", "", pass_note, ""]
    tables = [("", by_name)] + ([(", by input shapes", rows)] if recorded.shapes else [])
    for suffix, table in tables:
        if recorded.device:
            parts += _section(f"By device time{suffix}", table, lambda row: row.self_device_ns, recorded)
        parts += _section(f"By CPU time{suffix}", table, lambda row: row.self_cpu_ns, recorded)
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _section(
    title: str, rows: Sequence[OperatorRow], amount: Callable[[OperatorRow], int], recorded: Recorded
) -> list[str]:
    whole = sum(amount(row) for row in rows)
    top = sorted(rows, key=amount, reverse=True)[:SHOWN]
    by_shape = any(row.input_shapes is not None for row in rows)
    columns = ["operator", *(["input shapes"] if by_shape else []), "calls", "share", "self CPU ms", "total CPU ms"]
    columns += ["self device ms", "total device ms"] if recorded.device else []
    aligns = ["---" if c in ("operator", "input shapes") else "---:" for c in columns]
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", f"| {' | '.join(aligns)} |"]
    for row in top:
        cells = [_code(row.name, NAME_SHOWN), *([_code(row.input_shapes or "", SHAPES_SHOWN)] if by_shape else [])]
        cells += [f"{row.calls:,}", f"{amount(row) / whole:.1%}" if whole else "–"]
        cells += [_ms(row.self_cpu_ns), _ms(row.total_cpu_ns)]
        cells += [_ms(row.self_device_ns), _ms(row.total_device_ns)] if recorded.device else []
        lines.append(f"| {' | '.join(cells)} |")
    if len(rows) > SHOWN:
        lines += ["", f"{len(rows) - SHOWN} more rows are left out here; operators.csv has them all."]
    return [*lines, ""]


def _code(text: str, most: int) -> str:
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return f"`{shown}`".replace("|", "\\|") if shown else ""


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3f}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"
