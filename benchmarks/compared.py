"""What other tools say of captures published by others, alongside what `llm-perf analyze` says, with times.

    python benchmarks/compared.py CAPTURES [--hta PYTHON] [--nsys-ai COMMAND]

CAPTURES is a folder with the captures named below (.json.gz, .sqlite or .sqlite.xz); those that are missing are left
out and named. `--hta` names an interpreter that has HolisticTraceAnalysis, `--nsys-ai` the command of that name:
neither is a dependency of this project. Each tool reads each capture in its own process, once; times are of that
process with all it started. Writes benchmarks/results/compared.json, which docs/compared.md explains.
"""

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from contest import outcome_of

RESULTS = Path(__file__).parent / "results" / "compared.json"
TORCH = (
    "tracelens_h100_owlv2.json.gz",
    "tracelens_b200_vllm_eager.json.gz",
    "tracelens_sglang_decode_mi300.json.gz",
    "hta_rank0.json.gz",
    "hta_diff_control.json.gz",
    "deepseek_train_overlap.json.gz",
)
NSYS = (
    "nsightful_power_iteration.sqlite",
    "nsysai_h100_2gpu_autograd_nvtx.sqlite",
    "openmp_no_ranges.sqlite",
    "triangular_ca_2023.sqlite",
)
SAID = 2
HTA = """
import json, sys, warnings; warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
said = []
def ask(what):
    try:
        said.append(what())
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}".splitlines()[0][:160])
def temporal():
    row = trace.get_temporal_breakdown(visualize=False).iloc[0]
    return (f"idle {row['idle_time_pctg']} %, compute {row['compute_time_pctg']} %, "
            f"non-compute {row['non_compute_time_pctg']} %")
def idle():
    rows = trace.get_idle_time_breakdown(visualize=False)[0].groupby("idle_category").idle_time.sum()
    return "idle by cause: " + ", ".join(f"{k} {100 * v / rows.sum():.0f} %" for k, v in rows.items())
ask(temporal); ask(idle)
print(json.dumps(said))
"""


def ours(path: Path) -> list[str]:
    command = Path(sys.executable).with_name("llm-perf")
    return [str(command), "analyze", str(path), "--json"]


def said_by_us(out: str) -> list[str]:
    found = json.loads(out)
    gpu = found["gpu"]
    busy = (
        f"GPU busy {100 * gpu['busy_ns'] / gpu['span_ns']:.1f} % of {gpu['span_ns'] / 1e6:,.1f} ms"
        if gpu["span_ns"]
        else ""
    )
    findings = [
        one["title"] + (f" (at most {one['max_gain']:.2f}x)" if one["max_gain"] else "") for one in found["findings"]
    ]
    return [busy, *(findings[:SAID] or ["nothing to change stands out"])]


def said_by_nsys_ai(out: str) -> list[str]:
    """Its findings, the most severe first as it lists them; what it reports alongside them is around the JSON."""
    found, _ = json.JSONDecoder().raw_decode(out[out.index("{\n") :])
    rows = found.get("findings", [])
    return [f"{row.get('severity', '')}: {row.get('label') or row.get('title')}" for row in rows[: SAID + 1]] or [
        "nothing"
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("--hta", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--nsys-ai", help="the command nsys-ai")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (*TORCH, *NSYS):
            path = unpacked(args.captures, name, Path(folder))
            if path is None:
                missing.append(name)
                continue
            rows.append({"capture": name, "tool": "llm-perf", **answer(ours(path), said_by_us)})
            if name in TORCH and args.hta:
                command = [args.hta, "-c", HTA, str(path)]
                rows.append({"capture": name, "tool": "HolisticTraceAnalysis", **answer(command, last_line)})
            if name in NSYS and args.nsys_ai:
                command = [args.nsys_ai, "diagnose", str(path), "--format", "json"]
                rows.append({"capture": name, "tool": "nsys-ai", **answer(command, said_by_nsys_ai)})
    result = {"versions": versions(args.hta, args.nsys_ai), "missing": missing, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2, ensure_ascii=False))
    return 1 if missing else 0


def unpacked(folder: Path, name: str, scratch: Path) -> Path | None:
    """A copy that a tool may write alongside; None where the capture is not there."""
    for suffix in ("", ".xz"):
        packed = folder / f"{name}{suffix}"
        if packed.is_file():
            data = packed.read_bytes()
            (scratch / name).write_bytes(lzma.decompress(data) if suffix else data)
            return scratch / name
    return None


def answer(command: list[str], read: Any) -> dict[str, Any]:
    outcome = outcome_of(command)
    times = {"seconds": round(outcome.seconds, 2), "cpu_seconds": round(outcome.cpu_seconds, 2)}
    try:
        said = read(outcome.out)
    except (ValueError, KeyError, IndexError) as error:
        said = [f"no answer ({type(error).__name__})"]
    return {**times, "peak_mb": round(outcome.peak_mb), "says": said}


def last_line(out: str) -> Any:
    return json.loads(out.strip().splitlines()[-1])


def versions(hta: str | None, nsys_ai: str | None) -> dict[str, str]:
    wanted = {
        "HolisticTraceAnalysis": hta,
        "nsys-ai": None if nsys_ai is None else str(Path(nsys_ai).with_name("python")),
    }
    show = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    return {
        name: subprocess.run([python, "-c", show, name], capture_output=True, text=True, check=False).stdout.strip()
        for name, python in wanted.items()
        if python is not None
    }


if __name__ == "__main__":
    sys.exit(main())
