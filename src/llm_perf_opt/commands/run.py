"""The command `llm-perf run`: any program through every stage this machine has, one report."""

import fcntl
import os
import shlex
import shutil
import stat
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from llm_perf_opt.core.names import HOST_SAMPLES, NCU, NSYS, TORCH_PROFILER
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.profiling.vendor.launch import quote

HELP = """\
llm-perf run [OVERRIDE ...] -- PROGRAM [ARGUMENT ...]
llm-perf run --attach PID [--duration 20s]

Runs your program: once without a profiler for its times, then sampled,
under torch.profiler (Python programs) and under nsys, where this machine has
them; one run directory, one report. The first two passes give the answer.

`--` may be left out before a program that has no `=` in its name: run x.py.
--attach samples a running process: llm-perf run --attach 1 --help.

examples:
  llm-perf run -- python my_script.py --steps 2
  llm-perf run model=llama_tiny -- python my_script.py
  llm-perf run pipeline.nsys.enable=false -- python my_script.py
  llm-perf run pipeline.nsys.delay_s=1 pipeline.nsys.duration_s=2 -- \\
      python my_script.py

  model=NAME           the model it runs: bounds, utilisation and waterfall
  workload.duration_s  ends a program that does not end by itself
  --nsys, --ncu, --torch, --host, and --no-nsys …
                       switch a profiler on or off; ncu is off by default
  --open               opens the report after the run
  --json               prints the result (docs/schemas/run_result.schema.json)

The program gets no standard input. To give it a file:
llm-perf run -- sh -c 'python my_script.py < FILE'

Arguments before `--` are overrides, as in `llm-perf profile`; run is that
command with workload.command set.
"""
# What a flag switches.
TOOLS = {"nsys": NSYS, "ncu": NCU, "torch": TORCH_PROFILER, "host": HOST_SAMPLES}
NCU_LEFT_OUT = (
    "ncu is left out: it replays every kernel, which takes longer than most programs; --ncu measures the kernels in "
    "which nsys found the time"
)


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    if any(word.partition("=")[0] == "--attach" for word in words):
        from llm_perf_opt.commands.attach import main as attach

        return attach(words)
    if "--" not in words and (not words or {"-h", "--help"} & set(words)):
        print(HELP, end="")
        return EXIT_OK
    given, command = split_command(words)
    if {"-h", "--help"} & set(given):
        print(HELP, end="")
        return EXIT_OK
    given, asked = tool_flags(given)
    refuse_input(sys.__stdin__, command)
    from llm_perf_opt.commands.profile import main as profile

    missing = [tool for tool in (NSYS, NCU) if not (shutil.which(tool) is not None and _has_gpu())]
    for tool in missing:
        if tool not in asked and not any(word.startswith(f"pipeline.{tool}.enable=") for word in given):
            print(f"INFO: {tool} is left out: {_why_not(tool)}", file=sys.stderr)
    if NCU not in missing and NCU not in asked and not any(word.startswith("pipeline.ncu.enable=") for word in given):
        print(f"INFO: {NCU_LEFT_OUT}", file=sys.stderr)
    implied = implied_overrides(given, command, missing=missing)
    return profile(given, implied=[*implied, *(f"pipeline.{tool}.enable={on}" for tool, on in asked.items())])


def tool_flags(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Words without `--nsys`, `--no-ncu` and the like, and the stages they switch: `true` or `false`."""
    flags = {f"--{short}": (stage, "true") for short, stage in TOOLS.items()}
    flags |= {f"--no-{short}": (stage, "false") for short, stage in TOOLS.items()}
    asked = dict(flags[word] for word in given if word in flags)
    return [word for word in given if word not in flags], asked


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides and the program: at the first `--`, else from the first word that is neither override nor flag."""
    if "--" in words:
        place = words.index("--")
        given, command = list(words[:place]), list(words[place + 1 :])
    else:
        place = next((n for n, word in enumerate(words) if not _is_setting(word)), len(words))
        given, command = list(words[:place]), list(words[place:])
    if not command:
        example = "llm-perf run -- python my_script.py"
        raise ConfigError(f"run: no program given (got {' '.join(words)!r}), put it after `--`: {example}")
    return given, _with_interpreter(command)


def _is_setting(word: str) -> bool:
    """An override of Hydra (`key=value`, `+key=value`, `~key`) or a flag."""
    return word.startswith(("-", "~", "+")) or ("=" in word and "/" not in word.partition("=")[0])


def _with_interpreter(command: list[str]) -> list[str]:
    """A Python script that cannot be started itself, behind the Python that is on PATH."""
    script = Path(command[0])
    if script.suffix != ".py" or not script.is_file() or os.access(script, os.X_OK):
        return command
    python = "python" if shutil.which("python") else sys.executable
    print(f"INFO: {script} is run as {python} {script}", file=sys.stderr)
    return [python, *command]


def refuse_input(stream: IO[str] | None, command: Sequence[str]) -> None:
    """Refuse standard input that holds data: the program runs several times, always without input."""
    if stream is None or stream.closed or not _holds_data(stream.fileno()):
        return
    again = shlex.join(command)
    raise ConfigError(
        "run: standard input holds data, and the program would get none of it: it is run several times, each time with "
        f"an empty input. Have it read a file: llm-perf run -- sh -c {shlex.quote(f'{again} < FILE')}; "
        f"or leave its input empty: llm-perf run -- {again} < /dev/null"
    )


def _holds_data(number: int) -> bool:
    """Whether a file or a pipe has something to be read right now; a terminal may always have."""
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            return os.lseek(number, 0, os.SEEK_CUR) < os.fstat(number).st_size
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder) > 0
    except OSError:
        # Closed, or of a kind that cannot say: then it is as good as empty.
        return False
    return False


def implied_overrides(given: Sequence[str], command: Sequence[str], *, missing: Sequence[str]) -> list[str]:
    """What `run` stands for: every stage that can work here but ncu; bounds of the model named, or found in it."""
    on = [f"pipeline.{NSYS}.enable={'false' if NSYS in missing else 'true'}", f"pipeline.{NCU}.enable=false"]
    return [
        f"workload.command={quote(list(command))}",
        "pipeline.static_analysis.enable=true",
        f"pipeline.static_analysis.find_model={'false' if declares_model(given) else 'true'}",
        "pipeline.torch_profiler.enable=true",
        "pipeline.host_samples.enable=true",
        *on,
    ]


def declares_model(overrides: Sequence[str]) -> bool:
    """Whether the user named the model: `model=…`, or a key of it."""
    return any(word.lstrip("+").startswith(("model=", "model.")) for word in overrides)


def _why_not(tool: str) -> str:
    if shutil.which(tool) is None:
        return "it is not on PATH"
    return "this machine has no GPU" + (" (--nsys records its OS calls and NVTX ranges)" if tool == NSYS else "")


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None
