"""Builds and loads decoder-only `transformers` models. Imported only where torch is wanted.

A decoder-only model in memory: one forward for the prompt, one for each token after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import is_flash_attn_2_available

from llm_perf_opt.config.schema import InferSection, ModelSection
from llm_perf_opt.core.records import begin_step
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.workload.models.base import RangeFactory, Sample, StepOutput
from llm_perf_opt.workload.models.decode_steps import Prompts, Steps, choose_steps, pad_left
from llm_perf_opt.workload.models.joined import join_projections
from llm_perf_opt.workload.models.meta_run import last_logits
from llm_perf_opt.workload.models.module_groups import group_modules
from llm_perf_opt.workload.models.quantization import quantize
from llm_perf_opt.workload.models.random_weights import NoiseSource, fill_matrices, require_room
from llm_perf_opt.workload.models.registry import Choice, choose_attention, choose_dtype, torch_dtype
from llm_perf_opt.workload.models.snapshot import build_config, first_line, load_tokenizer, show_text, stored_dtype


@dataclass(frozen=True, kw_only=True)
class LoadedCausalLM:
    """One sequence or a batch of them; how it steps is in `steps`."""

    module: Any
    device: str
    dtype: str
    eos_token_ids: frozenset[int]
    load_notes: tuple[str, ...]
    tokenizer: Any | None
    vocabulary: int
    steps: Steps
    parts: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.load_notes, *self.steps.notes)

    @property
    def replays_graph(self) -> bool:
        return self.steps.replays_graph

    def prepare(self, sample: Sample) -> Any:
        """The ids of one prompt as a tensor, or those of a batch with the mask of their padding."""
        if sample.batch:
            return pad_left([self._checked(member) for member in sample.batch], device=self.device)
        return torch.tensor([self._checked(sample)], dtype=torch.long, device=self.device)

    def prompt_tokens(self, inputs: Any) -> int:
        return int(_prompts(inputs).ids.shape[1])

    def prompt_ids(self, inputs: Any) -> Sequence[int]:
        return [int(i) for i in _prompts(inputs).ids[0].tolist()]

    def prefill(self, inputs: Any, ranges: RangeFactory) -> StepOutput:
        return self.steps.prefill(_prompts(inputs))

    def decode(self, token: Any, state: Any) -> StepOutput:
        return self.steps.decode(token, state)

    def text(self, token_ids: Sequence[int], *, strip_special: bool) -> str:
        return show_text(self.tokenizer, token_ids, strip_special=strip_special, special=self.eos_token_ids)

    def module_groups(self) -> Mapping[str, str]:
        return group_modules(self.module)

    def _checked(self, sample: Sample) -> list[int]:
        ids = list(self._ids_of(sample))
        if not ids:
            raise ProfilingError(f"sample {sample.sample_id}: the prompt has no tokens, give it text or token ids")
        wrong = next((i for i in ids if not 0 <= i < self.vocabulary), None)
        # On a GPU an id out of range ends the process with a device assertion.
        if wrong is not None:
            raise ProfilingError(
                f"sample {sample.sample_id}: token id {wrong} is outside the vocabulary of {self.vocabulary}"
            )
        return ids

    def _ids_of(self, sample: Sample) -> Sequence[int]:
        if sample.token_ids is not None:
            return sample.token_ids
        if sample.text is None:
            raise ProfilingError(f"sample {sample.sample_id}: a text model needs text or token ids, not a page")
        if self.tokenizer is None:
            raise ProfilingError(
                f"sample {sample.sample_id}: it is text, but the model has no tokenizer; "
                "use dataset=synthetic, or set model.path to a snapshot that brings a tokenizer"
            )
        return [int(i) for i in self.tokenizer(sample.text)["input_ids"]]


def _prompts(inputs: Any) -> Prompts:
    return inputs if isinstance(inputs, Prompts) else Prompts(ids=inputs, mask=None)


def load_snapshot(
    model: ModelSection, infer: InferSection, geometry: Mapping[str, Any], *, device: str
) -> LoadedCausalLM:
    """The snapshot's own weights and tokenizer; never the network, never a pickle, never code of the snapshot."""
    path = _required(model.path)
    dtype, attention = _choices(model, geometry, device)
    split = {} if infer.tp == 1 else {"distributed_config": DistributedConfig(tp_size=infer.tp)}
    try:
        module = AutoModelForCausalLM.from_pretrained(
            path,
            **split,
            dtype=torch_dtype(dtype.value),
            attn_implementation=_asked(model, attention),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (ValueError, KeyError, ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"model.path: transformers could not load {str(path)!r} as a decoder-only model "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error
    tokenizer = load_tokenizer(path)
    notes = [*dtype.notes, *attention.notes, *_attention_found(model, module)]
    if tokenizer is None:
        notes.append(f"no tokenizer in {path}: text is shown as token ids")
    return _wrap(module.to(device), tokenizer, model, infer, device=device, dtype=dtype.value, notes=notes)


def load_random(
    model: ModelSection, infer: InferSection, geometry: Mapping[str, Any], *, device: str, seed: int
) -> LoadedCausalLM:
    """The real geometry with noise for weights: built on meta, then filled on the device itself."""
    dtype, attention = _choices(model, geometry, device)
    module = build_on_meta(geometry, dtype=dtype.value, attention=_asked(model, attention), experts=None)
    if infer.tp > 1:
        split_model(module, infer.tp, device=device)
    begin_step("weights")
    materialise(module, device=device, seed=seed)
    tokenizer = load_tokenizer(model.path) if model.path is not None else None
    notes = ["weights are random: the text means nothing", *dtype.notes, *attention.notes]
    notes += _attention_found(model, module)
    return _wrap(module, tokenizer, model, infer, device=device, dtype=dtype.value, notes=notes)


def build_on_meta(geometry: Mapping[str, Any], *, dtype: str, attention: str | None, experts: str | None) -> Any:
    """The module without memory. None leaves the choice to transformers: sdpa where the model's code has it."""
    fields = {key: value for key, value in geometry.items() if key not in ("architectures", "transformers_version")}
    choice = {} if experts is None else {"experts_implementation": experts}
    try:
        config = build_config(fields)
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(
                config, dtype=torch_dtype(dtype), attn_implementation=attention, trust_remote_code=False, **choice
            )
    except (ConfigError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise ConfigError(
            f"model.geometry: transformers cannot build a decoder-only model from it "
            f"({type(error).__name__}: {first_line(error)}), compare it with the model's config.json"
        ) from error
    return module.eval()


def split_model(module: Any, tp: int, *, device: str) -> None:
    """Make this rank hold its part of a module built on meta, as the model's own plan of transformers says."""
    from torch.distributed import init_device_mesh
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    if not module.tp_plan:
        raise ConfigError(
            f"infer.tp: transformers has no plan to split {type(module).__name__} (got {tp}), allowed: 1, or run.ranks "
            "alone, which gives each rank a whole model"
        )
    mesh = init_device_mesh(torch.device(device).type, (tp,), mesh_dim_names=("tp",))
    try:
        apply_tensor_parallelism(module, mesh["tp"])
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"infer.tp: the model cannot be split over {tp} ranks ({first_line(error)})") from error


def materialise(module: Any, *, device: str, seed: int) -> None:
    """Give a module built on meta its memory: noise in the matrices, the model's own rule for norms and buffers."""
    require_room(module, device=device)
    # One memory for weights that share one tensor: `to_empty` would give each its own until they are tied again, half a
    # gigabyte more at the peak for a vocabulary of 128,256. The old tensors are kept so that no number is used twice.
    moved: dict[int, tuple[Any, Any]] = {}

    def empty(tensor: Any) -> Any:
        if id(tensor) not in moved:
            moved[id(tensor)] = (tensor, torch.empty_like(tensor, device=device))
        return moved[id(tensor)][1]

    module._apply(empty)
    module.tie_weights()
    with torch.no_grad():
        for parameter in fill_matrices(module, NoiseSource(seed=seed, device=device), unit=_untied_embedding(module)):
            # transformers leaves alone what carries this mark, and sets the rest: norms, biases, rotary tables.
            parameter._is_hf_initialized = True
        for part in module.modules():
            part._is_hf_initialized = False
        # Some rules draw, as for the sinks of gpt_oss: from the seed too, and the global generator is not advanced.
        with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
            torch.manual_seed(seed)
            module.initialize_weights()


def _wrap(
    module: Any,
    tokenizer: Any,
    model: ModelSection,
    infer: InferSection,
    *,
    device: str,
    dtype: str,
    notes: list[str],
) -> LoadedCausalLM:
    module = module.eval()
    if model.join_projections:
        notes = [*notes, *join_projections(module)]
    notes = [*notes, *quantize(module, model.quantization)]
    options = {"use_cache": True, **last_logits(module)}
    return LoadedCausalLM(
        module=module,
        device=device,
        dtype=dtype,
        eos_token_ids=_eos_ids(module),
        load_notes=tuple(notes),
        tokenizer=tokenizer,
        vocabulary=int(module.config.vocab_size),
        steps=choose_steps(module, infer, options, device=device),
    )


def _untied_embedding(module: Any) -> Any | None:
    head = module.get_output_embeddings()
    table = module.get_input_embeddings().weight
    return None if head is not None and head.weight is table else table


def _eos_ids(module: Any) -> frozenset[int]:
    found = [module.config.eos_token_id]
    if module.generation_config is not None:
        found.append(module.generation_config.eos_token_id)
    ids: set[int] = set()
    for entry in found:
        ids.update([entry] if isinstance(entry, int) else entry or [])
    return frozenset(ids)


def _choices(model: ModelSection, geometry: Mapping[str, Any], device: str) -> tuple[Choice, Choice]:
    dtype = choose_dtype(model.dtype, device=device, stored=stored_dtype(geometry))
    attention = choose_attention(
        model.attention, device=device, dtype=dtype.value, flash_installed=is_flash_attn_2_available()
    )
    return dtype, attention


def _asked(model: ModelSection, attention: Choice) -> str | None:
    return None if model.attention == "auto" else attention.value


def _attention_found(model: ModelSection, module: Any) -> list[str]:
    found = module.config._attn_implementation
    if model.attention != "auto" or found == "sdpa":
        return []
    return [f"the model's code has no sdpa attention, {found} used instead"]


def _required(path: Path | None) -> Path:
    if path is None:
        raise ConfigError("model.path: missing (got null), set it to the folder of a local snapshot")
    return path
