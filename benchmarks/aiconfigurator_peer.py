"""What NVIDIA's aiconfigurator expects of single steps, for docs/accuracy.md; it needs its own venv.

    python -m venv peer && peer/bin/pip install aiconfigurator pyyaml
    peer/bin/python benchmarks/aiconfigurator_peer.py

Its figures come from operators its authors measured on each GPU. One prompt and one decode step are requested at each
point of the grid; the result is kept in benchmarks/results/aiconfigurator.json.
"""

import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "aiconfigurator.json"
BACKEND = "trtllm"
SYSTEMS = {"h200_sxm": "h200", "h100_sxm": "h100_sxm", "a100_sxm": "a100_80gb", "b200_sxm": "b200"}
# Model, architecture by transformers' name, and how many GPUs share it.
MODELS = (
    ("llama3_8b", "LlamaForCausalLM", 1),
    ("llama3_70b", "LlamaForCausalLM", 4),
    ("qwen3_30b_a3b", "Qwen3MoeForCausalLM", 1),
)
BATCHES = (1, 8, 64)
PROMPTS = (1024, 4096)


def main() -> None:
    from aiconfigurator.sdk import perf_database

    points: list[dict[str, Any]] = []
    missing: list[str] = []
    for system, hardware in SYSTEMS.items():
        latest = perf_database.get_latest_database_version(system, BACKEND)
        database = perf_database.get_database(system, BACKEND, latest)
        for name, architecture, tp in MODELS:
            for weight in ("bf16", "fp8"):
                if weight == "fp8" and hardware == "a100_80gb":
                    continue
                try:
                    points += measure(database, name, architecture, tp, weight, hardware)
                except (KeyError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
                    missing.append(f"{name} {weight} on {hardware}: {type(error).__name__}: {error}"[:200])
    document = {"version": version("aiconfigurator"), "backend": "TensorRT-LLM", "points": points, "missing": missing}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(points)} points, {len(missing)} missing", *missing, sep="\n")


def measure(database: Any, name: str, architecture: str, tp: int, weight: str, hardware: str) -> list[dict[str, Any]]:
    from aiconfigurator.sdk import common, config, models
    from aiconfigurator.sdk.backends.factory import get_backend
    from aiconfigurator.sdk.inference_session import InferenceSession

    geometry = yaml.safe_load((ROOT / f"conf/model/causal_lm/arch/{name}.yaml").read_text())["geometry"]
    folder = Path(tempfile.mkdtemp()) / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**geometry, "architectures": [architecture]}))
    kind = "bfloat16" if weight == "bf16" else "fp8"
    asked = config.ModelConfig(
        tp_size=tp,
        gemm_quant_mode=common.GEMMQuantMode[kind],
        moe_quant_mode=common.MoEQuantMode[kind],
        kvcache_quant_mode=common.KVCacheQuantMode[kind],
        fmha_quant_mode=common.FMHAQuantMode.bfloat16,
        moe_tp_size=tp,
        moe_ep_size=1,
    )
    session = InferenceSession(models.get_model(str(folder), asked, BACKEND), database, get_backend(BACKEND))
    shared = {"model": name, "hardware": hardware, "weight": weight, "kv": weight, "tp": tp}
    points = []
    for tokens in PROMPTS:
        for batch in BATCHES:
            runtime = config.RuntimeConfig(batch_size=batch, isl=tokens, osl=2)
            row = session.run_static(runtime, mode="static").get_summary_df().iloc[0]
            if batch == 1:
                points.append({**shared, "phase": "prefill", "batch": 1, "tokens": tokens, "ms": float(row["ttft"])})
            points.append({**shared, "phase": "decode", "batch": batch, "tokens": tokens, "ms": float(row["tpot"])})
    return points


if __name__ == "__main__":
    main()
