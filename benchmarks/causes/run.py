"""Scores profilers on programs with one planted cause each: does the first answer name the cause and its line?

    python benchmarks/causes/run.py [NAME ...] [--device cuda] [--peers] [--json FILE] [--keep FOLDER]
        [--budget SECONDS]

`llm-perf run` is requested the id of the cause and the owner in the title of its first finding; `llm-perf analyze` for
the same of the torch trace of that run, which programs with torch have. A peer has no ids: it scores where the heaviest
function of its own output, or the code around it, is the planted one. Peers that are not installed are left out and
named (`pip install pyinstrument HolisticTraceAnalysis`; py-spy comes with llm-perf). Without `--device cuda` the
programs for a GPU are left out; with it they are run where there is one. With `--budget`, a program that would not
be done in the time left, judged by the longest so far, is left out and named.
"""

import argparse
import importlib.util
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from llm_perf_opt.system.py_spy import find_sampler

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# For one tool and program, and for its end after it was interrupted.
TIMEOUT_S, ENDS_S = 300, 20
RUN, ANALYZE = "llm-perf run", "llm-perf analyze"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program and its expected answer."""

    name: str
    cause: str
    owner: str
    needs: str = ""
    peer: str = ""
    also: list[str] = field(default_factory=list)
    quick: bool = False
    device: str = "cpu"

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def uses_torch(self) -> bool:
        return self.device == "cuda" or self.needs == "torch"

    @property
    def function(self) -> str:
        """What a peer's output must name; some leave out the class of a method."""
        return self.peer or self.owner.split("()")[0].rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a tool said first, whether that is the planted cause, and how long the tool took."""

    said: str
    is_right: bool
    seconds: float


def load_planted() -> tuple[Planted, ...]:
    rows = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    return tuple(Planted(name=name, **row) for name, row in rows.items())


def ask_llm_perf(planted: Planted, folder: Path, *overrides: str) -> Answer:
    """The first finding of `llm-perf run`; on a CPU torch's profiler is the only one, nsys has nothing to add."""
    run_dir = _run_dir(planted, folder)
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "run", f"hydra.run.dir={run_dir}"]
    argv += [] if planted.device == "cuda" else ["pipeline.nsys.enable=false"]
    argv += [f"pipeline.torch_profiler.enable={'true' if planted.uses_torch else 'false'}"]
    return _timed([*argv, *overrides, "--", sys.executable, str(planted.program)], run_dir, planted)


def ask_analyze(planted: Planted, folder: Path) -> Answer:
    """The first finding of `llm-perf analyze` on the trace of torch.profiler that the run left."""
    trace = _run_dir(planted, folder) / "torch_profiler" / "trace.json.gz"
    if not trace.is_file():
        return Answer(said="the run left no trace of torch.profiler", is_right=False, seconds=0.0)
    out = folder / f"analyze-{planted.name}"
    return _timed([sys.executable, "-m", "llm_perf_opt.cli", "analyze", str(trace), "-o", str(out)], out, planted)


def _run_dir(planted: Planted, folder: Path) -> Path:
    return folder / f"llm-perf-{planted.name}"


def _timed(argv: list[str], out: Path, planted: Planted) -> Answer:
    start = time.monotonic()
    output = _run(argv)
    seconds = time.monotonic() - start
    path = out / "diagnosis.json"
    if not path.is_file():
        return Answer(said=f"no diagnosis.json: {output[-200:]}", is_right=False, seconds=seconds)
    diagnosis = json.loads(path.read_bytes())
    verdict = diagnosis["verdict"]
    first = next((claim for claim in diagnosis["claims"] if claim["rule"] == verdict.get("rule")), None)
    said = verdict["text"] if first is None else f"{first['rule']}: {first['title']}"
    causes = {planted.cause, *planted.also}
    is_right = first is not None and first["rule"] in causes and planted.owner in first["title"]
    return Answer(said=said, is_right=is_right, seconds=seconds)


def ask_py_spy(planted: Planted, folder: Path) -> Answer:
    """The function with most samples of its own, as its flame graph shows it; threads that wait are left out."""
    raw = folder / f"py-spy-{planted.name}.txt"
    start = time.monotonic()
    sampler = find_sampler()
    _run(
        [
            sampler[0] if sampler is not None else "py-spy",
            "record",
            "-s",
            "-f",
            "raw",
            "-o",
            str(raw),
            "--",
            sys.executable,
            str(planted.program),
        ]
    )
    seconds = time.monotonic() - start
    own: Counter[str] = Counter()
    text = raw.read_text(encoding="utf-8").rstrip("\n") if raw.is_file() else ""
    # A command line may hold line breaks.
    for line in re.split(r"(?<=\d)\n(?=process \d+:)", text) if text else ():
        stack, _, count = line.rpartition(" ")
        frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
        # The planted function counts also where a library it called is below it.
        inner = next((f for f in reversed(frames) if f"{planted.name}.py" in f), frames[-1] if frames else "nothing")
        is_import = planted.peer == "torch" and "torch/__init__.py" in stack
        own["torch" if is_import else inner.partition(" (")[0]] += int(count)
    said = own.most_common(1)[0][0] if own else "no samples"
    return Answer(said=said, is_right=planted.function in said, seconds=seconds)


def ask_pyinstrument(planted: Planted, folder: Path) -> Answer:
    """The function of the program, or what it imports, with most time of its own and of libraries below it."""
    out = folder / f"pyinstrument-{planted.name}.json"
    start = time.monotonic()
    _run([sys.executable, "-m", "pyinstrument", "-r", "json", "-o", str(out), str(planted.program)])
    seconds = time.monotonic() - start
    own: Counter[str] = Counter()
    if out.is_file():
        _add(json.loads(out.read_bytes())["root_frame"], "", planted, own)
    said = own.most_common(1)[0][0] if own else "no samples"
    return Answer(said=said, is_right=planted.function in said, seconds=seconds)


def _add(frame: dict, owner: str, planted: Planted, own: Counter[str]) -> None:  # type: ignore[type-arg]
    path = str(frame.get("file_path") or "")
    if path.endswith(f"{planted.name}.py"):
        owner = str(frame["function"])
    elif planted.peer == "torch" and path.endswith("torch/__init__.py"):
        owner = "torch"
    children = frame.get("children") or []
    own[owner] += frame["time"] - sum(child["time"] for child in children)
    for child in children:
        _add(child, owner, planted, own)


def _run(argv: list[str]) -> str:
    """What a tool printed; one that takes too long is interrupted, so that it ends the program it started."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as tool:
        try:
            return tool.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            tool.send_signal(signal.SIGINT)
        try:
            tool.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            tool.kill()
        return f"not done within {TIMEOUT_S} s"


def ask_hta(planted: Planted, folder: Path) -> Answer:
    """The kernel type with most time that Holistic Trace Analysis finds in the run's trace; it names no lines."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found,unused-ignore]

    trace = _run_dir(planted, folder) / "torch_profiler" / "trace.json.gz"
    if not trace.is_file():
        return Answer(said="the run left no trace of torch.profiler", is_right=False, seconds=0.0)
    start = time.monotonic()
    try:
        types, _ = TraceAnalysis(trace_files={0: str(trace)}).get_gpu_kernel_breakdown(visualize=False)
        said = str(types.iloc[0]["kernel_type"]) if len(types) else "no kernels"
    except (ValueError, KeyError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
    is_right = any(word in said.lower() for word in (planted.cause, planted.function) if word)
    return Answer(said=said, is_right=is_right, seconds=time.monotonic() - start)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A profiler, and whether it has something to say of a program."""

    ask: Callable[[Planted, Path], Answer]
    of_traces: bool = False

    def takes(self, planted: Planted) -> bool:
        return planted.uses_torch or not self.of_traces


def find_tools(*, peers: bool) -> dict[str, Tool]:
    """Ours, and those peers that are installed; the others are named."""
    tools = {RUN: Tool(ask=ask_llm_perf), ANALYZE: Tool(ask=ask_analyze, of_traces=True)}
    if not peers:
        return tools
    installed = {
        "pyinstrument": importlib.util.find_spec("pyinstrument") is not None,
        "py-spy": find_sampler() is not None,
        "HTA": importlib.util.find_spec("hta") is not None,
    }
    asks = {
        "pyinstrument": Tool(ask=ask_pyinstrument),
        "py-spy": Tool(ask=ask_py_spy),
        "HTA": Tool(ask=ask_hta, of_traces=True),
    }
    missing = [name for name, is_there in installed.items() if not is_there]
    if missing:
        print(f"left out, not installed: {', '.join(missing)}")
    print("left out, has no command that names one cause of a torch trace: nsys-ai")
    return tools | {name: asks[name] for name, is_there in installed.items() if is_there}


def why_left_out(planted: Planted) -> str | None:
    """What a program needs and this machine has not; None where it can run."""
    if planted.needs and importlib.util.find_spec(planted.needs) is None:
        return f"{planted.needs} is not installed"
    return "there is no CUDA device" if planted.device == "cuda" and not _has_cuda() else None


@cache
def _has_cuda() -> bool:
    code = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="programs, by default all for the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peers", action="store_true", help="ask other profilers too")
    parser.add_argument("--json", type=Path, help="also write the answers here")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep runs with a wrong answer here")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="leave out programs for which no time is left")
    given = parser.parse_args()
    rows = load_planted()
    unknown = set(given.names) - {row.name for row in rows}
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))} (see {HERE / 'expected.toml'})")
    planted = [row for row in rows if row.name in given.names or (not given.names and row.device == given.device)]
    tools = find_tools(peers=given.peers)
    found: dict[str, dict[str, Answer]] = {}
    begun, longest_s = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="causes-") as scratch:
        for row in planted:
            why = why_left_out(row)
            if why is not None:
                print(f"{row.name}: left out, {why}", flush=True)
                continue
            program_begun = time.monotonic()
            left_s = math.inf if given.budget is None else given.budget - (program_begun - begun)
            if left_s < longest_s:
                print(f"{row.name}: left out, {left_s:.0f} s of the budget are left", flush=True)
                continue
            # The run is queried first: analyze and HTA read its trace.
            found[row.name] = {name: tool.ask(row, Path(scratch)) for name, tool in tools.items() if tool.takes(row)}
            longest_s = max(longest_s, time.monotonic() - program_begun)
            for name, answer in found[row.name].items():
                mark = "right" if answer.is_right else "WRONG"
                print(f"{row.name:16} {name:16} {mark:6} {answer.seconds:5.1f} s  {answer.said}", flush=True)
            run_dir = _run_dir(row, Path(scratch))
            is_wrong = not all(answer.is_right for answer in found[row.name].values())
            if given.keep is not None and is_wrong and run_dir.is_dir():
                shutil.copytree(run_dir, given.keep / row.name, dirs_exist_ok=True)
            shutil.rmtree(run_dir, ignore_errors=True)
            if given.json is not None:
                # After every program: a score that is interrupted keeps the answers it has.
                answers_by_program = {
                    name: {tool: asdict(one) for tool, one in row.items()} for name, row in found.items()
                }
                given.json.write_text(json.dumps(answers_by_program, indent=1) + "\n", encoding="utf-8")
    for name in tools:
        asked = [answers[name] for answers in found.values() if name in answers]
        print(f"{name}: {sum(answer.is_right for answer in asked)} of {len(asked)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
