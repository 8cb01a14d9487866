"""Prints one JSON object to the standard output, whatever encoding that has."""

import codecs
import json
import sys
from collections.abc import Mapping
from typing import Any


def print_json(found: Mapping[str, Any]) -> None:
    """Text stays readable where the output is UTF-8, and becomes escapes where it is not."""
    encoding = sys.stdout.encoding
    readable = encoding is None or codecs.lookup(encoding).name == "utf-8"
    json.dump(found, sys.stdout, indent=2, ensure_ascii=not readable)
    print()
