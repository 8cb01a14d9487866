"""`llm-perf doctor`: what this machine can do, and the fix for what it cannot."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.core.host import Host, Tool
from llm_perf_opt.profiling.vendor.vendor_tools import importer_trouble, probe_host
from llm_perf_opt.system.json_output import print_json
from llm_perf_opt.system.process import allowed_environment

MIN_FREE_BYTES = 5 * 1024**3
COUNTERS_REMEDY = (
    "run as root (in a container also with --cap-add=SYS_ADMIN), or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (/etc/modprobe.d/, then reboot); ncu fails with ERR_NVGPUCTRPERM until then"
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line: ok, or a gap with its fix."""

    name: str
    ok: bool
    value: str
    remedy: str | None = None


def diagnose(host: Host) -> list[Check]:
    """Every check, in the order a person would make them; without a GPU none of its driver."""
    from llm_perf_opt.pipeline.preflight import RUN_EXTRA

    free = host.disk_free_bytes
    return [
        Check(name="python", ok=True, value=host.python),
        _package(host, "torch", f"{RUN_EXTRA}: needed to run models, not to predict, analyse or compare"),
        _package(host, "transformers", RUN_EXTRA),
        _gpu(host),
        *([_driver(host)] if host.gpus else []),
        _tool(host.tool("nsys")),
        _importer(host.tool("nsys")),
        _tool(host.tool("ncu")),
        *([_counters(host)] if host.gpus or host.counters_restricted is not None else []),
        _nvtx(host),
        scratch_check(Path(tempfile.gettempdir())),
        Check(
            name="disk",
            ok=free >= MIN_FREE_BYTES,
            value=f"{free / 1024**3:.1f} GiB free",
            remedy=None if free >= MIN_FREE_BYTES else "free some space: captures of a large model take gigabytes",
        ),
    ]


def _package(host: Host, name: str, remedy: str) -> Check:
    from llm_perf_opt.pipeline.preflight import too_old

    version = host.packages.get(name)
    if version is None:
        return Check(name=name, ok=False, value="not installed", remedy=remedy)
    trouble = too_old(name, version)
    return Check(name=name, ok=trouble is None, value=version, remedy=trouble)


def _gpu(host: Host) -> Check:
    if host.gpus:
        value = "; ".join(f"{g.name} ({g.memory_bytes / 1024**3:.0f} GiB)" for g in host.gpus)
        return Check(name="gpu", ok=True, value=value)
    return Check(
        name="gpu",
        ok=False,
        value="none",
        remedy="where this machine has an NVIDIA GPU, install its driver; without one, static analysis, the torch "
        "profiler and nsys (NVTX) work on the CPU, and ncu does not",
    )


def _driver(host: Host) -> Check:
    return Check(name="driver", ok=True, value=f"{host.gpus[0].driver}, CUDA {host.cuda_driver or 'unknown'}")


def _tool(tool: Tool) -> Check:
    """Presence and version; the importer of nsys is its own check."""
    if tool.path is None or tool.version is None:
        return Check(name=tool.name, ok=False, value="not usable", remedy=tool.trouble)
    return Check(name=tool.name, ok=True, value=f"{tool.version} ({tool.path})")


def _importer(nsys: Tool) -> Check:
    if nsys.path is None:
        return Check(name="nsys importer", ok=False, value="unknown", remedy="nsys is needed first")
    trouble = importer_trouble(Path(nsys.path).resolve())
    if trouble is None:
        return Check(name="nsys importer", ok=True, value="found")
    return Check(name="nsys importer", ok=False, value="missing", remedy=f"{trouble.what}; {trouble.remedy}")


def _counters(host: Host) -> Check:
    if host.counters_restricted is None:
        return Check(
            name="gpu counters", ok=False, value="unknown", remedy="the driver does not report who may read them"
        )
    if host.counters_restricted:
        return Check(name="gpu counters", ok=False, value="administrators only", remedy=COUNTERS_REMEDY)
    return Check(name="gpu counters", ok=True, value="allowed")


def scratch_check(folder: Path, flags: int | None = None) -> Check:
    """Whether programs may run from the directory of temporary files, as ncu's and torch.compile's do."""
    name, flags = "temporary files", os.statvfs(folder).f_flag if flags is None else flags
    if flags & os.ST_NOEXEC:
        remedy = f"{folder} is mounted noexec: set TMPDIR to a directory that may hold programs"
        return Check(name=name, ok=False, value=str(folder), remedy=remedy)
    return Check(name=name, ok=True, value=str(folder))


def _nvtx(host: Host) -> Check:
    """PyPI nvtx from 0.2.12 on is not recorded by older nsys; a CUDA build of torch brings its own."""
    version = host.packages.get("nvtx")
    if version is None:
        return Check(name="nvtx", ok=False, value="not installed", remedy="pip install 'nvtx<0.2.12'")
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    nsys = host.tool("nsys").version
    is_old = nsys is not None and int(nsys.partition(".")[0]) < 2024
    if numbers >= (0, 2, 12) and is_old and not host.gpus:
        remedy = "pip install 'nvtx<0.2.12': ranges of newer ones are not recorded by nsys 2022.4 and 2023.4"
        return Check(name="nvtx", ok=False, value=version, remedy=remedy)
    return Check(name="nvtx", ok=True, value=version)


@dataclass(frozen=True, kw_only=True)
class DoctorDocument:
    """What `llm-perf doctor --json` prints."""

    schema_version: Literal[1] = 1
    host: Host
    checks: tuple[Check, ...]


def main(argv: Sequence[str]) -> int:
    examples = ["llm-perf doctor", "llm-perf doctor --json"]
    parser = command_parser("doctor", "What this machine can do, and how to fix what it cannot.", examples)
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/schemas/doctor.schema.json)")
    args = parser.parse_args(argv)
    host = probe_host(env=allowed_environment(os.environ), disk=Path.cwd())
    checks = diagnose(host)
    if args.json:
        print_json(DoctorDocument(host=host, checks=tuple(checks)))
        return 0
    _print(checks)
    return 0


def _print(checks: Sequence[Check]) -> None:
    from rich.text import Text

    from llm_perf_opt.system.terminal import printable, show

    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = ("ok ", "green") if check.ok else ("gap", "yellow")
        show(Text.assemble(mark, f"  {check.name:<{width}}  {printable(check.value)}"))
        if check.remedy:
            show(Text(f"     {'':<{width}}  → {printable(check.remedy)}"))
