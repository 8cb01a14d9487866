"""A model the closed form has no rule for: built on the meta device and counted by operators, seconds for each row.

The result is an estimate of an eager run on one device: each module group at its own roofline, and the host that
starts every operator. The bound is the reading of the weights alone: a count knows what this code does and not the
least it could compute.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from llm_perf_opt.config.schema import HardwareSection, ModelSection
from llm_perf_opt.core.names import PREFILL
from llm_perf_opt.errors import ConfigError, ParseError
from llm_perf_opt.model.estimate.efficiency import MEASURED, rates_of
from llm_perf_opt.model.hardware.hardware import CPU
from llm_perf_opt.model.hardware.roofline import Bound, estimate
from llm_perf_opt.model.hardware.work import BYTES, Dtypes, Shape, Work
from llm_perf_opt.model.static.counted import CountedAnalysis, unknown_text
from llm_perf_opt.model.static.operator_count import Count, count_module_parameters
from llm_perf_opt.model.static.parts import OTHER
from llm_perf_opt.model.static.prediction import Operators, PhasePrediction
from llm_perf_opt.model.static.stored import Stored, tensor_bytes
from llm_perf_opt.workload.models.base import ModelAdapter

# What configurations call their routed experts, and how many a token goes to.
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_PICKED = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
# Torch and transformers refuse what they cannot build or run in many ways; all of them mean the same here.
REFUSALS = (ConfigError, ImportError, OSError, RuntimeError, ValueError, TypeError, AttributeError, LookupError)


class MetaModel:
    """A module on the meta device, built once and counted for each shape."""

    def __init__(self, adapter: ModelAdapter, model: ModelSection, geometry: Mapping[str, Any], what: str) -> None:
        # The file's own sizes, wherever it lies: nothing but them is needed on meta.
        self._model = replace(model, weights="random", path=None, geometry=dict(geometry), dtype="bfloat16")
        self._adapter, self.what = adapter, what
        self._experts_read = _share_of_experts(geometry)
        self.count = cache(self._count_operators)

    @property
    def reason(self) -> str:
        return unknown_text(self.what)

    def stored_bytes(self, stored: Stored, *, wide_bytes: float) -> float:
        """What a quantised checkpoint of this model takes, tensor by tensor."""
        return sum(
            tensor_bytes(name, tensor.numel(), tensor.dim(), stored, wide=wide_bytes)
            for name, tensor in self._module().named_parameters()
        )

    def least_read(self, parameters: Mapping[str, int]) -> float:
        """Parameters that every forward reads, at the least.

        Not the embedding's table unless it is the output matrix, of routed experts those of one token, and nothing of
        parts that were not distinguished.
        """
        left_out = {OTHER, "embedding"} if parameters.get("lm_head") else {OTHER}
        plain = sum(count for group, count in parameters.items() if group not in {*left_out, "experts"})
        return plain + parameters.get("experts", 0) * self._experts_read

    def _count_operators(self, batch: int, prompt: int, context: int) -> tuple[Mapping[str, int], Mapping[str, Count]]:
        from llm_perf_opt.profiling.static_child import count_phases

        shape = Shape(batch=batch, prompt=prompt, context=context, how="as asked for")
        try:
            module = self._module()
            groups = self._adapter.meta_groups(module)
            counts = count_phases(self._adapter, module, groups, shape)
            return count_module_parameters(module, groups), counts
        except REFUSALS as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ParseError(
                f"{self.reason}, and counting its operators with transformers failed ({type(error).__name__}: {said}); "
                "profile your own program that runs it (docs/your-own-program.md)"
            ) from error

    def _module(self) -> Any:
        return self._adapter.build_meta(self._model)


def count_model(
    source: MetaModel,
    shape: Shape,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    *,
    name: str,
    hardware_reason: str | None,
    capacity_bytes: float | None,
    beside: Mapping[str, int],
    stored: Stored | None = None,
    weight_format: str | None = None,
    devices: int = 1,
) -> CountedAnalysis:
    parameters, counts = source.count(shape.batch, shape.prompt, shape.context)
    wide = dtypes.compute_bytes
    held = None
    if stored is not None:
        held = source.stored_bytes(stored, wide_bytes=wide) + sum(beside.values()) * wide
    return CountedAnalysis(
        name=name,
        reason=source.reason,
        dtypes=dtypes,
        shape=shape,
        hardware=hardware,
        hardware_reason=hardware_reason,
        capacity_bytes=capacity_bytes,
        parameters=parameters,
        counts=counts,
        beside=beside,
        least_read_bytes=source.least_read(parameters) * (BYTES[weight_format] if weight_format else wide),
        devices=devices,
        stored_bytes=held,
        stored_format=weight_format if held is not None else None,
    )


def _share_of_experts(geometry: Mapping[str, Any]) -> float:
    """The share of the routed experts that one token goes to; 0 where the configuration does not say."""
    total = next((geometry[key] for key in _EXPERTS if isinstance(geometry.get(key), int)), 0)
    picked = next((geometry[key] for key in _PICKED if isinstance(geometry.get(key), int)), 0)
    return min(1.0, picked / total) if total > 0 and picked > 0 else 0.0


def _weights_bound(analysis: CountedAnalysis) -> Bound | None:
    """All devices together read the weights once."""
    hardware = analysis.hardware
    if hardware is None or hardware.memory_bandwidth_gb_s is None or hardware.name == CPU:
        return None
    moved_ms = analysis.least_read_bytes / (hardware.memory_bandwidth_gb_s * 1e9 * analysis.devices) * 1e3
    return Bound(compute_ms=0.0, memory_ms=moved_ms)


def counted_predictions(analysis: CountedAnalysis) -> dict[str, PhasePrediction]:
    return {name: _prediction(analysis, name, count) for name, count in analysis.counts.items()}


def _prediction(analysis: CountedAnalysis, name: str, count: Count) -> PhasePrediction:
    hardware, dtypes, shape = analysis.hardware, analysis.dtypes, analysis.shape
    total = count.total
    rates = None if hardware is None else rates_of(hardware)
    found = None
    if hardware is not None and rates is not None and dtypes.compute in rates.ceilings.flops_per_s:
        found = estimate(
            {group: Work(flops=tally.flops, weight_bytes=tally.bytes) for group, tally in count.groups.items()},
            dtypes,
            rates.ceilings,
            operators=total.operators,
            launch_us=hardware.launch_us,
            other_bytes=total.other_bytes,
            is_synchronous=hardware.name == CPU,
        )
        found = replace(found, label=rates.label if hardware.name != CPU else MEASURED)
    return PhasePrediction(
        tokens=shape.batch * (shape.prompt if name == PREFILL else 1),
        datasheet=_weights_bound(analysis),
        datasheet_reason=analysis.reason,
        achievable=None,
        achievable_reason=analysis.reason,
        estimate=found,
        launch_ms=analysis.launch_ms(name),
        limit=None if found is None else found.limit,
        operators=Operators(count=total.operators, other_bytes=total.other_bytes, how="counted"),
    )
