"""A stand-in for nsys where none is installed: runs the workload and speaks nsys's words; `install` puts it on a PATH.

Its export holds one NVTX range and no kernel: what the real tool leaves on a machine without a GPU.
"""

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path


def install(folder: Path) -> None:
    """Write the executable `nsys` into folder."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "nsys"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def main(argv: list[str]) -> int:
    if argv == ["--version"]:
        print("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
        return 0
    output = next(a.partition("=")[2] for a in argv if a.startswith("--output="))
    if argv[0] == "export":
        write_export(Path(output))
        return 0
    program = next(i for i, a in enumerate(argv[1:], start=1) if not a.startswith("-"))
    code = subprocess.run(argv[program:], check=False).returncode
    report = Path(f"{output}.nsys-rep")
    report.write_bytes(b"a report")
    print(f"Generating '/tmp/nsys-report-1.qdstrm'\n[1/1] [100%] {report.name}\nGenerated:\n    {report}")
    return code


def write_export(path: Path) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.executescript(
            """
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3');
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
              color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
              uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
              floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
            INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)
              VALUES (10, 90, 59, 'decode', 7, 0);
            """
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
