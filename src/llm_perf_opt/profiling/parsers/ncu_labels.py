"""The words of ncu's details page, and the metric each of them shows: data taken from ncu's own section files.

The details page names a metric by a label inside a section, the raw page by its name. With this table both pages give
the same keys. The same label means different metrics in different sections (`Memory Throughput` is a percentage in one
and bytes per second in another), so the section is part of the key.
"""

import re

SECTION_IDS = {
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
