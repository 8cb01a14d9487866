"""Checks what the package wrote against the published JSON schemas."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.fixtures_dir import REPO


@cache
def _validator(name: str) -> Any:
    text = (REPO / "docs" / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def valid(name: str, data: Any) -> Any:
    """The data itself, after a check against the schema `name`."""
    _validator(name).validate(data)
    return data


def valid_file(name: str, path: Path) -> Any:
    """The content of a JSON file, after a check against the schema `name`."""
    return valid(name, json.loads(path.read_text(encoding="utf-8")))
