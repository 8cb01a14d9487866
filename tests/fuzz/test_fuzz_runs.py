"""A run with one value of one file changed: `report`, `runs` and `compare` answer, and show no such number."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.cli import main
from tests.fuzz.made_up import SLOWEST, cases
from tests.support.nsys_builder import Export
from tests.unit.commands.test_compare_command import STEADY, run_of

# Written where a value was, as they are: JSON, or what only looks like it.
NUMBERS = ("-98765.4321", "-98765", "0", "NaN", "Infinity", "-Infinity", "1e999", "1e300", str(2**63), "9" * 400)
ODD = (
    *('"text"', "true", "null", "[]", "{}", "[1, [2]]", '{"a": {"b": 1}}', '""', '"12.5"', "1e-300", "9" * 5000),
    *(json.dumps(text) for text in ("\x1b[31mred\x07\u202e", "\x00", "a\nb", "../../etc/passwd", "L" * 100_000)),
    *("[" * deep + "]" * deep for deep in (2_000, 100_000)),
)
MISSING = "(missing)"
MARK = "MARK-OF-THE-CHANGE"
NO_NUMBER = re.compile(r"(?<![\w.-])[-+]?(?:nan|inf|infinity)(?![\w-])", re.IGNORECASE)
REPORTS = ("report.md", "kernels.md", "stakeholder_summary.md")


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Two runs alongside each other; the files of the first that hold values."""

    folder: Path
    texts: dict[str, str]

    @property
    def changed(self) -> Path:
        return self.folder / "runs/changed"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run with the samples of a clean pass, and an analysed capture with its tables and its timeline."""
    folder = tmp_path_factory.mktemp("runs")
    export = Export()
    export.range("prefill", 0, 400)
    export.range("decode", 500, 900)
    for number in range(6):
        export.kernel(f"gemm_{number % 2}", 20 + 120 * number, 90 + 120 * number, number + 1)
    capture = export.write(folder / "capture.sqlite")
    analysed = folder / "analysed"
    words = ["model=llama3_1b", "hardware=h200", "--clean-prefill-ms", "2", "--clean-tpot-ms", "1"]
    code, said = _call("analyze", str(capture), "-o", str(analysed), *words)
    assert code == 0, said
    changed = run_of(folder / "runs/changed", STEADY)
    _join(changed, analysed)
    shutil.copytree(changed, folder / "other")
    kinds = (".json", ".jsonl", ".csv")
    found = [path for path in sorted(changed.rglob("*")) if path.suffix in kinds and path.stat().st_size]
    return Runs(folder=folder, texts={str(path.relative_to(changed)): path.read_text() for path in found})


def _join(run: Path, other: Path) -> None:
    """The stages of another run, and their files, in this one."""
    here, there = (json.loads((path / "manifest.json").read_text()) for path in (run, other))
    names = {stage["name"] for stage in here["stages"]}
    added = [stage for stage in there["stages"] if stage["name"] not in names]
    for stage in added:
        if (other / stage["name"]).is_dir():
            shutil.copytree(other / stage["name"], run / stage["name"])
    (run / "manifest.json").write_text(json.dumps({**here, "stages": [*here["stages"], *added]}))


def _call(*argv: str) -> tuple[int, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    return code, out.getvalue() + err.getvalue()


def _changed_rows(rows: list[list[str]], odd: str, draw: st.DataObject) -> str:
    row = draw.draw(st.sampled_from([row for row in rows if row]))
    place = draw.draw(st.integers(0, len(row) - 1))
    row[place : place + 1] = [] if odd == MISSING else [odd.strip('"')]
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _places(content: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from _places(value, (*path, key))


def _changed_tree(content: Any, odd: str, draw: st.DataObject) -> str:
    """The content as JSON with one value replaced, at any depth."""
    path = draw.draw(st.sampled_from(list(_places(content))))
    place: Any = {"all": content}
    whole = place
    for key in ("all", *path)[:-1]:
        place = place[key]
    last = ("all", *path)[-1]
    if odd == MISSING:
        del place[last]
    else:
        place[last] = MARK
    return json.dumps(whole.get("all")).replace(json.dumps(MARK), odd)


@cases(SLOWEST)
@given(odd=st.sampled_from(NUMBERS) | st.sampled_from((*ODD, MISSING)), draw=st.data())
def test_a_run_with_one_value_changed(runs: Runs, odd: str, draw: st.DataObject) -> None:
    name = draw.draw(st.sampled_from(sorted(runs.texts)))
    text, path = runs.texts[name], runs.changed / name
    if name.endswith(".csv"):
        changed = _changed_rows(list(csv.reader(StringIO(text))), odd, draw)
    elif name.endswith(".jsonl"):
        lines = text.splitlines()
        number = draw.draw(st.integers(0, len(lines) - 1))
        lines[number] = _changed_tree(json.loads(lines[number]), odd, draw)
        changed = "\n".join(lines)
    else:
        changed = _changed_tree(json.loads(text), odd, draw)
    path.write_text(changed)
    try:
        code, said = _call("report", str(runs.changed))
        assert code in (0, 2), said
        listed, rows = _call("runs", str(runs.folder / "runs"))
        assert listed == 0, rows
        sides = draw.draw(st.permutations((str(runs.changed), str(runs.folder / "other"))))
        compared, words = _call("compare", *sides)
        assert compared in (0, 1, 2), words
    finally:
        path.write_text(text)
    said = "\n".join((said, rows, words))
    assert "(unexpected; the traceback" not in said and "Traceback" not in said, said
    assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(said)
    if code == 0 and odd in ("NaN", "Infinity", "-Infinity", "1e999") and not name.endswith(".csv"):
        pages = "\n".join((runs.changed / page).read_text() for page in REPORTS)
        assert NO_NUMBER.findall(f"{rows}\n{pages}") == []
