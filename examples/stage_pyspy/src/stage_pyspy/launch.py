"""Runs a program and writes down how it ended: `python launch.py FILE PROGRAM …`.

py-spy exits with 0 regardless of the exit code of the program it runs, so this is between the two.
"""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    ending, *command = sys.argv[1:]
    code = subprocess.run(command, check=False).returncode
    Path(ending).write_text(str(code), encoding="ascii")
    return code


if __name__ == "__main__":
    sys.exit(main())
