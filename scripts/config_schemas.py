"""Writes conf/config.schema.json and conf/bench.schema.json: what the files may hold, for editors and completion.

    python scripts/config_schemas.py           write them
    python scripts/config_schemas.py --check   exit with 1 if one of them is not what the sections say

Types, choices and limits come from the classes that check the configuration, meanings from the tables in docs/.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from llm_perf_opt.config.schema import (
    ArtifactsSection,
    DatasetSection,
    HardwareSection,
    InferSection,
    ModelSection,
    RunSection,
    WorkloadSection,
)
from llm_perf_opt.core.names import BUILT_IN
from llm_perf_opt.pipeline.plan import find_entry_points, load_registry
from llm_perf_opt.serving.serving_config import LoadSection, ServerSection, TrafficSection, WindowSection
from llm_perf_opt.workload.models.registry import load_adapter

REPO = Path(__file__).parents[1]
FOLDER = REPO / "conf"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
ADAPTERS = ("llm_perf_opt.workload.models.causal_lm:ADAPTER", "llm_perf_opt.plugins.deepseek_ocr:ADAPTER")
MEANINGS = {"config": ("configuration.md",), "bench": ("serving.md", "configuration.md")}
_ROW = re.compile(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \|$", re.M)
# A value may be taken from another key or from the environment, regardless of its type.
_REFERENCE = {"type": "string", "pattern": r"\$\{"}


def sections_of(name: str) -> dict[str, tuple[type[Any], ...]]:
    """The classes behind each section; where there are several, a file may hold the keys of one of them."""
    shared: dict[str, tuple[type[Any], ...]] = {"dataset": (DatasetSection,), "artifacts": (ArtifactsSection,)}
    if name == "bench":
        own = {"server": ServerSection, "load": LoadSection, "traffic": TrafficSection, "capture": WindowSection}
        return {**{name: (section,) for name, section in own.items()}, **shared}
    adapters = [load_adapter(path) for path in ADAPTERS]
    return {
        "run": (RunSection,),
        "workload": (WorkloadSection,),
        **shared,
        "model": (ModelSection, *(adapter.config_cls for adapter in adapters)),
        "infer": (InferSection, *(adapter.infer_cls for adapter in adapters)),
        "hardware": (HardwareSection,),
    }


def schema_of(name: str) -> str:
    """The text of one schema file."""
    meanings = meanings_of(name)
    properties = {key: _section(kinds, key, meanings) for key, kinds in sections_of(name).items()}
    if name == "config":
        classes = load_registry(find_entry_points(), set(BUILT_IN)).config_classes
        stages = {stage: _section((classes[stage],), f"pipeline.{stage}", meanings) for stage in BUILT_IN}
        # Plug-ins have sections of their own.
        properties["pipeline"] = {"type": "object", "properties": stages, "additionalProperties": {"type": "object"}}
    document = {
        "$schema": DRAFT,
        "title": f"llm-perf: conf/{name}.yaml",
        "type": "object",
        "properties": {**properties, "defaults": {"type": "array"}, "hydra": {"type": "object"}},
        "additionalProperties": False,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def meanings_of(name: str) -> dict[str, str]:
    """What each key means, by the tables of the documentation."""
    found: dict[str, str] = {}
    for page in MEANINGS[name]:
        for key, _, meaning in _ROW.findall((REPO / "docs" / page).read_text(encoding="utf-8")):
            found.setdefault(key, meaning.replace("`", "").replace("\\|", "|"))
    return found


def _section(kinds: tuple[type[Any], ...], key: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for kind in kinds:
        schema = TypeAdapter(kind).json_schema()
        properties.update(_plain(schema, schema.get("$defs", {}), key, meanings)["properties"])
    # A model's adapter may bring keys of its own.
    return {"type": "object", "properties": properties, "additionalProperties": len(kinds) > 1}


def _plain(schema: Any, parts: Mapping[str, Any], key: str, meanings: Mapping[str, str]) -> Any:
    """Without references and titles, every key optional, with its meaning."""
    if "$ref" in schema:
        schema = parts[schema["$ref"].rpartition("/")[2]]
    kept = {
        k: v for k, v in schema.items() if k not in ("$defs", "title", "description", "default", "required", "format")
    }
    if "properties" in kept:
        kept["properties"] = {
            name: _described(_plain(value, parts, f"{key}.{name}", meanings), meanings.get(f"{key}.{name}"))
            for name, value in kept["properties"].items()
        }
        return kept
    for name in ("anyOf", "allOf"):
        if name in kept:
            kept[name] = [_plain(part, parts, key, meanings) for part in kept[name]]
    values = kept.get("additionalProperties")
    if isinstance(values, dict) and values.get("type") == "number":
        # An unknown rate is null.
        kept["additionalProperties"] = {"type": ["number", "null"]}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _plain(kept["items"], parts, key, meanings)
    return kept


def _described(schema: dict[str, Any], meaning: str | None) -> dict[str, Any]:
    options = schema.get("anyOf", [schema])
    if (
        not any(option.get("type") == "string" and len(option) == 1 for option in options)
        and "properties" not in schema
    ):
        schema = {"anyOf": [*options, _REFERENCE]}
    return schema if meaning is None else {"description": meaning, **schema}


def stale() -> list[str]:
    """The schema files that are not what the sections and the documentation say."""
    paths = {name: FOLDER / f"{name}.schema.json" for name in MEANINGS}
    return [name for name, path in paths.items() if not path.exists() or path.read_text("utf-8") != schema_of(name)]


def main(args: list[str]) -> int:
    if args == ["--check"]:
        for name in stale():
            print(f"conf/{name}.schema.json: not what the sections say; run: python scripts/config_schemas.py")
        return 1 if stale() else 0
    for name in MEANINGS:
        (FOLDER / f"{name}.schema.json").write_text(schema_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
