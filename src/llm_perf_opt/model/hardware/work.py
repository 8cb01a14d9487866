"""What one forward is given and what it does: number formats, input shapes, FLOPs and bytes of a piece."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.errors import ConfigError

# Bytes of one element with what the format itself prescribes: nvfp4 has a scale byte for every 16 elements, mxfp4 for
# every 32. Scales of int4, int8 and fp8 are a checkpoint's choice and are left out: a bound counts the fewest bytes.
BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
_LONG = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float": "fp32", "half": "fp16"}
# Formats in which kernels in use multiply low-precision weights, besides the activations' own. Weights of 4 bits
# are widened to 8 where activations are quantised as they come (llama.cpp and QServe to int8, TensorRT-LLM to fp8), so
# no bound for them may be slower than those.
_PRODUCTS = {
    "fp8": ("fp8", "fp8_acc16"),
    "int8": ("int8",),
    "int4": ("int8", "fp8"),
    "nvfp4": ("nvfp4", "fp8"),
    "mxfp4": ("mxfp4", "fp8"),
}
# GeForce cards multiply fp16 twice as fast where sums are kept in fp16 too, which some engines do.
_SAME_OPERANDS = {"fp16": ("fp16_acc16",)}


def short_dtype(name: str, *, where: str) -> str:
    """`bfloat16` -> `bf16`; a short name stays."""
    plain = name.removeprefix("torch.").removesuffix("_e4m3fn").replace("float8", "fp8")
    short = _LONG.get(plain, plain)
    if short not in BYTES:
        raise ConfigError(f"{where}: not a number format (got {name!r}), allowed: {', '.join([*BYTES, *_LONG])}")
    return short


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """Formats of a run: `compute` of activations, norms, embeddings and lm_head; `weight` of the layers' matrices.

    `attention` is the format of the projections around attention where a checkpoint keeps them apart (gpt-oss has
    experts in mxfp4 and the rest in bf16). `activation` is the dtype of the other operand of the layers' matmuls, where
    the user says so; otherwise the fastest that kernels in use know.
    """

    compute: str
    weight: str
    kv: str
    attention: str | None = None
    activation: str | None = None

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
    def around_attention(self) -> "Dtypes":
        """These formats with the projections' own as the weights'."""
        return self if self.attention is None else replace(self, weight=self.attention)

    @property
    def plain_products(self) -> tuple[str, ...]:
        """Dtypes that matmuls outside the quantised matrices can run in."""
        return (self.compute, *_SAME_OPERANDS.get(self.compute, ()))

    @property
    def weight_products(self) -> tuple[str, ...]:
        """Formats the layers' matrix products can run in; a bound takes the fastest a device has."""
        if self.activation is not None:
            return (self.activation,)
        return (*_PRODUCTS.get(self.weight, ()), *self.plain_products)

    def engine_product(self, peaks: Mapping[str, float]) -> str:
        """The format an engine multiplies the layers' matrices in, of those a device has rates for.

        Weights of 4 bits are widened to the activations' format unless the device has units for them; a bound also
        counts the quicker ways (`weight_products`).
        """
        if self.activation is not None:
            return self.activation
        return self.weight if self.weight in peaks and self.weight != "int4" else self.compute

    @property
    def score_products(self) -> tuple[str, ...]:
        """Formats attention's products can run in: a narrow cache may be multiplied as it is."""
        return (*_PRODUCTS.get(self.kv, ()), *self.plain_products)


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

    `end`: what it holds at last, where the step is not the last one. `how` says where the figures are from.
    """

    batch: int
    prompt: int
    context: int
    how: str
    views: tuple[View, ...] = ()
    end: int | None = None

    @property
    def longest(self) -> int:
        """The context that memory must hold."""
        return self.context if self.end is None else self.end


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """How one forward is spread: `tp` devices split every matrix, `sharing` such replicas hold experts together.

    `stages` of a pipeline work on different sequences, or different pieces of prompts, at the same time.
    """

    tp: int = 1
    sharing: int = 1
    stages: int = 1


ONE_DEVICE = DeviceShare()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one piece does in one forward.

    `flops` counts 2 per multiply-add of matrix products, convolutions and attention, the masked part of attention
    scores included, as a kernel without skipping does; `flops_masked` is that part. `flops_quantised` run in the
    weights' format, `flops_scores` (masked part included) are attention's own. Bytes: weights read, KV cache read and
    written, and activations in and out of each product. `weight_bytes` are those of the experts a batch is expected to
    hit; `weight_spared_bytes` of them would not be read if all its tokens picked the same experts.
    """

    flops: float = 0
    flops_masked: float = 0
    flops_quantised: float = 0
    flops_scores: float = 0
    weight_bytes: float = 0
    weight_spared_bytes: float = 0
    kv_read_bytes: float = 0
    kv_write_bytes: float = 0
    activation_bytes: float = 0

    @property
    def flops_needed(self) -> float:
        """Without the scores that the mask throws away."""
        return self.flops - self.flops_masked

    @property
    def flops_scores_needed(self) -> float:
        return self.flops_scores - self.flops_masked

    @property
    def bytes_needed(self) -> float:
        """Weights and KV cache: what no fusion and no routing can spare."""
        return self.weight_bytes - self.weight_spared_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            flops=self.flops + other.flops,
            flops_masked=self.flops_masked + other.flops_masked,
            flops_quantised=self.flops_quantised + other.flops_quantised,
            flops_scores=self.flops_scores + other.flops_scores,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            weight_spared_bytes=self.weight_spared_bytes + other.weight_spared_bytes,
            kv_read_bytes=self.kv_read_bytes + other.kv_read_bytes,
            kv_write_bytes=self.kv_write_bytes + other.kv_write_bytes,
            activation_bytes=self.activation_bytes + other.activation_bytes,
        )

    def times(self, count: float) -> "Work":
        return Work(
            flops=self.flops * count,
            flops_masked=self.flops_masked * count,
            flops_quantised=self.flops_quantised * count,
            flops_scores=self.flops_scores * count,
            weight_bytes=self.weight_bytes * count,
            weight_spared_bytes=self.weight_spared_bytes * count,
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
        flops_quantised=flops if is_quantised and dtypes.weight != dtypes.compute else 0,
        weight_bytes=n_in * n_out * weight + (n_out * dtypes.compute_bytes if bias else 0),
        kv_write_bytes=out_bytes if writes_kv else 0,
        activation_bytes=rows * n_in * dtypes.compute_bytes + (0 if writes_kv else out_bytes),
    )


def linear_params(n_in: int, n_out: int, *, bias: bool = False) -> int:
    return n_in * n_out + (n_out if bias else 0)
