"""Which number formats a quantised checkpoint holds, from the `quantization_config` of its config.json.

Times take one format for the matrices and one for attention, because that is where whole models differ; what memory
holds is counted matrix by matrix (`stored`), scales and zero points included. Embeddings, norms and routers are taken
as left alone, which all methods here do by default; so is lm_head, unless it is named among what is quantised.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.hardware.work import Dtypes
from llm_perf_opt.model.static.closed_form import count_parameters
from llm_perf_opt.model.static.parts import Model, StoredWeights
from llm_perf_opt.model.static.stored import (
    ELEMENT_BYTES,
    EXPERTS,
    Stored,
    grouped_bytes,
    has_experts_apart,
    is_head,
    matrices_bytes,
    parse_rule,
    parse_rules,
)

_LEFT_ALONE = ("modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers")
# Attention of what reads images or sound, and parts of attention that are never quantised.
_ELSEWHERE = re.compile(r"visual|vision|audio|norm$|conv1d$|sinks$")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """`weight` of the layers' matrices; `has_wide_attention`: the projections around attention were left alone.

    `attention`: they have their own format, as in checkpoints of mixed formats. `kv` is the cache's format where
    the checkpoint prescribes one. `stored`: the format of each matrix.
    """

    weight: str
    has_wide_attention: bool = False
    attention: str | None = None
    kv: str | None = None
    stored: Stored | None = field(default=None, compare=False)


def stored_weights(model: Model, quantised: Quantised, *, wide_bytes: float) -> StoredWeights | None:
    """What memory holds of the weights. None: the checkpoint says no more than one format."""
    if quantised.stored is None:
        return None
    inside, experts, elements = matrices_bytes(model.decoder, quantised.stored, wide=wide_bytes)
    rest = count_parameters(model).total - elements
    decoder, size = model.decoder, quantised.stored.head_bytes
    is_narrow = size is not None and not decoder.is_tied
    narrowed = decoder.vocab * decoder.hidden * (wide_bytes - size) if size is not None and is_narrow else 0.0
    return StoredWeights(
        total_bytes=inside + rest * wide_bytes - narrowed, experts_bytes=experts, is_head_quantised=is_narrow
    )


def read_quantised(data: Mapping[str, Any], *, where: str) -> Quantised | None:
    """What the checkpoint says of its formats; None: it is not quantised."""
    config = data.get("quantization_config")
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method", "modelopt" if "quant_algo" in config else None))
    read = _modelopt if isinstance(config.get("quantized_layers"), Mapping) else _METHODS.get(method)
    weight = read(config) if read is not None else None
    if weight is None:
        raise ParseError(
            f"{where}: quantization_config: {method!r} with {config.get('bits')!r} bits is not known to the closed "
            "form; say what the weights take with workload.weight_dtype=fp8, int8, int4, nvfp4 or mxfp4 "
            "(llm-perf predict)"
        )
    layers = data.get("num_hidden_layers")
    return Quantised(
        weight=weight,
        has_wide_attention=_leaves_attention(config, layers if isinstance(layers, int) else None),
        attention=_attention_format(config, weight),
        kv=_cache_format(config),
        stored=_stored(
            config, weight, expert_dtype=data.get("expert_dtype"), apart=has_experts_apart(data.get("model_type"))
        ),
    )


def _stored(config: Mapping[str, Any], weight: str, *, expert_dtype: Any, apart: bool) -> Stored:
    """The format of each matrix: the method's, except for modules left alone and those with their own format."""
    left = parse_rules(
        (str(name) for key in _LEFT_ALONE for name in _list(config.get(key))),
        experts_apart=apart,
        is_exact=_names_are_exact(config),
    )
    layers = config.get("quantized_layers")
    if isinstance(layers, Mapping):
        sizes = {
            str(name): _algorithm_bytes(str(how.get("quant_algo")), how.get("group_size"))
            for name, how in layers.items()
            if isinstance(how, Mapping)
        }
        named = [(rule, size) for name, size in sizes.items() for rule in parse_rules([name], experts_apart=apart)]
        # Experts narrowed in a checkpoint of another format: what is ignored keeps that one.
        is_whole = str(config.get("quant_method")) == "fp8"
        return Stored(
            element_bytes=ELEMENT_BYTES["fp8"],
            left=() if is_whole else left,
            named=tuple(dict.fromkeys(named)),
            is_named_only=not is_whole,
            head_bytes=next((size for name, size in sizes.items() if is_head(name)), None),
        )
    parts = {EXPERTS: ELEMENT_BYTES["mxfp4"]} if expert_dtype == "fp4" else {}
    targets = _targets(config)
    named_groups, head = [], None
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        scheme = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(scheme, Mapping):
            size = _scheme_bytes(scheme)
            own = [str(target) for target in _list(group.get("targets")) if str(target) != "Linear"]
            named_groups += [(rule, size) for rule in parse_rules(own, experts_apart=apart)]
            head = size if any(map(is_head, own)) else head
    return Stored(
        element_bytes=_element_bytes(config, weight),
        left=left,
        named=tuple(named_groups),
        is_named_only=bool(targets) and "Linear" not in targets and bool(named_groups),
        parts=parts,
        head_bytes=head,
    )


def _names_are_exact(config: Mapping[str, Any]) -> bool:
    """Whether what is ignored is named matrix by matrix, so that the name of a block means nothing."""
    return str(config.get("quant_method")) == "compressed-tensors"


def _element_bytes(config: Mapping[str, Any], weight: str) -> float:
    """Bytes of an element of a quantised matrix with its share of the scales."""
    bits, group = config.get("bits"), config.get("group_size")
    if isinstance(bits, int) and weight in ("int4", "int8"):
        return grouped_bytes(bits, group if isinstance(group, int) else None, has_zeros=True)
    block = _list(config.get("weight_block_size"))
    if weight == "fp8" and len(block) == 2:
        rows, columns = (int(size) for size in block)
        return ELEMENT_BYTES["fp8"] + 4 / (rows * columns)
    groups = config.get("config_groups")
    schemes = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    found = [scheme for scheme in schemes if isinstance(scheme, Mapping) and _scheme(scheme) == weight]
    if found:
        return _scheme_bytes(found[0])
    algorithm = config.get("quant_algo")
    if algorithm is not None:
        return _algorithm_bytes(str(algorithm), group)
    if weight == "int4" and str(config.get("quant_method")) == "bitsandbytes":
        # A scale of 32 bits for 64 elements, or of 8 bits with double quantisation.
        return ELEMENT_BYTES["int4"] + (1.0 if config.get("bnb_4bit_use_double_quant") else 4.0) / 64
    return ELEMENT_BYTES[weight]


def _scheme_bytes(scheme: Mapping[str, Any]) -> float:
    """Of a group of compressed-tensors."""
    name, group = _scheme(scheme), scheme.get("group_size")
    if name in ("int4", "int8") and isinstance(group, int):
        return grouped_bytes(int(scheme["num_bits"]), group, has_zeros=scheme.get("symmetric") is False)
    return ELEMENT_BYTES[name] if name is not None else 2.0


def _algorithm_bytes(algorithm: str, group: Any) -> float:
    """Of an algorithm of ModelOpt."""
    name = algorithm.upper()
    if "NVFP4" in name:
        return ELEMENT_BYTES["nvfp4"]
    if name.startswith(("MXFP4", "W4A8_MXFP4")):
        return ELEMENT_BYTES["mxfp4"]
    if name.startswith("MXFP8"):
        return ELEMENT_BYTES["mxfp8"]
    if name.startswith(("W4A", "INT4")):
        return grouped_bytes(4, group if isinstance(group, int) else 128, has_zeros=False)
    return ELEMENT_BYTES["fp8"]


def run_dtypes(compute: str, stored: Quantised | None) -> Dtypes:
    """The formats of a run that takes the checkpoint as it is."""
    if stored is None:
        return Dtypes.uniform(compute)
    attention = compute if stored.has_wide_attention else stored.attention
    return Dtypes(compute=compute, weight=stored.weight, kv=stored.kv or compute, attention=attention)


def _bits(config: Mapping[str, Any]) -> str | None:
    bits = config.get("bits")
    return f"int{bits}" if bits in (4, 8) else None


def _bitsandbytes(config: Mapping[str, Any]) -> str | None:
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        return "int4"
    return "int8" if config.get("load_in_8bit") or config.get("_load_in_8bit") else None


def _groups(config: Mapping[str, Any]) -> str | None:
    """The narrowest format of the groups: it is what most of a mixed checkpoint's bytes are in."""
    groups = config.get("config_groups")
    found = []
    if isinstance(groups, Mapping):
        weights = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)]
        found = [name for w in weights if isinstance(w, Mapping) and (name := _scheme(w)) is not None]
    order = ("mxfp4", "nvfp4", "int4", "int8", "fp8")
    return next((name for name in order if name in found), None)


def _attention_format(config: Mapping[str, Any], weight: str) -> str | None:
    """The format of the group whose targets name attention, where it is another than the other matrices'."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        named = isinstance(group, Mapping) and any("attn" in str(t) for t in _list(group.get("targets")))
        scheme = group.get("weights") if named else None
        found = _scheme(scheme) if isinstance(scheme, Mapping) else None
        if found is not None and found != weight:
            return found
    return None


def _scheme(weights: Mapping[str, Any]) -> str | None:
    bits, is_float = weights.get("num_bits"), weights.get("type") == "float"
    if bits == 8:
        return "fp8" if is_float else "int8"
    if bits == 4 and not is_float:
        return "int4"
    if bits == 4:
        return "nvfp4" if weights.get("group_size") == 16 else "mxfp4"
    return None


def _modelopt(config: Mapping[str, Any]) -> str | None:
    algorithm = str(config.get("quant_algo", "")).upper()
    layers = config.get("quantized_layers")
    if isinstance(layers, Mapping):
        # The narrowest: it is what most of a mixed checkpoint's bytes are in.
        each = [_modelopt({"quant_algo": how.get("quant_algo")}) for how in layers.values() if isinstance(how, Mapping)]
        found = next((name for name in ("mxfp4", "nvfp4", "int4", "int8", "fp8") if name in each), None)
        if found is not None:
            return found
    if "NVFP4" in algorithm:
        return "nvfp4"
    for start, name in (
        ("NVFP4", "nvfp4"),
        ("MXFP8", "fp8"),
        ("MXFP4", "mxfp4"),
        ("FP8", "fp8"),
        ("W4A", "int4"),
        ("INT8", "int8"),
    ):
        if algorithm.startswith(start):
            return name
    return "int8" if algorithm.startswith("W8A") else _groups(config)


def _torchao(config: Mapping[str, Any]) -> str | None:
    """The name of the configuration class, or the older plain name, says it."""
    kind = config.get("quant_type")
    if isinstance(kind, Mapping):
        default = kind.get("default")
        kind = default.get("_type") if isinstance(default, Mapping) else default
    name = str(kind).lower().replace("_", "")
    # What the weights are comes last in names that say what activations are too.
    for part, found in (
        ("int4weight", "int4"),
        ("int8weight", "int8"),
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
        ("float8", "fp8"),
        ("int4", "int4"),
        ("int8", "int8"),
    ):
        if part in name:
            return found
    return None


def _quark(config: Mapping[str, Any]) -> str | None:
    whole = config.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    if not isinstance(weight, Mapping):
        return None
    name = str(weight.get("dtype", "")).lower()
    if name.startswith("fp4"):
        return "mxfp4"
    if name.startswith("fp8"):
        return "fp8"
    return {"int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4"}.get(name)


_METHODS: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "auto-round": _bits,
    "awq": _bits,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _groups,
    "fbgemm_fp8": lambda _: "fp8",
    "fp8": lambda _: "fp8",
    "gptq": _bits,
    "modelopt": _modelopt,
    "mxfp4": lambda _: "mxfp4",
    "quark": _quark,
    "torchao": _torchao,
}


def _leaves_attention(config: Mapping[str, Any], layers: int | None) -> bool:
    """Whether the projections of every layer's attention are left alone, by a pattern or layer by layer."""
    targets = _targets(config)
    if targets and all("mlp" in t or "expert" in t for t in targets):
        return True
    named = [str(name) for key in _LEFT_ALONE for name in _list(config.get(key))]
    if _names_are_exact(config):
        named = [name for name in named if parse_rule(name, is_exact=True) is not None]
    left = [name for name in named if "attn" in name and not _ELSEWHERE.search(name)]
    if any(not _LAYER.search(name) for name in left):
        return True
    numbers = {found[1] for name in left if (found := _LAYER.search(name))}
    # Checkpoints often leave the first layer alone as a whole and name the attention of all others.
    return layers is not None and len(numbers) > layers / 2


def _targets(config: Mapping[str, Any]) -> list[str]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        return []
    return [str(t) for g in groups.values() if isinstance(g, Mapping) for t in _list(g.get("targets"))]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _cache_format(config: Mapping[str, Any]) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return _scheme(scheme)
    return "fp8" if str(config.get("kv_cache_quant_algo", "")).upper() == "FP8" else None
