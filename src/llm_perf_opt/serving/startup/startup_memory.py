"""Memory by purpose: what the log of a server says, and what the files of the model predict."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.model.families.known import read_text_model
from llm_perf_opt.model.hardware.work import Dtypes, short_dtype
from llm_perf_opt.model.static.closed_form import kv_bytes_per_token, weight_bytes
from llm_perf_opt.model.static.config_json import read_config_json
from llm_perf_opt.serving.startup.startup_records import MemoryPurpose, MemoryRow

_UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_SIZE = r"([\d.,]+)\s*(GiB|MiB|GB|MB)"
# Lines of vLLM 0.32 and SGLang 0.5. The last one counts: a server of several ranks says the same for each.
LINES: Mapping[MemoryPurpose, tuple[re.Pattern[str], ...]] = {
    "weights": (
        re.compile(rf"Model loading took {_SIZE}"),
        re.compile(rf"model weights take {_SIZE}"),
        re.compile(r"Load weight end\..*mem usage=([\d.]+) (GB)"),
    ),
    "KV cache": (
        re.compile(rf"Available KV cache memory: {_SIZE}"),
        re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) (GiB) for KV cache"),
    ),
    "activations": (re.compile(rf"activation peak memory takes {_SIZE}"),),
    "graphs": (re.compile(rf"[Gg]raph captur\w+ (?:finished|end).*?(?:took|mem usage=)\s*(?=[\d.]+ ?G){_SIZE}"),),
}
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_DTYPE = re.compile(r"\bdtype=torch\.(\w+)")
_KV_DTYPE = re.compile(r"\bkv_cache_dtype=(\w+)")


def memory_rows(log: str, model: str | None) -> tuple[MemoryRow, ...]:
    """A row for each purpose of which something is known. `model` is the folder the server was started with."""
    measured = {purpose: _measured(log, patterns) for purpose, patterns in LINES.items()}
    predicted, sources = _predicted(log, None if model is None else Path(model))
    return tuple(
        MemoryRow(
            purpose=purpose,
            measured_bytes=measured[purpose],
            predicted_bytes=predicted.get(purpose),
            how=sources.get(purpose, ""),
        )
        for purpose in LINES
        if measured[purpose] is not None or purpose in predicted
    )


def _measured(log: str, patterns: Sequence[re.Pattern[str]]) -> int | None:
    for pattern in patterns:
        sizes = pattern.findall(log)
        if sizes:
            number, unit = sizes[-1]
            return round(float(number.replace(",", "")) * _UNITS[unit])
    return None


def _predicted(log: str, folder: Path | None) -> tuple[dict[MemoryPurpose, int], dict[MemoryPurpose, str]]:
    """Weights and cache by the model's configuration, in the formats that the server names."""
    if folder is None or not (folder / "config.json").is_file():
        return {}, {}
    try:
        data = read_config_json(folder / "config.json")
        model = read_text_model(data, where=str(folder / "config.json"))
        dtypes = _dtypes(log, data)
    except ProfilingError as error:
        return {}, {"weights": f"not predicted: {error}"}
    sizes: dict[MemoryPurpose, int] = {"weights": round(weight_bytes(model, dtypes))}
    how: dict[MemoryPurpose, str] = {"weights": f"the model's configuration, {dtypes.weight}"}
    tokens = _KV_TOKENS.findall(log)
    if tokens:
        count = int(tokens[-1].replace(",", ""))
        sizes["KV cache"] = round(count * kv_bytes_per_token(model, dtypes))
        how["KV cache"] = f"{count:,} tokens, {dtypes.kv}"
    return sizes, how


def _dtypes(log: str, data: Mapping[str, Any]) -> Dtypes:
    """What the server says it computes in; else the checkpoint's own format."""
    said = _DTYPE.findall(log)
    name = said[-1] if said else str(data.get("dtype") or data.get("torch_dtype") or "bf16")
    compute = short_dtype(name, where="dtype")
    cache = [kind for kind in _KV_DTYPE.findall(log) if kind != "auto"]
    return Dtypes(
        compute=compute, weight=compute, kv=short_dtype(cache[-1], where="kv_cache_dtype") if cache else compute
    )
