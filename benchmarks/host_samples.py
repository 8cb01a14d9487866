"""What sampling costs a program: its wall time in the sampled pass (py-spy and the look from inside) over that alone.

    python benchmarks/host_samples.py [--rounds 5] [--json FILE]

Runs alternate. `loop`: Python alone; `threads`: with 30 idle threads; `numpy`: array work that releases the GIL.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llm_perf_opt.profiling.observed import RATE_HZ as LOOKS_HZ
from llm_perf_opt.profiling.observed import observing_environment
from llm_perf_opt.profiling.sampled import find_sampler

RATE_HZ = 200
LOOP = "total = 0\nfor number in range(40_000_000):\n    total += number % 7\n"
PROGRAMS = {
    "loop": LOOP,
    "threads": "import threading\nevent = threading.Event()\n"
    "for _ in range(30):\n    threading.Thread(target=event.wait, daemon=True).start()\n" + LOOP,
    "numpy": "import numpy as np\nvalues = np.random.default_rng(0).standard_normal(1_000_000)\n"
    "for _ in range(120):\n    np.sort(values)\n",
}


def timed(argv: list[str], env: dict[str, str]) -> float:
    start = time.monotonic()
    subprocess.run(argv, env=env, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.monotonic() - start


def own_time(text: str, out: Path, sampler: str | None) -> float:
    """The program's own clock, from its first line to its last: starting the sampler is no cost to the program."""
    begin = "import time\nSTART = time.monotonic()\n"
    wrapped = f"{begin}{text}\nopen({str(out)!r}, 'w').write(str(time.monotonic() - START))\n"
    argv = [sys.executable, "-c", wrapped]
    env = dict(os.environ)
    if sampler is not None:
        env |= observing_environment(out.parent, stacks=False, environ=os.environ)
        options = ["--format", "raw", "--threads", "--subprocesses", "--nonblocking", "--idle", "--full-filenames"]
        argv = [sampler, "record", *options, "--rate", str(RATE_HZ), "-o", f"{out}.txt", "--", *argv]
    timed(argv, env)
    return float(out.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = find_sampler()
    if found is None:
        parser.error("py-spy is not installed: pip install py-spy")
    result: dict[str, object] = {"sampler": found[1], "rate_hz": RATE_HZ, "looks_hz": LOOKS_HZ, "rounds": given.rounds}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "time"
        for name, text in PROGRAMS.items():
            pairs = [(own_time(text, out, None), own_time(text, out, found[0])) for _ in range(given.rounds)]
            ratios = sorted(behind / alone for alone, behind in pairs)
            row = {
                "alone_s": round(statistics.median(alone for alone, _ in pairs), 3),
                "ratio": round(statistics.median(ratios), 3),
                "lowest": round(ratios[0], 3),
                "highest": round(ratios[-1], 3),
            }
            result[name] = row
            spread = f"{row['lowest']} to {row['highest']}"
            print(f"{name:8} {row['alone_s']:.2f} s alone, {row['ratio']:.3f} behind it ({spread})")
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
