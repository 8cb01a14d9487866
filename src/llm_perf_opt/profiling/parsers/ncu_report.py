"""Any file Nsight Compute leaves behind to launches: a report, its raw or details CSV page, or a folder of them."""

import gzip
import lzma
import os
import shutil
from pathlib import Path

from llm_perf_opt.analysis.ncu_records import NcuLaunch
from llm_perf_opt.core.process import allowed_environment, run_quick
from llm_perf_opt.errors import ParseError, ToolError
from llm_perf_opt.profiling.parsers.ncu_binary import read_report, report_module
from llm_perf_opt.profiling.parsers.ncu_csv import merge_launches, parse_ncu_csv
from llm_perf_opt.profiling.vendor.ncu import build_ncu_import_cmd

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
        if path.suffix == ".xz":
            return lzma.decompress(path.read_bytes()).decode("utf-8", "replace")
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ParseError(f"{path}: could not be read ({error})") from error


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
