"""The typed configuration: frozen, keyword-only, validated once in `config/load.py`.

Every class forbids keys it does not know. Constraints are `annotated_types`, read by the validator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from annotated_types import Ge, Gt, Interval, Le, MinLen

FORBID_UNKNOWN = {"extra": "forbid", "allow_inf_nan": False}

Dtype = Literal["float32", "float16", "bfloat16"]
# More than that is a mistake, and the data made from it must fit into memory.
MOST = 2**31 - 1
PositiveInt = Annotated[int, Ge(1), Le(MOST)]
Seconds = Annotated[float, Gt(0), Le(MOST)]
# Of `run.repeats`: until the interval of the times is narrow enough.
AUTO: Final = "auto"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with a key. A section's own rules give the key relative to it, the loader gives it in full."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """`run.*`: what every stage shares."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    mode: Literal["deep", "light"] = "deep"
    device: str = "auto"
    repeats: PositiveInt | Literal["auto"] = 3
    target_ci: Annotated[float, Gt(0.0)] = 0.02
    max_repeats: PositiveInt = 50
    dataset_subset_filelist: Path | None = None
    top_n_kernels: PositiveInt = 30
    representative_max_new_tokens: PositiveInt | None = None
    on_failure: Literal["continue", "stop"] = "continue"
    dry_run: bool = False
    plan_file: Path | None = None
    exclusive: Literal["device", "node"] | None = None
    ranks: PositiveInt | None = None
    nodes: PositiveInt = 1
    rendezvous: str | None = None
    resume: Path | None = None
    trust: bool = False
    seed: Annotated[int, Ge(0), Le(MOST)] = 0
    env_passthrough: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """How many processes run the model at once."""
        return (self.ranks or 1) * self.nodes


@dataclass(frozen=True, kw_only=True)
class ArtifactsSection:
    """`artifacts.*`: where a run is written. `sync`: a store it is sent to when it has ended (`s3://bucket/folder`)."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    runs_dir: Path
    sync: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkloadSection:
    """`workload.*`: what is profiled; `command` replaces our own inference by any program.

    `declares_model`: that program runs the model of `model.*`, so its bounds apply; null: it does where the command
    line names a model. `phases` maps phases to patterns of ranges the program opens itself.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    command: Annotated[tuple[str, ...], MinLen(1)] | None = None
    repeats: PositiveInt = 1
    duration_s: Seconds | None = None
    stop_after_phases: PositiveInt | None = None
    declares_model: bool | None = None
    phases: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    phase_preset: Literal["vllm", "sglang", "tensorrt_llm", "jax"] | None = None
    prompt: PositiveInt = 1024
    output: PositiveInt | None = None
    batch: PositiveInt = 1
    context: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingSection:
    """`dataset.sampling.*`: which samples, how often."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    num_epochs: PositiveInt = 1
    num_samples_per_epoch: PositiveInt | None = None
    randomize: bool = False
    seed: Annotated[int, Ge(0), Le(MOST)] = 0


@dataclass(frozen=True, kw_only=True)
class DatasetSection:
    """`dataset.*`: pages or prompts."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    kind: Literal["omnidocbench", "synthetic", "prompts"]
    root: Path | None = None
    subset_filelist: Path | None = None
    allow_absolute: bool = False
    fallback_patterns: tuple[str, ...] = ()
    file: Path | None = None
    prompt_tokens: PositiveInt = 1024
    num_samples: PositiveInt = 4
    page_width: PositiveInt = 1240
    page_height: PositiveInt = 1754
    seed: Annotated[int, Ge(0), Le(MOST)] = 0
    max_bad_fraction: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.1
    sampling: SamplingSection = field(default_factory=SamplingSection)


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """`model.*`: the keys every model has. An adapter may extend it with keys of its own."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    name: str
    adapter: str
    weights: Literal["snapshot", "random"] = "snapshot"
    path: Path | None = None
    dtype: Dtype | Literal["auto"] = "auto"
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = "auto"
    quantization: Literal["none", "fp8", "int8"] = "none"
    join_projections: bool = False
    geometry: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class InferSection:
    """`infer.*`: how tokens are generated. An adapter may extend it with keys of its own."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    max_new_tokens: PositiveInt = 64
    temperature: Annotated[float, Ge(0.0)] = 0.0
    top_p: Annotated[float, Gt(0.0), Le(1.0)] = 1.0
    top_k: Annotated[int, Ge(0), Le(MOST)] = 0
    no_repeat_ngram_size: Annotated[int, Ge(0), Le(MOST)] = 0
    ignore_eos: bool = False
    batch: PositiveInt = 1
    cache: Literal["dynamic", "static"] = "dynamic"
    compile: Literal["none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "none"
    cuda_graph: bool = False
    tp: PositiveInt = 1

    @property
    def is_plain_step(self) -> bool:
        """Eager, with a growing cache."""
        return (self.cache, self.compile, self.cuda_graph) == ("dynamic", "none", False)

    @property
    def replays_graphs(self) -> bool:
        """Steps are CUDA graphs, captured here or by torch.compile."""
        return self.cuda_graph or self.compile in ("reduce-overhead", "max-autotune")

    def problems(self) -> tuple[Problem, ...]:
        """Rules that span keys."""
        found = []
        asked = f"compile={self.compile}" if self.compile != "none" else "cuda_graph=true"
        if self.cache != "static" and (self.compile != "none" or self.cuda_graph):
            text = f"infer.{asked} needs a cache that stays where it is (got {self.cache!r}), allowed: static"
            found.append(Problem(key="cache", text=text))
        if self.cuda_graph and self.compile in ("reduce-overhead", "max-autotune"):
            text = f"infer.compile={self.compile} captures CUDA graphs itself (got true), allowed: false"
            found.append(Problem(key="cuda_graph", text=text))
        if self.tp > 1 and not self.is_plain_step:
            text = f"splits plain steps alone (got {self.tp}), allowed: 1 with a static cache, compile or cuda_graph"
            found.append(Problem(key="tp", text=text))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class HardwareSection:
    """`hardware.*`: what the device could do at best. `name: auto` looks the device up by its own name.

    Peaks are dense and by short name of the number format (fp32, tf32, bf16, fp16, fp8, int8). `achieved_*` is what a
    calibration or a published measurement reached; `launch_us` the host's cost to start one operator. `price_per_hour`
    is the user's: no price is bundled.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    name: str = "auto"
    calibrate: bool = False
    device_names: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth_gb_s: Annotated[float, Gt(0)] | None = None
    memory_gb: Annotated[float, Gt(0)] | None = None
    l2_mb: Annotated[float, Gt(0)] | None = None
    link: str | None = None
    link_gb_s: Annotated[float, Gt(0)] | None = None
    achieved_tflops: Mapping[str, float] = field(default_factory=dict)
    achieved_bandwidth_gb_s: Annotated[float, Gt(0)] | None = None
    launch_us: Annotated[float, Gt(0)] | None = None
    price_per_hour: Annotated[float, Gt(0)] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str | None = None


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """What every `pipeline.<stage>` section has. Subclass it alongside the stage that owns it."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    enable: bool = False
    timeout_s: Seconds = 3600.0

    def problems(self) -> tuple[Problem, ...]:
        """Rules that span keys; checked only when the stage is enabled."""
        return ()

    def light(self) -> Self:
        """These settings for a quick look (`run.mode=light`)."""
        return self


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """One run's configuration. `stages` holds the enabled stages' sections; `resolved` is what config.yaml records.

    `from_environment` are the keys set with `${oc.env:NAME}`, as they were written: their values are never recorded.
    """

    run: RunSection
    artifacts: ArtifactsSection
    workload: WorkloadSection
    dataset: DatasetSection
    model: ModelSection
    infer: InferSection
    hardware: HardwareSection
    stages: Mapping[str, StageConfig]
    resolved: Mapping[str, Any]
    user_dir: Path
    from_environment: Mapping[str, str] = field(default_factory=dict)
