"""Number formats: their short names, their sizes, and which peak of a data sheet applies to them."""

from dataclasses import dataclass

from llm_perf_opt.errors import ConfigError

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
_LONG = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float": "fp32", "half": "fp16"}
# Weights in these formats are widened before they are multiplied, so the product runs at the activations' rate.
_WEIGHT_ONLY = ("int4",)


def short_dtype(name: str, *, where: str) -> str:
    """`bfloat16` -> `bf16`; a short name stays."""
    plain = name.removeprefix("torch.").removesuffix("_e4m3fn").replace("float8", "fp8")
    short = _LONG.get(plain, plain)
    if short not in BYTES:
        raise ConfigError(f"{where}: not a number format (got {name!r}), allowed: {', '.join([*BYTES, *_LONG])}")
    return short


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """Formats of a run: `compute` of activations, norms, embeddings and lm_head; `weight` of the layers' matrices."""

    compute: str
    weight: str
    kv: str

    @classmethod
    def uniform(cls, name: str) -> "Dtypes":
        return cls(compute=name, weight=name, kv=name)

    @property
    def compute_bytes(self) -> float:
        return BYTES[self.compute]

    @property
    def weight_bytes(self) -> float:
        return BYTES[self.weight]

    @property
    def kv_bytes(self) -> float:
        return BYTES[self.kv]

    @property
    def matmul(self) -> str:
        """The format the layers' matrix products run in."""
        return self.compute if self.weight in _WEIGHT_ONLY else self.weight
