"""How modules of ours get into a program that does not know of them: a `sitecustomize` first on its PYTHONPATH."""

import os
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt import marks

INJECT_DIR = Path(__file__).parent / "inject"
GENERATED_VARIABLE = "LLM_PERF_GENERATED"


def inject_path(environ: Mapping[str, str]) -> Mapping[str, str]:
    """PYTHONPATH with the folder of the injected modules before what was there."""
    before = environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(INJECT_DIR), *([before] if before else [])])}


def found_phases_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What makes the program's Python mark the phases of libraries whose loops are known; for one child alone."""
    return {**inject_path(environ), GENERATED_VARIABLE: str(marks.__file__)}
