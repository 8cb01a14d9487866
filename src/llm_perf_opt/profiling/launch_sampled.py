"""Runs a program and writes down how it ended: `python launch_sampled.py FILE PROGRAM …`; of the standard library alone.

A sampler that starts a program ends well whatever the program does, so this stands between the two.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    file, *command = sys.argv[1:]
    start = time.monotonic()
    started = {"launcher": os.getpid()}
    Path(file).write_text(json.dumps(started), encoding="ascii")
    code = subprocess.run(command, check=False).returncode
    wall_s = time.monotonic() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = {**started, "exit_code": code, "wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime}
    Path(file).write_text(json.dumps(ended), encoding="ascii")
    return code


if __name__ == "__main__":
    sys.exit(main())
