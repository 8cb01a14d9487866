"""The command that starts a planned replica with vLLM or SGLang.

Flags as in vLLM 0.32 and SGLang 0.5. Nothing is reported that engines read from the checkpoint themselves.
"""

import shlex

from llm_perf_opt.model.estimate.requests import PROMPT_TOKENS
from llm_perf_opt.planning.predicted_rows import Row

MEMORY_SHARE = 0.9


def vllm_command(row: Row, *, model: str, replicas: int) -> list[str]:
    case, layout = row.case, row.case.layout
    group = layout.dp // replicas
    words = ["vllm", "serve", model]
    words += ["--tensor-parallel-size", str(layout.tp)] if layout.tp > 1 else []
    words += ["--pipeline-parallel-size", str(layout.pp)] if layout.pp > 1 else []
    words += ["--data-parallel-size", str(group)] if group > 1 else []
    words += ["--enable-expert-parallel"] if layout.ep > 1 else []
    words += ["--max-model-len", str(_longest(row)), "--max-num-seqs", str(case.batch)]
    words += ["--max-num-batched-tokens", str(case.prefill_chunk or PROMPT_TOKENS)]
    words += ["--gpu-memory-utilization", str(MEMORY_SHARE)]
    words += ["--quantization", "fp8"] if case.weight_dtype == "fp8" else []
    words += ["--kv-cache-dtype", "fp8"] if case.kv_dtype == "fp8" else []
    return words


def sglang_command(row: Row, *, model: str, replicas: int) -> list[str]:
    case, layout = row.case, row.case.layout
    group = layout.dp // replicas
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    # Data-parallel attention shares the devices that tensor parallelism counts.
    words += ["--tp-size", str(layout.tp * group)] if layout.tp * group > 1 else []
    words += ["--dp-size", str(group), "--enable-dp-attention"] if group > 1 else []
    words += ["--pp-size", str(layout.pp)] if layout.pp > 1 else []
    words += ["--ep-size", str(layout.ep)] if layout.ep > 1 else []
    words += ["--context-length", str(_longest(row)), "--max-running-requests", str(case.batch * group)]
    words += ["--chunked-prefill-size", str(case.prefill_chunk or PROMPT_TOKENS)]
    words += ["--mem-fraction-static", str(MEMORY_SHARE)]
    words += ["--quantization", "fp8"] if case.weight_dtype == "fp8" else []
    words += ["--kv-cache-dtype", "fp8_e4m3"] if case.kv_dtype == "fp8" else []
    return words


def as_lines(words: list[str]) -> list[str]:
    """A command over several lines, one option each, that can be pasted into a shell."""
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    lines, line = [], " ".join(map(shlex.quote, words[:first]))
    for word in words[first:]:
        if word.startswith("--"):
            lines.append(f"{line} \\")
            line = f"    {word}"
        else:
            line += f" {shlex.quote(word)}"
    return [*lines, line]


def _longest(row: Row) -> int:
    return row.analysis.shape.prompt + (row.case.output or 0)
