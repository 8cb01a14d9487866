"""Waits for a child process that computes in Python."""

import subprocess
import sys

CHILD = """
import time
def convert(end):
    count = 0
    while time.monotonic() < end:
        count += 1
convert(time.monotonic() + 2)
"""


def export() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True)


export()
