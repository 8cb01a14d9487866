"""With the oldest torch and transformers serving images carry: a program of theirs is profiled by the light core.

CI runs this alone in such an environment; in an environment for development it holds for the newest ones.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.slow]
PROGRAM = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import llm_perf_opt

sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
with torch.no_grad(), llm_perf_opt.request("1"):
    with llm_perf_opt.phase("prefill"):
        out = model(torch.ones(1, 32, dtype=torch.long), use_cache=True)
    with llm_perf_opt.phase("decode"):
        for _ in range(4):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
"""


def test_a_program_is_profiled_with_the_torch_it_has(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["run", "pipeline.nsys.enable=false", "pipeline.ncu.enable=false", "hydra.run.dir=run"]
    done = subprocess.run(
        [sys.executable, "-m", "llm_perf_opt.cli", *words, "--", sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/torch_profiler/trace.json.gz").is_file()
    report = (tmp_path / "run/report.md").read_text()
    assert "prefill" in report and "aten::" in report
