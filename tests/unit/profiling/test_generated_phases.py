"""Phases of transformers' own loops are found without a mark in the program; those it marks itself win."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.marks import MARKS_DIR
from llm_perf_opt.profiling.found_model import read_found_model, with_found_model
from llm_perf_opt.profiling.injection import found_phases_environment
from llm_perf_opt.profiling.user_program import describe_program, read_marks
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.testing import plain_config

UTILS = '''
class GenerationMixin:
    """The parts of the real one that its loop is known by."""

    def _prefill(self, ids):
        self.prepare_inputs_for_generation(ids)

    def _update_model_kwargs_for_generation(self, outputs):
        return {}

    def generate(self, inputs=None, max_new_tokens=3):
        self._prefill(inputs)
        for token in range(max_new_tokens):
            if token:
                self.prepare_inputs_for_generation(inputs)
            self._update_model_kwargs_for_generation(None)
        return inputs
'''
MODEL = """
from transformers.generation.utils import GenerationMixin

class Ids:
    shape = (2, 5)

class Model(GenerationMixin):
    def prepare_inputs_for_generation(self, ids):
        return {}
"""
REAL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
ids = torch.ones(2, 5, dtype=torch.long)
LlamaForCausalLM(config).generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
"""


def run(folder: Path, text: str, *, is_real: bool = False) -> list[tuple[str, int | None]]:
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    if not is_real:
        package = folder / "transformers" / "generation"
        package.mkdir(parents=True)
        for init in (package.parent, package):
            (init / "__init__.py").touch()
        (package / "utils.py").write_text(UTILS, encoding="utf-8")
    env = {**os.environ, **found_phases_environment(os.environ), MARKS_DIR: str(folder)}
    subprocess.run([sys.executable, str(program)], env=env, check=True, timeout=300, stdin=subprocess.DEVNULL)
    return [(mark.name, mark.tokens) for mark in read_marks(folder, Redactor())]


def test_a_call_of_generate_is_a_prefill_and_a_step_for_each_further_token(tmp_path: Path) -> None:
    found = run(tmp_path, MODEL + "Model().generate(Ids())\nModel().generate(inputs=Ids(), max_new_tokens=1)\n")
    assert found == [("prefill", 10), ("decode_step", 2), ("decode_step", 2), ("prefill", 10)]


def test_a_generate_inside_another_one_is_a_part_of_it(tmp_path: Path) -> None:
    text = MODEL + "class Assisted(Model):\n    def _prefill(self, ids):\n        Model().generate(ids)\n"
    assert run(tmp_path, text + "Assisted().generate(Ids())\n")[0] == ("prefill", 10)
    assert len(read_marks(tmp_path, Redactor())) == 3


def test_phases_that_the_program_marks_itself_win(tmp_path: Path) -> None:
    text = "import llm_perf_opt as perf\n" + MODEL
    text += "Model().generate(Ids())\nwith perf.phase('answer'):\n    Model().generate(Ids())\n"
    assert run(tmp_path, text) == [("answer", None)]


def test_the_run_says_that_phases_were_found(tmp_path: Path) -> None:
    from llm_perf_opt.profiling.user_program import ProgramRun

    run(tmp_path, MODEL + "Model().generate(Ids())\n")
    data = describe_program(
        ["python", "program.py"],
        [ProgramRun(wall_s=1.0, marks=read_marks(tmp_path, Redactor()))],
        device_name="CPU",
        is_cpu=True,
        peak_memory_bytes=None,
        peak_memory_reason="none",
    )
    assert data.notes == (
        "phases found without marks, in calls of transformers or torch's optimizer: decode_step, prefill",
    )
    assert {"ttft_ms", "tpot_ms", "prefill_tokens_per_s", "decode_tokens_per_s"} <= data.clean.metrics.keys()


@pytest.mark.long
def test_the_real_generate_has_these_phases(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert run(tmp_path, REAL, is_real=True) == [("prefill", 10), *[("decode_step", 2)] * 3]


DESCRIBED = """
class Weight:
    dtype = "torch.bfloat16"
    class device:
        type = "cuda"

class Config:
    _name_or_path = "/models/Tiny-1B/"
    def to_dict(self):
        return {"model_type": "llama", "dtype": Weight.dtype, "hidden_size": 64}

class Whole(Model):
    config = Config()
    def parameters(self):
        return iter([Weight()])
"""


def test_the_first_model_that_generates_is_described_for_its_bounds(tmp_path: Path) -> None:
    clean = tmp_path / "marks-1"
    clean.mkdir()
    run(clean, MODEL + DESCRIBED + "Model().generate(Ids())\nWhole().generate(Ids())\n")
    assert read_found_model(tmp_path) is None
    other = tmp_path / "marks-2"
    other.mkdir()
    run(other, MODEL + DESCRIBED + "Whole().generate(Ids())\nWhole().generate(Ids())\n")
    found = read_found_model(tmp_path)
    assert found is not None
    assert (found.name, found.dtype, found.device) == ("Tiny-1B", "bfloat16", "cuda")
    assert found.config["hidden_size"] == 64
    config = with_found_model(plain_config(tmp_path), found, tmp_path)
    assert (config.model.name, config.model.dtype, config.model.weights) == ("Tiny-1B", "bfloat16", "random")
    assert config.run.device == plain_config(tmp_path).run.device
    assert json.loads((tmp_path / "found_model" / "config.json").read_bytes()) == found.config
    on_cpu = with_found_model(plain_config(tmp_path), replace(found, device="cpu", dtype="float64"), tmp_path)
    assert (on_cpu.run.device, on_cpu.model.dtype) == ("cpu", "auto")


def test_a_model_file_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "marks-1").mkdir()
    (tmp_path / "marks-1" / "model-7.json").write_text('{"name": "x"', encoding="utf-8")
    assert read_found_model(tmp_path) is None


OPTIMIZER = """
hooks = []

def register_optimizer_step_post_hook(hook):
    hooks.append(hook)

class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
LOOP = """
import torch
from torch.optim.optimizer import Optimizer
first, second = Optimizer(), Optimizer()
for _ in range(4):
    first.step()
    second.step()
torch.compiling = True
first.step()
"""


def test_a_loop_around_an_optimizer_has_a_step_from_one_of_its_steps_to_the_next(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    text = "from types import SimpleNamespace as N\ncompiling = False\ncompiler = N(is_compiling=lambda: compiling)\n"
    (package.parent / "__init__.py").write_text(text, encoding="utf-8")
    (package / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER, encoding="utf-8")
    assert run(tmp_path, LOOP) == [("training_step", None)] * 3
