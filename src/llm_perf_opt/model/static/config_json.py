"""Reads a model's configuration field by field, from `config.json` or a preset; an odd field is named in the error."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, Layer
from llm_perf_opt.system.files import read_limited

T = TypeVar("T")
_MISSING = object()
LARGEST_SIZE = 1 << 31
MOST_LAYERS = 10_000
LARGEST_FILE_BYTES = 16 << 20
# Where NVIDIA's ModelOpt says how it quantised a checkpoint; vLLM, SGLang and TensorRT-LLM read it.
MODELOPT_FILE = "hf_quant_config.json"


class NotInClosedForm(ParseError):
    """A configuration the closed form has no rule for. `what` names it in a sentence: the family 'codegen'."""

    def __init__(self, text: str, *, what: str) -> None:
        super().__init__(text)
        self.what = what


class NotADecoder(NotInClosedForm):
    """A model without the prefill and decode that are reckoned here."""


class Fields:
    """A mapping with checked readers. `where` is the file or configuration key it came from."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(key) is not None

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: T) -> int | T: ...
    def integer(self, key: str, default: Any = _MISSING) -> Any:
        """A whole number ≥ 1. With a default, the field may be missing or null."""
        value = self._value(key, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ParseError(f"{self.where}: {key}: not a whole number ≥ 1 (got {value!r})")
        if value > (MOST_LAYERS if key.endswith("layers") else LARGEST_SIZE):
            raise ParseError(f"{self.where}: {key}: no model is that large (got {str(value)[:24]})")
        return value

    def nullable_integer(self, key: str, absent: Any = _MISSING) -> int | None:
        """A whole number or null. `absent` is what a missing field means; without it the field must be there."""
        if key not in self.data:
            return None if self._value(key, absent) is None else int(absent)
        return self.integer(key, None)

    def count(self, key: str, default: Any = _MISSING) -> int:
        """A whole number ≥ 0."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ParseError(f"{self.where}: {key}: not a whole number ≥ 0 (got {value!r})")
        return int(value)

    def number(self, key: str, default: float) -> float:
        """A finite number > 0."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < LARGEST_SIZE:
            raise ParseError(f"{self.where}: {key}: not a number > 0 (got {value!r})")
        return float(value)

    def is_text(self, key: str) -> bool:
        """Whether a word such as `auto` is where others give a number."""
        return isinstance(self.data.get(key), str)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ParseError(f"{self.where}: {key}: not true or false (got {value!r})")
        return value

    def text(self, key: str) -> str:
        value = self._value(key, _MISSING)
        if not isinstance(value, str) or not value:
            raise ParseError(f"{self.where}: {key}: not a name (got {value!r})")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._value(key, _MISSING)
        if not _is_list(value) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise ParseError(f"{self.where}: {key}: not a list of whole numbers (got {value!r})")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of names, or None when there is none."""
        value = self._value(key, None)
        if value is None:
            return None
        if not _is_list(value) or not all(isinstance(v, str) for v in value):
            raise ParseError(f"{self.where}: {key}: not a list of names (got {value!r})")
        return tuple(value)

    def section(self, key: str) -> "Fields":
        value = self._value(key, _MISSING)
        if not isinstance(value, Mapping):
            raise ParseError(f"{self.where}: {key}: not a mapping (got {value!r})")
        return Fields(value, f"{self.where}: {key}")

    def sections(self, key: str) -> tuple["Fields", ...]:
        """A list of mappings."""
        value = self._value(key, _MISSING)
        if not _is_list(value) or not all(isinstance(v, Mapping) for v in value):
            raise ParseError(f"{self.where}: {key}: not a list of mappings (got {type(value).__name__})")
        return tuple(Fields(v, f"{self.where}: {key}[{i}]") for i, v in enumerate(value))

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ParseError(f"{self.where}: {key}: missing; the sizes cannot be worked out without it")
        return default


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


SLIDING = "sliding_attention"
FULL = "full_attention"


def build_decoder(
    f: Fields,
    model_type: str,
    layers: Iterable[Layer],
    *,
    tied: bool,
    norm_has_bias: bool = False,
    hidden: int | None = None,
) -> Decoder:
    """`tied` is what a file without `tie_word_embeddings` means, `hidden` the width where its field is another."""
    listed = list(layers)
    blocks = Counter(listed)
    places = {layer: index for index, layer in enumerate(blocks)}
    return Decoder(
        model_type=model_type,
        hidden=f.integer("hidden_size") if hidden is None else hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", tied),
        blocks=tuple(blocks.items()),
        norm_has_bias=norm_has_bias,
        order=tuple(places[layer] for layer in listed),
    )


def read_heads(f: Fields, *, head_dim: int | None = None, kv_follows: bool = False) -> tuple[int, int, int]:
    """Query heads, key heads and the width of one.

    Without `head_dim` the hidden size is split evenly. `kv_follows`: no `num_key_value_heads` means one per query head;
    the other types have their own number as default, so the file must name it.
    """
    heads = f.integer("num_attention_heads")
    kv_heads = f.integer("num_key_value_heads", heads) if kv_follows else f.integer("num_key_value_heads")
    if heads % kv_heads:
        raise ParseError(f"{f.where}: num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
    return heads, kv_heads, f.integer("head_dim", head_dim or f.integer("hidden_size") // heads)


def windows_of(types: Iterable[str], window: int | None) -> list[int | None]:
    """The window of each layer."""
    return [window if kind == SLIDING else None for kind in types]


def read_layer_types(f: Fields, default: Callable[[int], str]) -> list[str]:
    """`layer_types` of the file, or the pattern the type has by default."""
    count = f.integer("num_hidden_layers")
    given = f.texts("layer_types")
    if given is None:
        return [default(i) for i in range(count)]
    unknown = sorted(set(given) - {SLIDING, FULL})
    if unknown or len(given) != count:
        raise ParseError(f"{f.where}: layer_types: not {count} of {SLIDING}, {FULL} (got {unknown or len(given)})")
    return list(given)


def read_dense_mlp(f: Fields, *, bias: bool = False) -> DenseMlp:
    return DenseMlp(width=f.integer("intermediate_size"), bias=bias)


def read_config_json(path: Path) -> dict[str, Any]:
    """`config.json` of a model's folder, or the file itself, with what ModelOpt wrote about formats alongside it."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = dict(_read_object(file))
    except FileNotFoundError as error:
        raise ParseError(f"{file}: not found; give the folder of a model that holds a config.json") from error
    beside = file.with_name(MODELOPT_FILE)
    own = data.get("quantization_config")
    if file.name == "config.json" and beside.is_file() and (own is None or isinstance(own, Mapping)):
        formats = _read_object(beside).get("quantization")
        if not isinstance(formats, Mapping):
            raise ParseError(f"{beside}: quantization: not a mapping (got {formats!r})")
        if own is None:
            data["quantization_config"] = {**formats, "quant_method": "modelopt"}
        elif own.get("quant_method") == "modelopt" and "kv_cache_scheme" not in own:
            # Some exports name the format of the cache in this file alone.
            data["quantization_config"] = {"kv_cache_quant_algo": formats.get("kv_cache_quant_algo"), **own}
    return data


def _read_object(file: Path) -> Any:
    try:
        data = json.loads(read_limited(file, LARGEST_FILE_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ParseError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(data, dict):
        raise ParseError(f"{file}: not a JSON object")
    return data
