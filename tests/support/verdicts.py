"""The table of verdicts: for every available capture its scope, its first two causes, their share and promise.

`python -m tests.support.verdicts` prints what differs from tests/data/verdicts.tsv, `--write` replaces the rows of the
available captures. Captures other projects published are not part of this repository; their rows are checked where
they are.
"""

import gzip
import lzma
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.capture.readers.kinds import kind_of
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.pipeline.analyze.read import read_captures
from tests.support.fixtures_dir import REPO, shared_fixtures

TABLE = REPO / "tests" / "data" / "verdicts.tsv"
HEAD = ("capture", "verdict", "scope", "first", "share %", "gain", "second", "share %", "gain")
OWN = REPO / "tests" / "data" / "h200"
FOLDERS = ("wild", "wild3", "planted", "h200")


def captures() -> Iterator[tuple[str, Path]]:
    """Every available capture, by the name it has in the table."""
    for path in sorted(OWN.iterdir()):
        yield f"tests/{path.name}", path
    shared = shared_fixtures()
    for folder in FOLDERS if shared is not None else ():
        for path in sorted((shared / folder).iterdir()) if shared is not None else ():
            if _is_capture(path):
                yield f"{folder}/{path.name}", path


def _is_capture(path: Path) -> bool:
    """Of the files others published, what holds one program: neither a report for nsys nor a result of a load."""
    name = path.name.removesuffix(".xz").removesuffix(".gz")
    is_one = name.endswith((".sqlite", ".db", "ncu_raw.csv", ".json"))
    return is_one and not name.startswith("s12_")


def analyze(path: Path) -> CaptureAnalysis:
    """A capture as `llm-perf analyze` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.name.removesuffix(".xz")
        if path.suffix == ".xz":
            with lzma.open(path) as packed, local.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            shutil.copy(path, local)
            if path.suffix == ".gz":
                with gzip.open(local) as file:
                    assert file.read(1)
        return read_captures([local], [kind_of(local)], Path(folder) / "scratch").analysis


def row(name: str, path: Path) -> tuple[str, ...]:
    """One line of the table."""
    try:
        analysis = analyze(path)
    except ProfilingError:
        return (name, "refused", *["-"] * (len(HEAD) - 2))
    diagnosis = analysis.diagnosis
    assert diagnosis
    cells: list[str] = []
    for finding in diagnosis.claims[:2]:
        share = "-" if finding.share is None else f"{100 * finding.share:.1f}"
        cells += [finding.rule, share, "-" if finding.max_gain is None else f"{finding.max_gain:.2f}"]
    cells += ["-"] * (6 - len(cells))
    scope = diagnosis.claims[0].scope if diagnosis.claims else "-"
    return (name, diagnosis.verdict.kind, scope, *cells)


def read_table() -> dict[str, tuple[str, ...]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:] if TABLE.is_file() else []
    return {line.split("\t")[0]: tuple(line.split("\t")) for line in lines}


def main() -> int:
    before = read_table()
    now = {name: row(name, path) for name, path in captures()}
    changed = {name: found for name, found in now.items() if before.get(name) != found}
    for name, found in changed.items():
        print("- " + "\t".join(before.get(name, (name, "(new)"))))
        print("+ " + "\t".join(found))
    if "--write" in sys.argv:
        rows = sorted({**before, **now}.values())
        TABLE.write_text("\n".join("\t".join(line) for line in (HEAD, *rows)) + "\n", encoding="utf-8")
    print(f"{len(now)} captures, {len(changed)} rows differ")
    return int(bool(changed) and "--write" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
