"""What our decode loop costs: tokens through the session against a bare hand-written loop over the same model.

    python benchmarks/session_overhead.py [--models llama_tiny llama3_1b] [--threads 1] [--device cpu] [--out FILE]

Both loops run the same transformers model, greedy, without an end token, in turn (A B B A ...), and only the decode
steps are timed. The result is the median of the per-pair ratios; it is printed and written to
benchmarks/results/session_overhead.json. The aim is at most 1.03.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

AIM = 1.03
PLANS = {"llama_tiny": {"tokens": 200, "pairs": 25}, "llama3_1b": {"tokens": 9, "pairs": 9}}
# A GPU takes milliseconds where a CPU takes half a second.
GPU_PLAN = {"tokens": 64, "pairs": 21}
PROMPT = tuple(range(5, 37))
RESULTS = Path(__file__).parent / "results" / "session_overhead.json"


def load(preset: str, device: str) -> Any:
    """A preset with random weights, through the same configuration a run uses."""
    from llm_perf_opt.pipeline.compose import compose_config, type_config
    from llm_perf_opt.workload.models.registry import load_adapter

    overrides = [f"model={preset}", "model.weights=random", "dataset=synthetic"]
    config = type_config(compose_config(overrides), user_dir=Path.cwd())
    return load_adapter(config.model.adapter).load(config.model, config.infer, device=device, seed=0)


def time_bare(module: Any, clock: Any, tokens: int) -> tuple[float, list[int]]:
    """Decode with nothing around the model; seconds and tokens."""
    import torch

    prompt = torch.tensor([PROMPT], device=module.device)
    with torch.inference_mode():
        out = module(input_ids=prompt, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1, :].argmax(dim=-1, keepdim=True)
        ids = [token]
        start_ns = clock.edge_ns()
        for _ in range(tokens - 1):
            out = module(input_ids=token, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1, :].argmax(dim=-1, keepdim=True)
            ids.append(token)
        seconds = (clock.edge_ns() - start_ns) / 1e9
    return seconds, [int(t) for t in ids]


def time_session(loaded: Any, ranges: Any, clock: Any, tokens: int) -> tuple[float, list[int]]:
    """Decode through the session's loop with its clocks and NVTX ranges; seconds and tokens."""
    import torch

    from llm_perf_opt.config.schema import InferSection
    from llm_perf_opt.workload.generation import Generator, TokenPicker
    from llm_perf_opt.workload.models.base import Sample

    inputs = loaded.prepare(Sample(sample_id="s", token_ids=PROMPT))
    picker = TokenPicker(InferSection(max_new_tokens=tokens), device=loaded.device, seed=0, prompt_ids=())
    generator = Generator(loaded, clock=clock, ranges=ranges, ignore_eos=True)
    with torch.inference_mode():
        done = generator.generate(inputs, picker, tokens)
    return (done.decode_ms or 0.0) / 1e3, list(done.token_ids)


def compare(preset: str, device: str, *, tokens: int, pairs: int) -> dict[str, Any]:
    """Both loops in turn, after one round of each to warm up."""
    from llm_perf_opt.workload.generation import clock_for
    from llm_perf_opt.workload.nvtx import choose_emitter

    loaded, ranges, clock = load(preset, device), choose_emitter(), clock_for(device)
    expected = time_bare(loaded.module, clock, tokens)[1]
    if time_session(loaded, ranges, clock, tokens)[1] != expected:
        raise SystemExit(f"{preset}: the loops produced different tokens; their times cannot be compared")
    bare: list[float] = []
    ours: list[float] = []
    for pair in range(pairs):
        first = [
            (bare, lambda: time_bare(loaded.module, clock, tokens)),
            (ours, lambda: time_session(loaded, ranges, clock, tokens)),
        ]
        for times, run in first if pair % 2 == 0 else reversed(first):
            times.append(run()[0] / (tokens - 1) * 1e3)
    ratios = [o / b for o, b in zip(ours, bare, strict=True)]
    return {
        "model": preset,
        "parameters": sum(p.numel() for p in loaded.module.parameters()),
        "dtype": loaded.dtype,
        "decode_steps": tokens - 1,
        "pairs": pairs,
        "nvtx_backend": ranges.backend,
        "bare_ms_per_token_median": statistics.median(bare),
        "session_ms_per_token_median": statistics.median(ours),
        "bare_ms_per_token_min": min(bare),
        "session_ms_per_token_min": min(ours),
        "ratio_median": statistics.median(ratios),
        "ratio_of_minima": min(ours) / min(bare),
        "aim": AIM,
        "met": statistics.median(ratios) <= AIM,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(PLANS), default=list(PLANS))
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 is the least noisy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    import torch

    from llm_perf_opt.workload.device import CPUINFO, cpu_name

    torch.set_num_threads(args.threads)
    results = []
    for name in args.models:
        results.append(compare(name, args.device, **(PLANS[name] if args.device == "cpu" else GPU_PLAN)))
        print(json.dumps(results[-1], indent=2), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpu": cpu_name(CPUINFO), "device": args.device, "torch": torch.__version__, "threads": args.threads}
    args.out.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n", encoding="utf-8")
    return 0 if all(result["met"] for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
