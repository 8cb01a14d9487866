"""The words the whole project shares: stages, phases, ranges, and the files of a run with their roles."""

from typing import Final, Literal

# The built-in stages, in the order they run; plug-ins follow.
STATIC_ANALYSIS: Final = "static_analysis"
TORCH_PROFILER: Final = "torch_profiler"
DIRECT_INFERENCE: Final = "direct_inference"
NSYS: Final = "nsys"
NCU: Final = "ncu"
HOST_SAMPLES: Final = "host_samples"
BUILT_IN = (HOST_SAMPLES, STATIC_ANALYSIS, TORCH_PROFILER, DIRECT_INFERENCE, NSYS, NCU)
# The entry points by which stages are found.
STAGE_GROUP: Final = "llm_perf_opt.stages"
# Clean times given by hand to `llm-perf analyze` are in the manifest as a stage of this name.
GIVEN: Final = "given"
# Whose clean pass is taken where several were made, the better-informed one first; other stages' come after these.
CLEAN_PASS_ORDER = (TORCH_PROFILER, DIRECT_INFERENCE)
# A report names those of these that did not run; direct_inference adds no section to it.
OFFERED = (STATIC_ANALYSIS, TORCH_PROFILER, NSYS, NCU)

# The scope of a whole program's wall time.
PROGRAM: Final = "program"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
PHASES = (PREFILL, DECODE)
# What ncu profiles by default.
DECODE_RANGES: Final = "decode*"
# Which metric of the clean pass says how long a phase took.
WALL_METRIC = {PREFILL: "prefill_ms", DECODE: "tpot_ms"}

# Ranges the workload opens around its work; `decode` spans all steps of one sequence.
DECODE_STEP: Final = "decode_step"
WARMUP: Final = "warmup"
# The range in which one unit of a phase happens: a prompt, or a token.
PHASE_RANGE = {PREFILL: PREFILL, DECODE: DECODE_STEP}
# Around every forward of a module is a range named after its group: `module:attention`.
MODULE_PREFIX: Final = "module:"
# Around every collective of a step is a range `communication:all_reduce:BYTES`.
COMMUNICATION: Final = "communication"
# Ranks of a job but the first write into folders of this name and their number; captures carry it in theirs.
RANK_PREFIX: Final = "rank"

MANIFEST_FILE: Final = "manifest.json"
PLAN_FILE: Final = "plan.json"
SYNC_FILE: Final = "sync.json"
METRICS_FILE: Final = "metrics.json"
SAMPLES_FILE: Final = "samples.jsonl"
INPUTS_FILE: Final = "inputs.json"
TRACE_FILE: Final = "trace.json.gz"
OPERATORS_CSV: Final = "operators.csv"
OPERATORS_MD: Final = "operators.md"
KERNELS_CSV: Final = "kernels.csv"
ANALYSIS_FILE: Final = "analysis.json"
DIAGNOSIS_FILE: Final = "diagnosis.json"
# What `llm-perf optimize` measured of the findings it tried.
MEASURED_GAINS_FILE: Final = "measured_gains.json"
TIMELINE_FILE: Final = "timeline.json"
GPU_SAMPLES_FILE: Final = "gpu_samples.json"
# Of the environment: percent by GPU, where one was busy with other work before a run began.
BUSY_GPUS: Final = "gpu_busy_pct"
GENERATED_FILE: Final = "generated.json"
HOST_SAMPLES_FILE: Final = "host_samples.json"
# The metric of the sampled pass that programs of any language have.
PROCESSOR_TIME: Final = "cpu_time_s"
BUSY_SHARE: Final = "cpu_busy_share"
# Below tmp/ of a run: where torch.compile keeps what it wrote, shared by all stages.
INDUCTOR_DIR: Final = "inductor"
# There, one line for each compiled graph: the module of every operation.
SOURCE_NODES_FILE: Final = "source_nodes.jsonl"
STATIC_JSON: Final = "static.json"
STATIC_MD: Final = "static_compute.md"

# What a file of a built-in stage is for. A plug-in may write these, which reports then read, and roles of its own.
Role = Literal[
    "metrics",
    "samples",
    "predictions",
    "gallery",
    "trace",
    "operators_csv",
    "operators_md",
    "kernels_csv",
    "static_json",
    "static_md",
    "analysis_json",
    "timeline_json",
    "kernel_summary",
    "nvtx_ranges",
    "gpu_idle",
    "gpu_samples",
    "counters",
    "nsys_report",
    "nsys_sqlite",
    "ncu_report",
    "ncu_raw",
    "ncu_details",
    "ncu_kernels_csv",
    "ncu_kernels_json",
    "memory_snapshot_json",
    "generated_kernels",
    "host_samples",
    "host_stacks",
    "roofline_svg",
    "region",
    "picture",
    "bench_json",
    "bench_requests",
    "vllm_bench_json",
    "engine_steps",
    "slow_requests_json",
    "window_requests",
    "startup_json",
]
# The stages a report looks to first for a role, and names when no stage wrote its file.
ROLE_WRITERS: dict[Role, tuple[str, ...]] = {
    "metrics": CLEAN_PASS_ORDER,
    "static_json": (STATIC_ANALYSIS,),
    "analysis_json": (NSYS, TORCH_PROFILER),
    "ncu_kernels_json": (NCU,),
    "gpu_samples": (TORCH_PROFILER,),
    "host_samples": (HOST_SAMPLES,),
    "generated_kernels": (TORCH_PROFILER, DIRECT_INFERENCE, NSYS),
}
