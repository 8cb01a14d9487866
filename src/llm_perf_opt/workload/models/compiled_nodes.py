"""Writes down which module every operation of a compiled graph came from, alongside the code torch.compile writes.

Inductor names, above each kernel it writes, the operations of the graph that are in it; the graph knows the module each
of them was in. A name that stands for different modules in different graphs is left out by the reader. This goes
through inductor's own door for passes over the graph; where a version has none, kernels keep their operators alone.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from llm_perf_opt.core.names import SOURCE_NODES_FILE

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass
except ImportError:
    CustomGraphPass = None


def note_modules_of_graphs() -> None:
    """From now on, every graph that is compiled in this process leaves its operations' modules in inductor's cache."""
    if CustomGraphPass is not None:
        from torch._inductor import config

        config.pre_grad_custom_pass = NoteModules()


class NoteModules(CustomGraphPass or object):  # type: ignore[misc]
    """Changes nothing of a graph.

    It is in a module because torch 2.11 pickles it to look for what another stage has compiled.
    """

    def __call__(self, graph: Any) -> None:
        folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        if folder is not None:
            write_modules(graph, Path(folder))

    def uuid(self) -> str:
        # Without one inductor would not reuse what another stage has compiled.
        return "llm-perf modules 1"


def write_modules(graph: Any, folder: Path) -> None:
    found = {node.name: module for node in graph.nodes if (module := module_of(node.meta.get("nn_module_stack") or {}))}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / SOURCE_NODES_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def module_of(stack: dict[str, tuple[str, Any]]) -> str | None:
    """The innermost module by its path from the outermost, as in `model.layers.0.mlp`; None for the outermost."""
    paths = [re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", str(path)) for path, _ in stack.values()]
    if not paths or not paths[-1].startswith(paths[0]):
        return None
    return re.sub(r"\b_modules\.", "", paths[-1].removeprefix(paths[0]).lstrip(".")) or None
