"""Writes docs/accuracy.md: every point that predictions were held against, from the results kept in this repository.

    .venv/bin/python benchmarks/accuracy.py

Measured on an H200: benchmarks/results/prediction_gpu.json (benchmarks/prediction_gpu.py). Published runs:
tests/data/published.csv. aiconfigurator: benchmarks/results/aiconfigurator.json (benchmarks/aiconfigurator_peer.py).
"""

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llm_perf_opt.analysis.estimate.forecast import (  # noqa: E402
    BAND_MEASURED,
    BAND_TRANSFERRED,
    Setting,
    step_estimate,
)
from llm_perf_opt.analysis.estimate.parallel import Layout  # noqa: E402
from llm_perf_opt.analysis.families.known import read_text_model  # noqa: E402
from llm_perf_opt.analysis.hardware.hardware import load_catalogue  # noqa: E402
from llm_perf_opt.analysis.hardware.work import Dtypes, Step  # noqa: E402
from llm_perf_opt.analysis.static.parts import Model  # noqa: E402
from tests.unit.test_published import rows as published_rows  # noqa: E402
from tests.unit.test_published import share_of_bound  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "accuracy.md"


def model_of(name: str) -> Model:
    data = yaml.safe_load((ROOT / f"conf/model/causal_lm/arch/{name}.yaml").read_text())
    return read_text_model(data["geometry"], where=name)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def median(values: Iterable[float]) -> str:
    return f"{statistics.median(abs(v) for v in values):.1%}"


def own() -> list[str]:
    """The grid of one H200."""
    hardware = load_catalogue(ROOT / "conf" / "hardware")["h200"]
    rows, gpu, wall = [], [], []
    data = json.loads((RESULTS / "prediction_gpu.json").read_text())
    for part, points in data.items():
        if not part.startswith("grid."):
            continue
        _, name, engine = part.split(".")
        setting = Setting(model=model_of(name), dtypes=Dtypes.uniform("bf16"), hardware=hardware, engine=engine)
        for point in points:
            found = step_estimate(setting, Step(batch=point["batch"], new=point["prompt"] or 1, past=point["context"]))
            assert found is not None and found.gpu_ms is not None
            busy, took = point["gpu_us"]["busy"] / 1e3, point["wall_us"]["median"] / 1e3
            gpu.append(found.gpu_ms / busy - 1)
            cells = [name, engine, point["phase"], point["batch"], point["prompt"] or point["context"]]
            cells += [f"{busy:.2f}", f"{found.gpu_ms:.2f}", f"{gpu[-1]:+.1%}", f"{took:.2f}", f"{found.mid_ms:.2f}"]
            if engine == "graph":
                wall.append(found.mid_ms / took - 1)
            rows.append([*cells, f"{found.mid_ms / took - 1:+.1%}"])
    inside = sum(1 / BAND_MEASURED <= 1 + e <= BAND_MEASURED for e in wall)
    near = sum(1 / BAND_MEASURED <= 1 + e <= BAND_MEASURED for e in gpu)
    header = ("model", "engine", "phase", "batch", "tokens", "GPU ms", "estimate", "off", "wall ms", "estimate", "off")
    return [
        "## Measured by this project on one H200",
        "",
        f"Median error of the GPU's busy time {median(gpu)} (aim 10 %), of the wall time of graphs {median(wall)} (aim "
        f"12 %). The band of ± {BAND_MEASURED - 1:.0%} holds {near} of {len(gpu)} busy times and {inside} of "
        f"{len(wall)} wall times of graphs. The curves were fitted to these points, so this shows how well the form "
        "fits, not how well it foretells other models.",
        "",
        "The largest errors are short prompts of the model with experts: with random weights the tokens of a prompt "
        "look alike and pick the same experts, where the estimate takes them to be spread evenly. Wall times of eager "
        "runs are the host's; the host of this machine was shared and five times slower in decode than on a quiet "
        "day (10.4 ms a step for llama3_1b), so they are shown and not aimed at. In the graph the attention of the "
        "program that was measured reads one sequence's cache block after block, which costs most at batch 1 and long "
        "contexts; `engine=server` is without that.",
        "",
        *table(header, rows),
    ]


def published() -> list[str]:
    rows = [
        (
            row["source"],
            row["model"],
            row["hardware"],
            f"{row['compute']}, w {row['weight']}, kv {row['kv']}",
            row["batch"],
            f"{row['prompt']} + {row['output']}",
            f"{row['measured']} {row['metric']}",
            f"{share_of_bound(row):.0%}",
        )
        for row in published_rows()
    ]
    shares = [share_of_bound(row) for row in published_rows()]
    header = ("source", "model", "GPU", "formats", "batch", "tokens", "published", "share of the bound")
    return [
        "## Published runs against bounds",
        "",
        f"None of {len(rows)} beats its bound; the nearest comes to {max(shares):.0%} of it, the middle one to "
        f"{statistics.median(shares):.0%}.",
        "",
        *table(header, rows),
    ]


def peer() -> list[str]:
    """aiconfigurator's own estimates, row by row."""
    path = RESULTS / "aiconfigurator.json"
    if not path.is_file():
        return ["## aiconfigurator", "", "Not compared yet: see benchmarks/aiconfigurator_peer.py."]
    document = json.loads(path.read_text())
    catalogue = load_catalogue(ROOT / "conf" / "hardware")
    rows, off = [], []
    for point in document["points"]:
        weight = point["weight"]
        setting = Setting(
            model=model_of(point["model"]),
            dtypes=Dtypes(compute="bf16", weight=weight, kv=point["kv"]),
            hardware=catalogue[point["hardware"]],
            engine="server",
            layout=Layout(tp=point["tp"]),
        )
        is_prompt = point["phase"] == "prefill"
        step = Step(
            batch=point["batch"], new=point["tokens"] if is_prompt else 1, past=0 if is_prompt else point["tokens"]
        )
        found = step_estimate(setting, step)
        if found is None:
            continue
        off.append(found.mid_ms / point["ms"] - 1)
        rows.append(
            (
                *(point[key] for key in ("model", "hardware", "weight", "phase", "batch", "tokens", "tp")),
                f"{point['ms']:.2f}",
                f"{found.mid_ms:.2f}",
                f"{off[-1]:+.0%}",
            )
        )
    inside = sum(1 / BAND_TRANSFERRED <= 1 + e <= BAND_TRANSFERRED for e in off)
    header = ("model", "GPU", "weights", "phase", "batch", "tokens", "tp", "aiconfigurator ms", "server ms", "off")
    return [
        f"## aiconfigurator {document['version']}",
        "",
        f"Its estimates come from operators its authors measured under {document['backend']}. Median difference of "
        f"`engine=server` {median(off)} (aim 15 %); {inside} of {len(off)} lie within ± {BAND_TRANSFERRED - 1:.0%}, "
        "the band of transferred rates. Experts are taken to be picked evenly here and unevenly there, and its kernels "
        "for experts are faster than the grouped products of torch that were measured, so such models come out slower "
        "here.",
        "",
        *table(header, rows),
    ]


def main() -> None:
    opening = [
        "# Accuracy",
        "",
        "What `llm-perf predict` says, held against what was measured or published. This page is written by "
        "`benchmarks/accuracy.py` from results kept in the repository.",
        "",
    ]
    PAGE.write_text("\n".join([*opening, *own(), "", *peer(), "", *published()]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
