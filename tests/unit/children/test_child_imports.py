"""Packages that a child of ours leaves alone although they are installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.children.start import NOT_FOR_TEXT, TEXT_MODELS

LOOK = """
import importlib.util, sys
from llm_perf_opt.children.start import hide_packages
hide_packages(sys.argv[1])
print(*(importlib.util.find_spec(name) is not None for name in sys.argv[2:]))
try:
    import torchvision
except ImportError:
    print("absent")
"""


@pytest.mark.parametrize(
    ("adapter", "said"),
    [(TEXT_MODELS, "False False True\nabsent\n"), ("my_models.seeing:ADAPTER", "True True True\n")],
)
def test_what_only_pictures_need_looks_absent_to_a_text_model(tmp_path: Path, adapter: str, said: str) -> None:
    for name in (*NOT_FOR_TEXT, "other"):
        (tmp_path / f"{name}.py").write_text("")
    argv = [sys.executable, "-c", LOOK, adapter, *sorted(NOT_FOR_TEXT), "other"]
    env = {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout == said


def test_the_preset_of_text_models_uses_that_adapter() -> None:
    from llm_perf_opt.pipeline.compose import compose_config

    assert compose_config(["model=llama3_1b"]).model.adapter == TEXT_MODELS
    assert compose_config(["model=deepseek_ocr_tiny"]).model.adapter != TEXT_MODELS
