"""Both CSV pages of Nsight Compute (raw and details, wide and long) to launches.

The words of ncu's details page, and the metric each of them shows: data taken from ncu's own section files.

The details page names a metric by a label inside a section, the raw page by its name. With this table both pages give
the same keys. The same label means different metrics in different sections (`Memory Throughput` is a percentage in one
and bytes per second in another), so the section is part of the key.
"""

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from llm_perf_opt.capture.kernels.ncu_records import NcuLaunch, NcuRule, NcuValue, parse_number, parse_value
from llm_perf_opt.errors import ParseError

SECTION_IDS = {
    # Before 2020.2.
    "GPU Speed Of Light": "SpeedOfLight",
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)": "SpeedOfLight_HierarchicalDoubleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)": "SpeedOfLight_HierarchicalHalfRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)": "SpeedOfLight_HierarchicalSingleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)": "SpeedOfLight_HierarchicalTensorRooflineChart",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Memory Workload Analysis Chart": "MemoryWorkloadAnalysis_Chart",
    "Memory Workload Analysis Tables": "MemoryWorkloadAnalysis_Tables",
    "Scheduler Statistics": "SchedulerStats",
    "Warp State Statistics": "WarpStateStats",
    "Instruction Statistics": "InstructionStats",
    "Launch Statistics": "LaunchStats",
    "Occupancy": "Occupancy",
    "Source Counters": "SourceCounters",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
    "PM Sampling": "PmSampling",
    "PM Sampling: Warp States": "PmSampling_WarpStates",
    "NVLink": "Nvlink",
    "NVLink Tables": "Nvlink_Tables",
    "NVLink Topology": "Nvlink_Topology",
    "NUMA Affinity": "NumaAffinity",
    "C2CLink": "C2CLink",
    "Command line profiler metrics": "CommandLine",
}

# (section identifier, label) -> metric
LABELS = {
    ("SpeedOfLight", "Duration"): "gpu__time_duration.sum",
    ("SpeedOfLight", "Elapsed Cycles"): "gpc__cycles_elapsed.max",
    ("SpeedOfLight", "SM Frequency"): "gpc__cycles_elapsed.avg.per_second",
    ("SpeedOfLight", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("SpeedOfLight", "SM Active Cycles"): "sm__cycles_active.avg",
    ("SpeedOfLight", "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "Compute (SM) [%]"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "Memory Throughput"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "Memory [%]"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "L1/TEX Cache Throughput"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("SpeedOfLight", "L2 Cache Throughput"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    # The words of 2018 to 2020.
    ("SpeedOfLight", "SM [%]"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL SM"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL Memory"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL FB"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL DRAM"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL L2"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL L2 Cache"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SpeedOfLight", "SOL TEX"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("SpeedOfLight", "SOL L1/TEX Cache"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("SpeedOfLight", "Memory Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("MemoryWorkloadAnalysis", "Memory Throughput"): "dram__bytes.sum.per_second",
    ("MemoryWorkloadAnalysis", "Mem Busy"): "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    ("MemoryWorkloadAnalysis", "Max Bandwidth"): (
        "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed"
    ),
    ("MemoryWorkloadAnalysis", "Mem Pipes Busy"): "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("MemoryWorkloadAnalysis", "L1/TEX Hit Rate"): "l1tex__t_sector_hit_rate.pct",
    ("MemoryWorkloadAnalysis", "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
    ("MemoryWorkloadAnalysis", "Local Memory Spilling Requests"): "derived__local_spilling_requests",
    ("MemoryWorkloadAnalysis", "Local Memory Spilling Request Overhead"): "derived__local_spilling_requests_pct",
    ("MemoryWorkloadAnalysis", "L2 Persisting Size"): "launch__persisting_l2_cache_size",
    ("SchedulerStats", "One or More Eligible"): "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ("SchedulerStats", "Issued Warp Per Scheduler"): "smsp__issue_active.avg.per_cycle_active",
    ("SchedulerStats", "No Eligible"): "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
    ("SchedulerStats", "Active Warps Per Scheduler"): "smsp__warps_active.avg.per_cycle_active",
    ("SchedulerStats", "Eligible Warps Per Scheduler"): "smsp__warps_eligible.avg.per_cycle_active",
    ("Occupancy", "Theoretical Occupancy"): "sm__maximum_warps_per_active_cycle_pct",
    ("Occupancy", "Theoretical Active Warps per SM"): "sm__maximum_warps_avg_per_active_cycle",
    ("Occupancy", "Achieved Occupancy"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Occupancy", "Achieved Active Warps Per SM"): "sm__warps_active.avg.per_cycle_active",
    ("Occupancy", "Block Limit Registers"): "launch__occupancy_limit_registers",
    ("Occupancy", "Block Limit Shared Mem"): "launch__occupancy_limit_shared_mem",
    ("Occupancy", "Block Limit Warps"): "launch__occupancy_limit_warps",
    ("Occupancy", "Block Limit SM"): "launch__occupancy_limit_blocks",
    ("Occupancy", "Block Limit Barriers"): "launch__occupancy_limit_barriers",
    ("Occupancy", "Max Active Clusters"): "launch__cluster_max_active",
    ("Occupancy", "Max Cluster Size"): "launch__cluster_max_potential_size",
    ("Occupancy", "Cluster Occupancy"): "launch__occupancy_cluster_pct",
    ("Occupancy", "Overall GPU Occupancy"): "launch__occupancy_cluster_gpu_pct",
    ("LaunchStats", "Grid Size"): "launch__grid_size",
    ("LaunchStats", "Block Size"): "launch__block_size",
    ("LaunchStats", "Threads"): "launch__thread_count",
    ("LaunchStats", "Waves Per SM"): "launch__waves_per_multiprocessor",
    ("LaunchStats", "Registers Per Thread"): "launch__registers_per_thread",
    ("LaunchStats", "Static Shared Memory Per Block"): "launch__shared_mem_per_block_static",
    ("LaunchStats", "Dynamic Shared Memory Per Block"): "launch__shared_mem_per_block_dynamic",
    ("LaunchStats", "Driver Shared Memory Per Block"): "launch__shared_mem_per_block_driver",
    ("LaunchStats", "Shared Memory Configuration Size"): "launch__shared_mem_config_size",
    ("LaunchStats", "# SMs"): "launch__sm_count",
    ("LaunchStats", "# TPCs"): "launch__tpc_count",
    ("LaunchStats", "Cluster Size"): "launch__cluster_size",
    ("LaunchStats", "Stack Size"): "launch__stack_size",
    ("WarpStateStats", "Warp Cycles Per Issued Instruction"): "smsp__average_warp_latency_per_inst_issued.ratio",
    ("WarpStateStats", "Warp Cycles Per Executed Instruction"): "smsp__average_warps_active_per_inst_executed.ratio",
    ("WarpStateStats", "Avg. Active Threads Per Warp"): "smsp__thread_inst_executed_per_inst_executed.ratio",
    ("SpeedOfLight_RooflineChart", "DRAM Bandwidth"): "dram__bytes.sum.per_second",
    ("SpeedOfLight_RooflineChart", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("SpeedOfLight_RooflineChart", "Theoretical DRAM Bytes Accessible"): "dram__bytes.sum.peak_sustained",
    # One frequency under two names: the chart's peaks use sm__, its achieved values smsp__; both count the same clock.
    ("SpeedOfLight_RooflineChart", "SM Frequency"): "smsp__cycles_elapsed.avg.per_second",
}

_OPS = {"FFMA": "ffma", "DFMA": "dfma", "HFMA": "hfma", "FADD": "fadd", "FMUL": "fmul", "DADD": "dadd", "DMUL": "dmul"}
for _word, _op in _OPS.items():
    _base = f"sass_thread_inst_executed_op_{_op}_pred_on"
    LABELS |= {
        ("SpeedOfLight_RooflineChart", f"Theoretical Predicated-On {_word} Thread Instructions Executed"): (
            f"sm__{_base}.sum.peak_sustained"
        ),
        ("SpeedOfLight_RooflineChart", f"Predicated-On {_word} Thread Instructions Executed Per Cycle"): (
            f"smsp__{_base}.sum.per_cycle_elapsed"
        ),
        ("SpeedOfLight_RooflineChart", f"Theoretical Predicated-On {_word} Operations"): f"derived__sm__{_base}_x2",
        ("SpeedOfLight_RooflineChart", f"Predicated-On {_word} Operations Per Cycle"): f"derived__smsp__{_base}_x2",
    }

_STALLS = {
    "Barrier": "barrier",
    "Branch Resolving": "branch_resolving",
    "Dispatch Stall": "dispatch_stall",
    "Drain": "drain",
    "GMMA": "gmma",
    "IMC Miss": "imc_miss",
    "LG Throttle": "lg_throttle",
    "Long Scoreboard": "long_scoreboard",
    "MIO Throttle": "mio_throttle",
    "Math Pipe Throttle": "math_pipe_throttle",
    "Membar": "membar",
    "Misc": "misc",
    "No Instruction": "no_instruction",
    "No Instructions": "no_instruction",
    "Not Selected": "not_selected",
    "Short Scoreboard": "short_scoreboard",
    "Sleeping": "sleeping",
    "Tex Throttle": "tex_throttle",
    "Wait": "wait",
}
LABELS |= {
    ("WarpStateStats", f"Stall {word}"): f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    for word, name in _STALLS.items()
}


# With all metrics of a section printed, breakdown metrics carry their own name in brackets behind a generic label.
_NAMED = re.compile(r".*\(([a-z0-9_]+__[\w.]+)\)")


def section_id(name: str) -> str:
    """A section's identifier, from its identifier or its display name. An unknown one is returned as it is."""
    return SECTION_IDS.get(name, name)


def metric_name(section: str, label: str) -> str:
    """The metric a label of the details page shows; an unknown label becomes `Section/label`."""
    if "__" in label and " " not in label:
        return label
    named = _NAMED.fullmatch(label)
    if named:
        return named[1]
    identifier = section_id(section)
    return LABELS.get((identifier, label), f"{identifier}/{label}")


_IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream")
_IDENTITY_NEW = ("Block Size", "Grid Size", "Device", "CC")
_LONG = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
# What the metrics that are computed with come in, after conversion. ncu calls some of its rates of bytes just bytes.
_UNITS = (
    (re.compile(r"\.pct|_pct$"), ("%",)),
    (re.compile(r"time_duration\.\w+$"), ("ns",)),
    (re.compile(r"bytes\w*\.sum(\.per_second)?$"), ("byte", "byte/s")),
    (re.compile(r"cycles_elapsed\.avg\.per_second$"), ("hz",)),
)
_NVTX_ENTRY = re.compile(r'"([^"]*)"')


def parse_ncu_csv(text: str, *, source: str) -> list[NcuLaunch]:
    """The launches of a raw or details page, in file order."""
    rows = list(_rows(text, source))
    if not rows:
        raise ParseError(
            f"{source}: no CSV table of ncu in it; make one with `ncu --import R.ncu-rep --page raw --csv`"
        )
    header, *body = rows
    if "Metric Name" in header:
        return _long(header, body, source)
    return _wide(header, body, source)


def csv_table(text: str) -> str:
    """The CSV part of what ncu printed: the lines before the header and ncu's own `==` lines are dropped."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith(('"ID",', "ID,"))), len(lines))
    return "".join(line for line in lines[start:] if not line.startswith("=="))


def section_tables(text: str) -> dict[str, str]:
    """A details page split into one CSV per section identifier."""
    rows = list(csv.reader(io.StringIO(csv_table(text))))
    if not rows or "Section Name" not in rows[0]:
        return {}
    column = rows[0].index("Section Name")
    parts: dict[str, list[Sequence[str]]] = {}
    for row in rows[1:]:
        if len(row) > column and row[column]:
            parts.setdefault(section_id(row[column]), []).append(row)
    return {name: _write([rows[0], *found]) for name, found in parts.items()}


def merge_launches(pages: Iterable[Sequence[NcuLaunch]]) -> list[NcuLaunch]:
    """The launches of several pages as one list. For a metric on two pages of one launch the first page wins.

    Every report numbers its launches from 0: equal numbers are the same launch only if grid and duration agree.
    """
    merged: dict[tuple[str, ...], NcuLaunch] = {}
    for page in pages:
        for launch in page:
            key: tuple[str, ...] = (launch.launch_id, launch.kernel)
            if key in merged and not _same_launch(merged[key], launch):
                key = (*key, launch.source, str(len(merged)))
            merged[key] = _joined(merged[key], launch) if key in merged else launch
    return list(merged.values())


def _same_launch(first: NcuLaunch, second: NcuLaunch) -> bool:
    if first.grid and second.grid and first.grid != second.grid:
        return False
    times = [launch.number("gpu__time_duration.sum") for launch in (first, second)]
    one, other = times
    # The details page rounds to two decimals of a scaled unit.
    return one is None or other is None or abs(one - other) <= 0.01 * max(one, other)


def _joined(first: NcuLaunch, second: NcuLaunch) -> NcuLaunch:
    metrics = dict(second.metrics)
    metrics |= {k: v for k, v in first.metrics.items() if v.value is not None or k not in metrics}
    known = set(first.rules)
    return NcuLaunch(
        launch_id=first.launch_id,
        kernel=first.kernel,
        grid=first.grid or second.grid,
        block=first.block or second.block,
        device=first.device or second.device,
        compute_capability=first.compute_capability or second.compute_capability,
        nvtx=first.nvtx or second.nvtx,
        metrics=metrics,
        rules=first.rules + tuple(r for r in second.rules if r not in known),
        source=first.source,
    )


def _rows(text: str, source: str) -> Iterator[list[str]]:
    # A page with all instances of a metric in one cell passes the reader's default limit of 128 KiB.
    csv.field_size_limit(sys.maxsize)
    try:
        for row in csv.reader(io.StringIO(csv_table(text)), strict=True):
            if row:
                yield row
    except csv.Error as error:
        raise ParseError(f"{source}: not a whole CSV table ({error}); was the export cut short?") from error


def _wide(header: list[str], body: list[list[str]], source: str) -> list[NcuLaunch]:
    """One row per launch; the row after the header holds the units."""
    fixed = {*_IDENTITY, *_IDENTITY_NEW, *(h for h in header if _is_nvtx(h))}
    units = [""] * len(header)
    if body and not body[0][0].strip():
        units = [*body[0], *[""] * len(header)][: len(header)]
        body = body[1:]
    launches = []
    for row in body:
        if len(row) != len(header):
            raise ParseError(
                f"{source}: a row has {len(row)} fields, the header {len(header)}; was the file cut short?"
            )
        cells = dict(zip(header, row, strict=True))
        metrics = {
            name: parse_value(cell, unit)
            for name, cell, unit in zip(header, row, units, strict=True)
            if name not in fixed
        }
        launches.append(_launch(cells, metrics, (), source))
    return launches


def _long(header: list[str], body: list[list[str]], source: str) -> list[NcuLaunch]:
    """One row per metric or rule. Metric rows are shorter than the header, rule rows reach its end."""
    missing = [name for name in (*_LONG, "ID", "Kernel Name") if name not in header]
    if missing:
        raise ParseError(f"{source}: the column {missing[0]!r} is missing; this is not a page of ncu")
    first: dict[str, dict[str, str]] = {}
    metrics: dict[str, dict[str, NcuValue]] = {}
    rules: dict[str, list[NcuRule]] = {}
    for row in body:
        if len(row) <= header.index("Metric Value"):
            raise ParseError(
                f"{source}: a row has {len(row)} fields, the header {len(header)}; was the file cut short?"
            )
        cells = dict(zip(header, row + [""] * (len(header) - len(row)), strict=False))
        key = cells["ID"]
        if key not in first:
            first[key], metrics[key], rules[key] = cells, {}, []
        if cells["Metric Name"]:
            name = metric_name(cells["Section Name"], cells["Metric Name"])
            value = parse_value(cells["Metric Value"], cells["Metric Unit"])
            if name not in metrics[key] or metrics[key][name].value is None:
                metrics[key][name] = value
        elif cells.get("Rule Name"):
            rules[key].append(_rule(cells))
    return [_launch(first[key], metrics[key], tuple(rules[key]), source) for key in first]


def _rule(cells: Mapping[str, str]) -> NcuRule:
    # Versions before 2023 have no columns for the estimated speed-up.
    return NcuRule(
        rule=cells["Rule Name"],
        section=section_id(cells["Section Name"]),
        kind=cells.get("Rule Type", ""),
        text=cells.get("Rule Description", ""),
        scope=cells.get("Estimated Speedup Type") or None,
        speedup_pct=parse_number(cells.get("Estimated Speedup", "")),
    )


def _launch(
    cells: Mapping[str, str], metrics: Mapping[str, NcuValue], rules: tuple[NcuRule, ...], source: str
) -> NcuLaunch:
    require_known_units(metrics, source)
    nvtx = tuple(name for column, cell in cells.items() if _is_nvtx(column) for name in nvtx_names(cell))
    return NcuLaunch(
        launch_id=cells.get("ID", ""),
        kernel=cells.get("Kernel Name", ""),
        grid=cells.get("Grid Size") or dims(metrics, "grid"),
        block=cells.get("Block Size") or dims(metrics, "block"),
        device=_words(metrics, "device__attribute_display_name"),
        compute_capability=cells.get("CC") or None,
        nvtx=nvtx,
        metrics=metrics,
        rules=rules,
        source=source,
    )


def require_known_units(metrics: Mapping[str, NcuValue], source: str) -> None:
    """Refuse a page whose times, bytes, rates or shares are in a unit without a conversion."""
    for name, value in metrics.items():
        if value.value is None or not value.unit:
            continue
        wanted = next((units for pattern, units in _UNITS if pattern.search(name)), (value.unit,))
        if value.unit not in wanted:
            raise ParseError(
                f"{source}: {name} is {value.text!r}, in a unit that is not known here; import the report again with "
                "`ncu --import R.ncu-rep --page raw --csv --print-units base`"
            )


def nvtx_names(cell: str) -> list[str]:
    """The range names, outermost first, of an NVTX cell such as `12 "<default domain>:decode:none:…"`."""
    names = []
    for entry in _NVTX_ENTRY.findall(cell):
        _, _, rest = entry.partition(":")
        names.append(rest.rsplit(":", 6)[0])
    return names


def dims(metrics: Mapping[str, NcuValue], what: str) -> str | None:
    """`(x, y, z)` of the grid or block from the launch metrics; versions before 2023 have no column for it."""
    values = [metrics.get(f"launch__{what}_dim_{axis}") for axis in "xyz"]
    numbers = [v.value for v in values if v is not None and v.value is not None]
    return None if len(numbers) != 3 else "(" + ", ".join(f"{n:.0f}" for n in numbers) + ")"


def _words(metrics: Mapping[str, NcuValue], name: str) -> str | None:
    found = metrics.get(name)
    return found.text if found is not None and found.text else None


def _is_nvtx(column: str) -> bool:
    return "Push/Pop_Range" in column or "Start/Stop_Range" in column


def _write(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()
