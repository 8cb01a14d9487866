"""What sampling costs a program: its wall time in the sampled pass (py-spy and the in-process sampler) over that alone.

    python benchmarks/host_samples.py [--rounds 5] [--json FILE]

Runs alternate. On a busy machine wall times say little; processor time, of all threads of the program, says what the
look from inside takes from it. `loop`: Python alone; `threads`: with 30 idle threads; `numpy`: array work that releases
the GIL.
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
LOOP = "total = 0\nfor number in range(20_000_000):\n    total += number % 7\n"
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


def own_times(text: str, out: Path, sampler: str | None) -> tuple[float, float]:
    """The program's own wall and processor time, from its first line to its last, without the start of a sampler."""
    begin = "import time\nSTART = time.monotonic(), time.process_time()\n"
    end = "time.monotonic() - START[0], time.process_time() - START[1]"
    wrapped = f"{begin}{text}\nopen({str(out)!r}, 'w').write(' '.join(map(str, ({end}))))\n"
    argv = [sys.executable, "-c", wrapped]
    env = dict(os.environ)
    if sampler is not None:
        env |= observing_environment(out.parent, stacks=False, environ=os.environ)
        options = ["--format", "raw", "--threads", "--subprocesses", "--nonblocking", "--idle", "--full-filenames"]
        argv = [sampler, "record", *options, "--rate", str(RATE_HZ), "-o", f"{out}.txt", "--", *argv]
    timed(argv, env)
    wall, processor = out.read_text().split()
    return float(wall), float(processor)


def ratios(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """The median ratio of a time in the sampled pass to that alone, with the lowest and the highest of all rounds."""
    found = sorted(behind / alone for alone, behind in pairs)
    return {
        "alone_s": round(statistics.median(alone for alone, _ in pairs), 3),
        "ratio": round(statistics.median(found), 3),
        "lowest": round(found[0], 3),
        "highest": round(found[-1], 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = find_sampler()
    if found is None:
        parser.error("py-spy is not installed: pip install py-spy")
    result: dict[str, object] = {"sampler": found[1], "rate_hz": RATE_HZ, "looks_hz": LOOKS_HZ, "rounds": given.rounds}
    # Of the machine before the first round: with more than its processors, wall times are those of its other programs.
    result["load"] = round(os.getloadavg()[0], 1)
    result["processors"] = os.cpu_count()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "time"
        for name, text in PROGRAMS.items():
            rounds = [(own_times(text, out, None), own_times(text, out, found[0])) for _ in range(given.rounds)]
            row = {
                key: ratios([(alone[n], behind[n]) for alone, behind in rounds])
                for n, key in enumerate(("wall", "processor"))
            }
            result[name] = row
            for key, one in row.items():
                spread = f"{one['lowest']} to {one['highest']}"
                print(f"{name:8} {key:9} {one['alone_s']:6.2f} s alone, {one['ratio']:.3f} of it sampled ({spread})")
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
