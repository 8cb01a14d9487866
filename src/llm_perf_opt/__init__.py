"""Find where the time of an LLM inference went: captures and runs as data.

    import llm_perf_opt as perf

    a = perf.analyze("trace.json.gz")
    a.verdict, a.findings[0].fix, a.kernels.pandas()

docs/python.md has the rest. Plug-ins import from `llm_perf_opt.plugin`. Each name is imported when it is requested, so
that importing the package costs nothing.
"""

from importlib import import_module

# As type checkers know it; the module `typing` itself takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from llm_perf_opt.api.analysis import PerfAnalysis
    from llm_perf_opt.api.compare import Comparison, compare
    from llm_perf_opt.api.load import analyze, load_run, query
    from llm_perf_opt.api.predict import Prediction, predict
    from llm_perf_opt.api.profile import profile
    from llm_perf_opt.errors import ProfilingError
    from llm_perf_opt.marks import mark_warmup, phase, request
    from llm_perf_opt.sql.table import DataTable

__version__ = "0.2.0"

__all__ = [
    "Comparison",
    "DataTable",
    "PerfAnalysis",
    "Prediction",
    "ProfilingError",
    "__version__",
    "analyze",
    "compare",
    "load_run",
    "mark_warmup",
    "phase",
    "predict",
    "profile",
    "query",
    "request",
]

_HOMES = {
    "api.analysis": ("PerfAnalysis",),
    "api.compare": ("Comparison", "compare"),
    "api.load": ("analyze", "load_run", "query"),
    "api.predict": ("Prediction", "predict"),
    "api.profile": ("profile",),
    "errors": ("ProfilingError",),
    "marks": ("mark_warmup", "phase", "request"),
    "sql.table": ("DataTable",),
}
# What IPython looks for in an extension; no user calls it.
_OF_NOTEBOOKS = {"load_ipython_extension": "api.magic"}


def _imported(name: str) -> "Any":
    homes = {one: module for module, names in _HOMES.items() for one in names} | _OF_NOTEBOOKS
    if name in homes:
        # Kept, so that a name used in a loop is searched once.
        return globals().setdefault(name, getattr(import_module(f"{__name__}.{homes[name]}"), name))
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _moved(name)


# Type checkers are shown the imports above: with this in sight they would take any name.
if not TYPE_CHECKING:
    __getattr__ = _imported


def _moved(name: str) -> "Any":
    """A name of plug-ins, which stay here for one release."""
    plugin = import_module(f"{__name__}.plugin")
    if name not in plugin.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    text = f"llm_perf_opt.{name} moves to llm_perf_opt.plugin.{name}; the old name goes with the next minor version"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return getattr(plugin, name)


def __dir__() -> list[str]:
    return __all__
