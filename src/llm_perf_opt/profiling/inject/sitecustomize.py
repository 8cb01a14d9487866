"""Starts what looks at a program from inside; on PYTHONPATH only for the program to be measured.

Python imports a module of this name before the program's first line. A variable of the environment names each module to
start and is its settings. A `sitecustomize` the environment already has is run first, as it would be without this one.
It imports little: the program waits for it.
"""

import importlib
import os
import sys
from importlib.machinery import PathFinder

MODULES = {
    "LLM_PERF_TORCH_WINDOW": "_llm_perf_torch_window",
    "LLM_PERF_OBSERVE": "_llm_perf_observe",
    "LLM_PERF_GENERATED": "_llm_perf_generated",
}


def run_the_other_one() -> None:
    """The environment's own sitecustomize, which this folder hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        import importlib.util

        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_the_other_one()
for variable, module in MODULES.items():
    if os.environ.get(variable):
        importlib.import_module(module).start(os.environ[variable])
