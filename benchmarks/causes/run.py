"""Scores profilers on programs with one planted cause each: does the first answer name the cause and its line?

    python benchmarks/causes/run.py [NAME ...] [--no-peers] [--json FILE]

`llm-perf run` is asked for the id of the cause and the owner in the title of its first finding. A peer has no ids: it
scores where the heaviest function of its own output, or the code around it, is the planted one. Peers that are not
installed are left out (`pip install pyinstrument`; py-spy comes with llm-perf).
"""

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
TIMEOUT_S = 300
PEERS = ("pyinstrument", "py-spy")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program and its expected answer."""

    name: str
    cause: str
    owner: str
    needs: str = ""
    peer: str = ""
    quick: bool = False
    device: str = "cpu"

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def function(self) -> str:
        """What a peer's output must name."""
        return self.peer or self.owner.split("()")[0]


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
    """The first finding of `llm-perf run` and its diagnosis.json; profilers are off, they add nothing on a CPU."""
    run_dir = folder / f"llm-perf-{planted.name}"
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "run", f"hydra.run.dir={run_dir}"]
    argv += ["pipeline.nsys.enable=false", "pipeline.ncu.enable=false", "pipeline.torch_profiler.enable=false"]
    start = time.monotonic()
    output = _run([*argv, *overrides, "--", sys.executable, str(planted.program)])
    seconds = time.monotonic() - start
    path = run_dir / "diagnosis.json"
    if not path.is_file():
        return Answer(said=f"no diagnosis.json: {output[-200:]}", is_right=False, seconds=seconds)
    diagnosis = json.loads(path.read_bytes())
    verdict = diagnosis["verdict"]
    first = next((claim for claim in diagnosis["claims"] if claim["rule"] == verdict.get("rule")), None)
    said = verdict["text"] if first is None else f"{first['rule']}: {first['title']}"
    is_right = first is not None and first["rule"] == planted.cause and planted.owner in first["title"]
    return Answer(said=said, is_right=is_right, seconds=seconds)


def ask_py_spy(planted: Planted, folder: Path) -> Answer:
    """The function with most samples of its own, as its flame graph shows it; threads that wait are left out."""
    raw = folder / f"py-spy-{planted.name}.txt"
    start = time.monotonic()
    _run(["py-spy", "record", "-s", "-f", "raw", "-o", str(raw), "--", sys.executable, str(planted.program)])
    seconds = time.monotonic() - start
    own: Counter[str] = Counter()
    text = raw.read_text(encoding="utf-8").rstrip("\n") if raw.is_file() else ""
    # A command line may hold line breaks.
    for line in re.split(r"(?<=\d)\n(?=process \d+:)", text) if text else ():
        stack, _, count = line.rpartition(" ")
        frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
        # The planted function counts also where a library it called stands below it.
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
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {TIMEOUT_S} s"
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="programs, all by default")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the answers here")
    given = parser.parse_args()
    planted = [row for row in load_planted() if not given.names or row.name in given.names]
    unknown = set(given.names) - {row.name for row in planted}
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))} (see {HERE / 'expected.toml'})")
    tools: dict[str, Callable[[Planted, Path], Answer]] = {"llm-perf run": ask_llm_perf}
    if not given.no_peers and importlib.util.find_spec("pyinstrument") is not None:
        tools["pyinstrument"] = ask_pyinstrument
    if not given.no_peers and shutil.which("py-spy") is not None:
        tools["py-spy"] = ask_py_spy
    found: dict[str, dict[str, Answer]] = {}
    with tempfile.TemporaryDirectory(prefix="causes-") as scratch:
        for row in planted:
            if row.needs and importlib.util.find_spec(row.needs) is None:
                print(f"{row.name}: left out, {row.needs} is not installed")
                continue
            found[row.name] = {tool: ask(row, Path(scratch)) for tool, ask in tools.items()}
            for tool, answer in found[row.name].items():
                mark = "right" if answer.is_right else "WRONG"
                print(f"{row.name:14} {tool:13} {mark:6} {answer.seconds:5.1f} s  {answer.said}", flush=True)
    for tool in tools:
        right = sum(answers[tool].is_right for answers in found.values())
        print(f"{tool}: {right} of {len(found)}")
    if given.json is not None:
        document = {name: {tool: asdict(answer) for tool, answer in row.items()} for name, row in found.items()}
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
