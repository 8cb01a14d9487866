"""The command `llm-perf run --attach PID`: a process that runs already, sampled for a while."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ConfigError

HELP = """\
llm-perf run --attach PID [--duration 20s] [--rate 100] [--out DIR]

Samples the stacks of a Python process that runs already, of all its threads and
children, and the GPU's utilisation; says where the time goes and what it waits
for. The process continues as before.

  --duration 20s   how long: 90s, 10m or 1h; 20s by default
  --rate 100       samples a second, 1 to 1000
  --out DIR        writes host_samples.json, stacks.txt and diagnosis.json there
"""
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
MOST_S, MOST_HZ = 24 * 3600.0, 1000
SHOWN = 4
EXAMPLE = "llm-perf run --attach 4242 --duration 20s"


@dataclass(frozen=True, kw_only=True)
class AttachOptions:
    """What the command line asks for."""

    pid: int
    duration_s: float = 20.0
    rate_hz: int = 100
    out: Path | None = None


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return EXIT_OK
    options = parse_options(argv)
    from llm_perf_opt.commands.attach_answer import attach

    return EXIT_OK if attach(options) else EXIT_FAILED


def parse_options(argv: Sequence[str]) -> AttachOptions:
    """`--attach PID` and its options, each as `--name value` or `--name=value`."""
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        name, sign, value = words.pop(0).partition("=")
        if name not in ("--attach", "--duration", "--rate", "--out"):
            raise ConfigError(
                f"run: {name!r} does not go with --attach, allowed: --duration, --rate, --out; example: {EXAMPLE}"
            )
        if not sign:
            if not words:
                raise ConfigError(f"run: {name} has no value; example: {EXAMPLE}")
            value = words.pop(0)
        given[name] = value
    if not given.get("--attach", "").isdecimal():
        raise ConfigError(
            f"run: --attach must be the number of a process (got {given.get('--attach', '')!r}): {EXAMPLE}"
        )
    rate = given.get("--rate", "100")
    if not rate.isdecimal() or not 1 <= int(rate) <= MOST_HZ:
        raise ConfigError(f"run: --rate must be between 1 and {MOST_HZ} (got {rate!r})")
    return AttachOptions(
        pid=int(given["--attach"]),
        duration_s=read_duration(given.get("--duration", "20s")),
        rate_hz=int(rate),
        out=Path(given["--out"]) if "--out" in given else None,
    )


def read_duration(text: str) -> float:
    """Seconds of `90s`, `10m` or `1h`."""
    found = DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found is not None else 0.0
    if not 0 < seconds <= MOST_S:
        raise ConfigError(f"run: invalid duration {text!r}: use 90s, 10m or 1h")
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
