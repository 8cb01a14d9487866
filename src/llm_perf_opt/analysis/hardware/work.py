"""What one forward is given and what it does: number formats, input shapes, FLOPs and bytes of a piece."""

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


@dataclass(frozen=True, kw_only=True)
class View:
    """`count` square images of `size` pixels that go through the image side as one batch."""

    size: int
    count: int


@dataclass(frozen=True, kw_only=True)
class PagePrompt:
    """What a page becomes: `tokens` of the whole prompt, the text around the page included, and its views."""

    tokens: int
    views: tuple[View, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`prompt` counts image tokens too; `context` is what the cache holds before the decode step.

    `how` says where the figures are from.
    """

    batch: int
    prompt: int
    context: int
    how: str
    views: tuple[View, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one piece does in one forward.

    `flops` counts 2 per multiply-add of matrix products, convolutions and attention, the masked part of attention
    scores included, as a kernel without skipping does; `flops_masked` is that part. `flops_quantised` run in the
    weights' format. Bytes: weights read, KV cache read and written, and activations in and out of each product.
    """

    flops: float = 0
    flops_masked: float = 0
    flops_quantised: float = 0
    weight_bytes: float = 0
    kv_read_bytes: float = 0
    kv_write_bytes: float = 0
    activation_bytes: float = 0

    @property
    def flops_needed(self) -> float:
        """Without the scores that the mask throws away."""
        return self.flops - self.flops_masked

    @property
    def bytes_needed(self) -> float:
        """Weights and KV cache: what no fusion can spare."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def bytes(self) -> float:
        return self.bytes_needed + self.activation_bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            flops=self.flops + other.flops,
            flops_masked=self.flops_masked + other.flops_masked,
            flops_quantised=self.flops_quantised + other.flops_quantised,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_read_bytes=self.kv_read_bytes + other.kv_read_bytes,
            kv_write_bytes=self.kv_write_bytes + other.kv_write_bytes,
            activation_bytes=self.activation_bytes + other.activation_bytes,
        )

    def times(self, count: int) -> "Work":
        return Work(
            flops=self.flops * count,
            flops_masked=self.flops_masked * count,
            flops_quantised=self.flops_quantised * count,
            weight_bytes=self.weight_bytes * count,
            kv_read_bytes=self.kv_read_bytes * count,
            kv_write_bytes=self.kv_write_bytes * count,
            activation_bytes=self.activation_bytes * count,
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One forward: `new` tokens for each of `batch` sequences that already hold `past`."""

    batch: int
    new: int
    past: int

    @property
    def rows(self) -> int:
        return self.batch * self.new


def linear(
    rows: float,
    n_in: int,
    n_out: int,
    dtypes: Dtypes,
    *,
    bias: bool = False,
    is_quantised: bool = True,
    writes_kv: bool = False,
) -> Work:
    """rows × n_in times n_in × n_out. `writes_kv`: the result is what goes into the cache."""
    flops = 2 * rows * n_in * n_out
    weight = dtypes.weight_bytes if is_quantised else dtypes.compute_bytes
    out_bytes = rows * n_out * (dtypes.kv_bytes if writes_kv else dtypes.compute_bytes)
    return Work(
        flops=flops,
        flops_quantised=flops if is_quantised else 0,
        weight_bytes=n_in * n_out * weight + (n_out * dtypes.compute_bytes if bias else 0),
        kv_write_bytes=out_bytes if writes_kv else 0,
        activation_bytes=rows * n_in * dtypes.compute_bytes + (0 if writes_kv else out_bytes),
    )


def linear_params(n_in: int, n_out: int, *, bias: bool = False) -> int:
    return n_in * n_out + (n_out if bias else 0)
