"""Waits for a file that another process has locked."""

import fcntl
import os
import subprocess
import sys
import tempfile
from typing import IO

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
HOLDER = """
import fcntl, sys, time
with open(sys.argv[1]) as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print(flush=True)
    time.sleep(float(sys.argv[2]))
"""


def read_cache(cache: IO[bytes]) -> bytes:
    fcntl.flock(cache, fcntl.LOCK_EX)
    return cache.read()


with tempfile.NamedTemporaryFile() as cache:
    command = [sys.executable, "-c", HOLDER, cache.name, str(SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        read_cache(cache.file)
