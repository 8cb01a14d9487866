"""Any file Nsight Compute leaves behind to launches: a report, its raw or details CSV page, or a folder of them.

A binary .ncu-rep report to launches, with NVIDIA's `ncu-report` package (the optional extra `ncu`).
"""

import importlib
import importlib.util
import os
import re
import shutil
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.capture.kernels.ncu_records import NcuLaunch, NcuRule, NcuValue, base_unit
from llm_perf_opt.capture.readers.ncu_csv import dims, merge_launches, parse_ncu_csv, require_known_units
from llm_perf_opt.errors import ParseError, ToolError
from llm_perf_opt.system.files import decode_text, read_unpacked
from llm_perf_opt.system.process import allowed_environment, run_quick

MODULE = "ncu_report"

_LINK = re.compile(r"@url:([^:@]*):([^@]*)@")
_MARK = re.compile(r"@(?:section|sass|source):(?:[^@]*:)?([^:@]*)@")


def build_ncu_import_cmd(report: Path | str, *, page: Literal["raw", "details"], ncu: str = "ncu") -> list[str]:
    """Print one page of a report as CSV. Units stay scaled: with base units ncu prints fewer digits."""
    return [ncu, "--import", str(report), "--page", page, "--csv"]


def report_module() -> Any | None:
    """The package, or None when it is absent or too old (the module older Nsight installs ship cannot list rules)."""
    if importlib.util.find_spec(MODULE) is None:
        return None
    try:
        module = importlib.import_module(MODULE)
    except ImportError:
        return None
    return module if "rule_results_as_dicts" in dir(module.IAction) else None


def read_report(path: Path, module: Any) -> list[NcuLaunch]:
    """All launches of a report, in order."""
    try:
        report = module.load_report(str(path))
    except RuntimeError as error:
        raise ParseError(f"{path}: not a report ncu-report can read ({error})") from error
    if report is None:
        raise ParseError(f"{path}: not a report ncu-report can read; is it whole?")
    actions = [
        report.range_by_idx(i).action_by_idx(j)
        for i in range(report.num_ranges())
        for j in range(report.range_by_idx(i).num_actions())
    ]
    if not actions:
        # The package answers a file it cannot parse with an empty report.
        raise ParseError(f"{path}: holds no launch that ncu-report can read; is it whole?")
    return [_launch(action, index, path, module) for index, action in enumerate(actions)]


def _launch(action: Any, index: int, path: Path, module: Any) -> NcuLaunch:
    metrics = {name: _value(action[name]) for name in action.metric_names() if not name.startswith("breakdown:")}
    major, minor = (metrics.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    capability = None
    if major is not None and minor is not None and major.value is not None and minor.value is not None:
        capability = f"{major.value:.0f}.{minor.value:.0f}"
    require_known_units(metrics, str(path))
    name = metrics.get("device__attribute_display_name")
    return NcuLaunch(
        launch_id=str(index),
        kernel=action.name(action.NameBase_DEMANGLED) or action.name(),
        grid=dims(metrics, "grid"),
        block=dims(metrics, "block"),
        device=name.text if name is not None and name.text else None,
        compute_capability=capability,
        nvtx=_nvtx(action.nvtx_state()),
        metrics=metrics,
        rules=tuple(_rule(rule, module) for rule in action.rule_results_as_dicts()),
        source=str(path),
    )


def _value(metric: Any) -> NcuValue:
    value = metric.value() if metric.has_value() else None
    factor, unit = base_unit(metric.unit() or "")
    if isinstance(value, float) and not isfinite(value):
        return NcuValue(value=None, unit=unit, text=str(value), is_undefined=True)
    if isinstance(value, int | float):
        return NcuValue(value=float(value) * factor, unit=unit, text=f"{value} {metric.unit()}".strip())
    return NcuValue(value=None, unit=unit, text="n/a" if value is None else str(value))


def _rule(rule: dict[str, Any], module: Any) -> NcuRule:
    message = rule["rule_message"]
    kinds = {module.MsgType_OPTIMIZATION: "OPT", module.MsgType_WARNING: "WRN", module.MsgType_ERR: "ERR"}
    scopes = {module.SpeedupType_GLOBAL: "global", module.SpeedupType_LOCAL: "local"}
    estimate = rule.get("speedup_estimation")
    speedup = None if estimate is None else float(estimate["speedup"])
    return NcuRule(
        rule=rule["rule_identifier"],
        section=rule["section_identifier"],
        kind=kinds.get(message["type"], "INF"),
        text=plain(message["message"]),
        scope=None if estimate is None else scopes.get(estimate["type"]),
        speedup_pct=speedup if speedup is not None and isfinite(speedup) else None,
    )


def plain(text: str) -> str:
    """A rule's message without its markup, links written as on ncu's own pages."""
    return _MARK.sub(r"\1", _LINK.sub(r"\1 (\2)", text))


def _nvtx(state: Any) -> tuple[str, ...]:
    if state is None:
        return ()
    names: list[str] = []
    for identifier in state.domains():
        domain = state.domain_by_id(identifier)
        names += [*domain.push_pop_ranges(), *domain.start_end_ranges()]
    return tuple(names)


IMPORT_TIMEOUT_S = 600.0


def load_ncu(path: Path, *, ncu: str | None = None) -> list[NcuLaunch]:
    """The launches in a report or in one of its CSV pages (also .gz and .xz). `ncu` is the tool to import with."""
    if not path.is_file():
        raise ParseError(f"{path}: no such file")
    if path.suffix == ".ncu-rep":
        return _load_report(path, ncu)
    text = read_text(path)
    if text.startswith("NVR"):
        return _load_report(path, ncu)
    return parse_ncu_csv(text, source=str(path))


def load_ncu_dir(path: Path) -> list[NcuLaunch]:
    """One folder of exports of the same capture (`ncu.details.csv`, `ncu.section_*.csv`, …) as one list of launches."""
    files = sorted(path.glob("*.csv"), key=lambda file: ("raw" not in file.name, "details" not in file.name, file.name))
    if files:
        return merge_launches(load_ncu(file) for file in files)
    reports = sorted(path.glob("*.ncu-rep"))
    if not reports:
        raise ParseError(f"{path}: neither a CSV page nor a report of ncu in it")
    return load_ncu(reports[0])


def read_text(path: Path) -> str:
    """A text file, unpacked by its suffix."""
    try:
        return decode_text(read_unpacked(path))
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error


def _load_report(path: Path, ncu: str | None) -> list[NcuLaunch]:
    """With the tool that was given (it wrote the report), else with the package, else with the ncu on PATH."""
    module = report_module() if ncu is None else None
    if module is not None:
        return read_report(path, module)
    tool = ncu or shutil.which("ncu")
    if tool is None:
        raise ToolError(
            f"{path}: reading a report needs the package ncu-report (pip install 'llm-perf-opt[ncu]') or ncu itself; "
            "or give the CSV made by `ncu --import R.ncu-rep --page raw --csv`"
        )
    environment = allowed_environment(os.environ)
    pages = []
    for page in ("raw", "details"):
        code, out = run_quick(
            build_ncu_import_cmd(path, page=page, ncu=tool), env=environment, timeout_s=IMPORT_TIMEOUT_S
        )
        if code != 0:
            raise ParseError(f"{path}: ncu --import failed ({out.strip()[-300:] or 'no message'})")
        pages.append(parse_ncu_csv(out, source=str(path)))
    return merge_launches(pages)
