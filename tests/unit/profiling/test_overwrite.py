"""Many values in one file: found in one pass, wherever they lie."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llm_perf_opt.profiling.nsys import overwrite
from llm_perf_opt.profiling.nsys.overwrite import HEADER_BYTES, holds_any, overwrite_values
from llm_perf_opt.profiling.nsys.scrub import scrub_export


@pytest.mark.parametrize("at_once", [64, 1 << 24])
def test_values_are_overwritten_wherever_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(overwrite, "_AT_ONCE", at_once)
    values = [f"value-{number:03}-{'y' * (number % 23)}" for number in range(200)] + ["abc", "x" * 40]
    report = tmp_path / "report"
    report.write_bytes(bytes(HEADER_BYTES) + b"".join(b"." * (len(v) % 11) + v.encode() for v in values) + b"kept")
    size = report.stat().st_size
    assert holds_any(report, values)
    overwrite_values(report, values)
    assert not holds_any(report, values[:-1])
    data = report.read_bytes()
    assert (len(data), set(data[HEADER_BYTES:-4]), data[-4:]) == (size, {ord("x"), ord(".")}, b"kept")


def test_long_parts_of_a_value_that_does_not_occur_whole_are_overwritten(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_bytes(bytes(HEADER_BYTES) + b"0123456789abcdef" + b"|" + b"456789ab" + b"|" + b"4567 89ab")
    overwrite_values(report, ["zz0123456789abcdefzz", ""])
    assert report.read_bytes()[HEADER_BYTES:] == b"x" * 16 + b"|" + b"x" * 8 + b"|" + b"4567 89ab"


def test_an_empty_file_and_no_values_change_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_bytes(b"")
    overwrite_values(report, ["value-123"])
    assert not holds_any(report, ["value-123"])
    report.write_bytes(b"value-123" * 99)
    overwrite_values(report, [])
    assert report.read_bytes() == b"value-123" * 99


def test_an_environment_in_one_line_is_one_variable_after_another(tmp_path: Path) -> None:
    """As nsys 2025.3 writes it; read as one variable all of it looked like one secret."""
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        block = "HOME=/root;LS_COLORS=rs=0:di=01;34:ln=01;HF_TOKEN=hf_ThisIsThePlantedToken01;PWD=/work"
        connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', ?)", (block,))
        connection.commit()
    held = scrub_export(path)
    assert dict(held.variables()) == {
        "HOME": "/root",
        "LS_COLORS": "rs=0:di=01;34:ln=01",
        "HF_TOKEN": "hf_ThisIsThePlantedToken01",
        "PWD": "/work",
    }
    assert held.secret_names == ("HF_TOKEN",)
    assert "hf_ThisIsThePlantedToken01" in held.secrets
