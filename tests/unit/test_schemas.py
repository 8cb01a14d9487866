"""The published JSON schemas say what the records say, and the files a run writes obey them."""

import json
from pathlib import Path

import jsonschema
import pytest

from scripts import config_schemas
from scripts.schemas import DOCUMENTS, FOLDER, main, stale


def test_no_schema_is_stale() -> None:
    assert stale() == [], "run: python scripts/schemas.py"


def test_no_schema_of_the_configuration_is_stale() -> None:
    assert config_schemas.stale() == [], "run: python scripts/config_schemas.py"


def test_a_schema_that_differs_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.schemas.FOLDER", tmp_path)
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "manifest.schema.json").write_text("{}")
    (tmp_path / "unheard_of.schema.json").write_text("{}")
    assert main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "docs/schemas/manifest.schema.json: not what the records say; run: python scripts/schemas.py",
        "docs/schemas/unheard_of.schema.json: not what the records say; run: python scripts/schemas.py",
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_valid_itself(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads((FOLDER / f"{name}.schema.json").read_text()))
