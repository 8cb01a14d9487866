"""What a row says of itself in words: what was assumed, left out, or asked for in vain."""

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.requests import (
    Forecast,
)
from llm_perf_opt.model.families.wrapped import is_wrapped
from llm_perf_opt.model.hardware.hardware import (
    CPU,
)
from llm_perf_opt.model.hardware.roofline import uncounted_products
from llm_perf_opt.model.hardware.work import Dtypes, Shape
from llm_perf_opt.planning.counted_rows import MetaModel
from llm_perf_opt.planning.predict_request import Case
from llm_perf_opt.planning.subject import Subject
from llm_perf_opt.planning.vision_params import Beside
from llm_perf_opt.workload.dataset import PAGES

# Cards that run above the boost clock of their data sheet while power and temperature allow it, and by how much:
# the sheets say 1.7 to 2.6 GHz, the cards reach 1.95 to 2.9. A published run came to 98 % of such a bound.
BOOSTS, BOOST = "NVIDIA GeForce", 0.15


# What they call layers that predict tokens beyond the next one.
FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def load_notes(label: str, case: Case, served: Forecast | None, places: int | None) -> tuple[str, ...]:
    found = []
    if served is None and case.rate is not None and places:
        found.append(f"{label}: {case.rate:g} requests per second are more than {_devices(case)} can keep up with")
    per_replica = -(-case.in_flight // case.layout.dp)
    if case.rate is None and case.output is not None and places and per_replica > places:
        found.append(
            f"{label}: of {per_replica:,} requests in flight on a replica {places:,} fit into the memory, the others "
            "wait"
        )
    if case.prefix_hit:
        found.append(
            "prefix_hit: each request in flight holds its whole prompt, cached or not; prefixes kept for later "
            "requests need more memory"
        )
    return tuple(found)


def _devices(case: Case) -> str:
    count = case.layout.devices
    return "one device" if count == 1 else f"{count} devices"


def format_notes(section: HardwareSection | None, dtypes: Dtypes) -> tuple[str, ...]:
    """Products a data sheet has no rate for, and weights in a format the device has no units for."""
    if section is None or section.name == CPU:
        return ()
    found = [text] if (text := uncounted_products(section, dtypes)) is not None else []
    if any(name.startswith(BOOSTS) for name in section.device_names):
        found.append(
            f"{section.name} boosts above the clock of its data sheet: compute-bound runs may be up to "
            f"{100 * BOOST:.0f} % faster than the bound"
        )
    is_widened = dtypes.weight != dtypes.compute and dtypes.engine_product(section.peak_tflops) == dtypes.compute
    if is_widened and dtypes.weight != "int4" and section.peak_tflops:
        found.append(
            f"{section.name} has no units for {dtypes.weight}: estimates multiply in {dtypes.compute}, bounds in the "
            "fastest format such weights are widened to"
        )
    return tuple(found)


def counted_notes(label: str, model: MetaModel, case: Case) -> tuple[str, ...]:
    """What a count does not say, and what was requested in vain."""
    found = [
        f"{label}: {model.reason}; its operators were counted with torch (slower): an eager run of one device; "
        "bounds are the reading of the weights alone; memory is the weights and the cache as that code keeps it, "
        "without activations"
    ]
    asked = [name for name in ("weight_dtype", "kv_dtype", "activation_dtype", "output") if getattr(case, name)]
    if asked or case.layout.devices > 1 or case.engine != "eager":
        found.append(
            f"{label}: times of other formats and engines, of several devices and of requests are not reckoned from a "
            "count: times are one device's, memory is held against all"
        )
    return tuple(found)


def subject_notes(subject: Subject, shape: Shape, case: Case, problem: str | None) -> tuple[str, ...]:
    found = [f"{subject.label}: no estimate, {problem}"] if problem is not None else []
    longest = subject.longest
    reach = max(shape.prompt + (case.output or 0), shape.context)
    if longest is not None and reach > longest:
        found.append(f"{subject.label}: {reach:,} tokens are beyond its max_position_embeddings of {longest:,}")
    further = next((key for key in FURTHER if subject.text.data.get(key)), None)
    if further is not None:
        found.append(
            f"{subject.label}: layers that predict further tokens ({further}) are not counted, published totals may "
            "have them: transformers leaves them out, engines load them for speculative decoding"
        )
    if subject.adapter.data_kind != PAGES and is_wrapped(subject.geometry):
        found.append(f"{subject.label}: {_beside_note(subject.beside)}")
    return tuple(found)


def _beside_note(beside: Beside) -> str:
    """What is reckoned of the parts that read images or sound."""
    why = "" if beside.reason is None else f"; {beside.reason}"
    if beside.params:
        return (
            f"what reads images or sound ({', '.join(beside.params)}) is in the memory, unquantised; times and FLOPs "
            "are the text model's alone: tokens made of images count as tokens of the prompt, making them does not"
            f"{why}"
        )
    return f"the text model alone is counted, in the memory too, not what reads images or sound{why}"
