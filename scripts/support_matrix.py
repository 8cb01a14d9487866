"""Writes docs/support.md from docs/support.json, and proves its rows by running their tests.

python scripts/support_matrix.py               write the page
python scripts/support_matrix.py --check       exit code 1 if the page is stale or names a test that is not there
python scripts/support_matrix.py prove NAME…   run the tests of these rows; what passes gets today's date and, of what
                                               is installed here, its version
"""

import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "docs/support.json", ROOT / "docs/support.md"
NEVER = "not since this table exists"
INTRODUCTION = """# Supported versions

Each row was proved by the test it names: with the tool itself, or with files it wrote that are stored with the tests.
The date is the last run of that test for this table; CI runs the tests of what it can install on every change. Other
versions are tried, not refused: an export of an unknown schema is read as far as its tables are known, and the result
says so. This page is generated: `python scripts/support_matrix.py`.
"""


def render(rows: Sequence[dict[str, str]], hazards: Sequence[dict[str, str]]) -> str:
    lines = [INTRODUCTION, "| what | version | proved with | last proof | test |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row['what']} | {row['version']} | {row['with']} | {row['proved'] or NEVER} | `{row['test']}` |"
        for row in rows
    ]
    lines += [
        "",
        "## Known hazards of newer tools",
        "",
        "| what happens | what this does | what to do |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {row['what']} | {row['here']} | {row['advice']} |" for row in hazards]
    return "\n".join(lines) + "\n"


def gone(rows: Sequence[dict[str, str]]) -> list[str]:
    """Rows whose test is not there."""
    found = []
    for row in rows:
        file, _, name = row["test"].partition("::")
        path = ROOT / "tests" / file
        if not path.is_file() or (name and f"def {name.partition('[')[0]}(" not in path.read_text(encoding="utf-8")):
            found.append(f"{row['what']}: no test {row['test']}")
    return found


def installed(what: str) -> str | None:
    """The version of it on this machine; None for what is proved with stored files."""
    if what == "Python":
        return platform.python_version()
    if what in ("nsys", "ncu"):
        try:
            said = subprocess.run([what, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.findall(r"[Vv]ersion (\d+(?:\.\d+)+)", said)
        return found[-1] if found else None
    try:
        return importlib.metadata.version(what).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def prove(row: dict[str, str]) -> bool:
    """Run the test of a row; on success the row has today's date."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-o", "addopts=--strict-markers", f"tests/{row['test']}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = done.returncode == 0 and re.search(r"\d+ passed", done.stdout) is not None
    if passed:
        row["proved"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        if row["with"] == "the tool":
            row["version"] = installed(row["what"]) or row["version"]
    print(f"{row['what']} {row['version']}: {'proved' if passed else 'NOT proved'} by {row['test']}")
    return passed


def main(args: Sequence[str]) -> int:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    code = 0
    if args[:1] == ["prove"]:
        chosen = [row for row in data["rows"] if row["what"] in args[1:] or args[1:] == ["all"]]
        proved = [prove(row) for row in chosen]
        code = 0 if proved and all(proved) else 1
        DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = render(data["rows"], data["hazards"])
    if args[:1] == ["--check"]:
        found = gone(data["rows"])
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            found.append("docs/support.md: stale; run: python scripts/support_matrix.py")
        print("\n".join(found) if found else "docs/support.md is what docs/support.json says")
        return 1 if found else 0
    PAGE.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
