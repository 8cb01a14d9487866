"""Narrower weights for the matrix products of a loaded model, through torchao (the extra `quantization`)."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from llm_perf_opt.errors import ConfigError

# What the layers' matrices are stored in; activations and the embedding keep the model's own format.
_CONFIGS = {"fp8": "Float8DynamicActivationFloat8WeightConfig", "int8": "Int8WeightOnlyConfig"}


def quantize(module: Any, asked: str) -> tuple[str, ...]:
    """Quantise every linear layer in place, and say by what; `none` leaves the model as it is."""
    if asked == "none":
        return ()
    try:
        torchao = import_module("torchao.quantization")
    except ImportError as error:
        raise ConfigError(
            f"model.quantization: torchao is needed and cannot be imported ({error}) (got {asked!r}); "
            "pip install 'llm-perf-opt[quantization]', or set model.quantization=none"
        ) from error
    config = getattr(torchao, _CONFIGS[asked])
    try:
        torchao.quantize_(module, config())
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"model.quantization: torchao cannot do this here ({error}) (got {asked!r}); "
            "fp8 needs a GPU of compute capability 8.9 or newer; allowed: none, fp8, int8"
        ) from error
    return (f"the linear layers are stored in {asked} by torchao {version('torchao')} ({_CONFIGS[asked]})",)
