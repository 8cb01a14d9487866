"""Memory: blocks and their kinds, the allocator's history, the module behind a stack, and what is shown of it."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.plugins.memory import watcher
from llm_perf_opt.plugins.memory.blocks import CacheNote, MemoryBlock, Seen, course_of, kinds_of, most_of, sites_of
from llm_perf_opt.plugins.memory.cpu import ResidentSampler, by_operator, read_resident
from llm_perf_opt.plugins.memory.cuda import history_of
from llm_perf_opt.plugins.memory.document import MemoryDocument, MemoryPhase, Peak, RanOut, Site
from llm_perf_opt.plugins.memory.section import ROOM, chart_lines, memory_sections
from llm_perf_opt.plugins.memory.stage import memory_metrics, predictions
from llm_perf_opt.testing import scratch_context
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = pytest.mark.slow

MB = 1 << 20


def block(address: int, size: int, born: int, died: int | None = None, **more: Any) -> MemoryBlock:
    return MemoryBlock(address=address, size_bytes=size, born_us=born, died_us=died, **more)


# Loading until 100 µs; requests from 110 and from 210; all is over at 300.
SEEN = Seen(
    weights={1000: 40, 1040: 40},
    caches=(CacheNote(at_us=150, storages={5000: 16}), CacheNote(at_us=170, storages={6000: 20})),
    request_starts_us=(110, 210),
    loaded_us=100,
    ended_us=300,
)


def test_every_block_has_one_kind() -> None:
    blocks = [
        block(1000, 80, 10),  # holds both weights
        block(2000, 70, 20, 60),  # made and freed while loading
        block(5000, 16, 120, 160),  # the cache after the first step
        block(6000, 20, 155, 205),  # and after the second
        block(5000, 30, 165, 170),  # the same address again, when it is not a cache any more
        block(7000, 32, 130),  # never freed
        block(8000, 8, 215, 299),
    ]
    assert kinds_of(blocks, SEEN) == [
        "weights",
        "loading",
        "kv_cache",
        "kv_cache",
        "activations",
        "workspace",
        "activations",
    ]


def test_what_a_request_leaves_behind_until_the_next_is_workspace() -> None:
    assert kinds_of([block(9000, 1, 120, 209), block(9100, 1, 120, 211)], SEEN) == ["activations", "workspace"]


def test_what_a_failed_request_was_working_on_is_no_workspace() -> None:
    failed = replace(SEEN, failed_start_us=110)
    assert kinds_of([block(9000, 1, 120, None), block(9100, 1, 250, None)], failed) == ["activations", "workspace"]


def test_the_peak_is_the_highest_moment_and_names_who_made_it() -> None:
    blocks = [
        block(0, 100, 1),
        block(200, 50, 10, 20, operator="aten::mul", module="mlp"),
        # Born as the other one dies: the room is used again.
        block(200, 60, 20, 30, operator="aten::add"),
    ]
    course, peak = course_of(blocks, ["weights", "activations", "activations"])
    assert course.at_us == (1, 10, 20, 30)
    assert course.bytes_by_kind["activations"] == (0, 50, 60, 0)
    assert course.bytes_by_kind["weights"] == (100, 100, 100, 100)
    assert (peak.at_us, peak.total_bytes, peak.by_kind["activations"]) == (20, 160, 60)
    assert peak.maker == blocks[2]
    assert [b.size_bytes for b, _ in peak.alive] == [100, 60]
    assert most_of(blocks, ["weights", "activations", "activations"], "activations") == 60


def test_a_long_course_is_thinned_out_and_keeps_its_peak() -> None:
    blocks = [block(i, 10, 2 * i, 2 * i + 1) for i in range(1, 5000)]
    blocks.append(block(9, 777, 4001, 4002))
    course, peak = course_of(blocks, ["activations"] * len(blocks), most_points=100)
    assert len(course.at_us) <= 101
    assert peak.total_bytes == 777 and max(course.bytes_by_kind["activations"]) == 777


def test_what_is_alive_is_summed_by_place_outside_of_torch() -> None:
    stack = ("/x/site-packages/torch/nn/functional.py:9 linear", "/x/site-packages/transformers/llama.py:16 forward")
    alive = [(block(i, 10, 1, stack=stack, module="mlp"), "activations") for i in range(3)]
    alive.append((block(9, 40, 1, operator="aten::empty"), "workspace"))
    assert sites_of(alive, 5) == [
        ("workspace", "", "aten::empty", 1, 40),
        ("activations", "mlp", "/x/site-packages/transformers/llama.py:16 forward", 3, 30),
    ]


def frame(line: int) -> dict[str, Any]:
    return {"filename": "/m/model.py", "line": line, "name": "forward"}


def entry(action: str, at: int, *, addr: int = 0, size: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": action, "time_us": at, "addr": addr, "size": size, "stream": 0, "frames": [frame(at)], **more}


def snapshot(*entries: dict[str, Any], live: dict[int, int], total: int) -> dict[str, Any]:
    """As torch.cuda.memory._snapshot returns it."""
    blocks = [
        {"address": a, "size": 512, "requested_size": s, "state": "active_allocated", "frames": [frame(1)]}
        for a, s in live.items()
    ]
    free = {"address": 1 << 40, "size": 4096, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": total, "blocks": [*blocks, free]}
    other = {"device": 1, "address": 0, "total_size": 99, "blocks": []}
    return {"segments": [segment, other], "device_traces": [list(entries), [entry("alloc", 1, addr=5, size=5)]]}


def test_the_allocators_history_becomes_blocks() -> None:
    history = history_of(
        snapshot(
            entry("segment_alloc", 5, size=2 * MB),
            entry("alloc", 10, addr=100, size=300),
            entry("free_requested", 20, addr=100, size=300),
            entry("free_completed", 21, addr=100, size=300),
            entry("alloc", 30, addr=100, size=400),
            entry("free_completed", 31, addr=700, size=70),
            entry("segment_alloc", 35, size=20 * MB),
            entry("oom", 40, size=80 * MB, device_free=3 * MB),
            entry("segment_free", 45, size=2 * MB),
            live={100: 400, 900: 90},
            total=24 * MB,
        ),
        0,
        1000,
    )
    assert [(b.address, b.size_bytes, b.born_us, b.died_us) for b in history.blocks] == [
        (100, 300, 10, 21),
        # Born before the history began.
        (700, 70, 0, 31),
        (100, 400, 30, None),
        (900, 90, 0, None),
    ]
    assert history.blocks[0].stack == ("/m/model.py:10 forward",)
    assert [(r.at_us, r.size_bytes // MB) for r in history.reserved] == [(0, 4), (5, 6), (35, 26), (45, 24)]
    (failure,) = history.failures
    assert (failure.asked_bytes, failure.device_free_bytes) == (80 * MB, 3 * MB)
    assert not history.is_cut
    assert history_of(snapshot(entry("alloc", 1, addr=1, size=1), live={}, total=0), 0, 1).is_cut


def test_the_resident_set_is_on_disk_while_it_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "resident.csv"
    sampler = ResidentSampler(path, 0.005)
    deadline = time.monotonic() + 10
    while len(read_resident(path)) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    before = read_resident(path)
    sampler.stop()
    assert len(before) >= 3
    assert all(10 * MB < size < 1 << 40 for _, size in before)
    with path.open("a") as file:
        file.write("17,")
    assert len(read_resident(path)) >= len(before)


def test_operators_are_ranked_by_what_they_allocated() -> None:
    found = by_operator([block(1, 10, 1, operator="a"), block(2, 30, 1, operator="a"), block(3, 5, 1)], 9)
    assert [(o.operator, o.calls, o.allocated_bytes, o.largest_bytes) for o in found] == [
        ("a", 2, 40, 30),
        ("outside of operators", 1, 5, 5),
    ]


def document(**more: Any) -> MemoryDocument:
    peak = Peak(
        at_s=2.0,
        phase="prefill",
        total_bytes=150,
        by_kind={"weights": 100, "activations": 50},
        made_by_bytes=50,
        module="model.layers.*.mlp",
        operator="",
        stack=("/x/site-packages/transformers/llama.py:16 forward", "/x/src/llm_perf_opt/marks.py:3 phase"),
        sites=(Site(kind="weights", module="", place="", count=2, size_bytes=100),),
    )
    facts: dict[str, Any] = {
        "device": "cuda:0",
        "how": "history of the allocator",
        "zero_monotonic_ns": 7,
        "at_s": (0.0, 2.0, 3.0),
        "by_kind": {
            "weights": (100, 100, 100),
            "kv_cache": (0, 0, 0),
            "workspace": (0, 0, 0),
            "loading": (0, 0, 0),
            "activations": (0, 50, 0),
        },
        "reserved": ((0.0, 120), (1.5, 200)),
        "device_used": ((0.5, 300),),
        "phases": (MemoryPhase(name="prefill", start_s=1.0, end_s=2.5),),
        "weights_bytes": 100,
        "kv_cache_bytes": 20,
        "activations_bytes": 50,
        "measured_peak_bytes": 160,
        "peak": peak,
    }
    return MemoryDocument(**{**facts, **more})


def test_fragmentation_and_other_processes_are_what_is_held_beyond_tensors() -> None:
    lines = chart_lines(document())
    assert lines == {
        "weights": [(0.0, 100), (2.0, 100), (3.0, 100)],
        "activations": [(0.0, 0), (2.0, 50), (3.0, 0)],
        "fragmentation": [(0.0, 20), (2.0, 50), (3.0, 100)],
        "other": [(0.0, 180), (2.0, 100), (3.0, 100)],
    }


def test_predicted_and_measured_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "run" / "static_analysis" / "static.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"memory": {"weights_bytes": 102.0, "kv_cache_bytes": 20.0, "peak_bytes": 152.0}}))
    record = StageRecord(name="static_analysis", status="ok", files=(StageFile(role="static_json", path=path),))
    ctx = scratch_context("memory", tmp_path / "run", earlier={"static_analysis": record})
    predicted, why = predictions(ctx)
    assert why is None
    metrics = memory_metrics(document(), predicted, why, "memory/memory.json")
    assert metrics["weights_prediction_error_pct"].value == pytest.approx(2.0)
    assert metrics["peak_prediction_error_pct"].value == pytest.approx(-5.0)
    assert metrics["activations_prediction_error_pct"].reason == "it was not measured"
    assert metrics["measured_peak_bytes"].value == 160
    (section,) = memory_sections(ctx, document(), None, predicted, why, "memory/memory.json")
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    assert rows["weights"] == (102e-6, 100e-6, "+2.0 %")
    assert rows["activations"] == (None, 50e-6, None)
    assert section.paragraphs[1] == (
        "The peak of 0.0 MB was 2.00 s after loading began in prefill. It was made by an allocation of 0.00 MB in "
        "module model.layers.*.mlp: transformers/llama.py:16 forward ← llm_perf_opt/marks.py:3 phase."
    )
    assert ROOM not in section.paragraphs
    (section,) = memory_sections(ctx, document(), None, {"kv_cache_bytes": 10.0}, why, "memory/memory.json")
    assert ROOM in section.paragraphs
    assert "<polyline" in (ctx.out_dir / "timeline.svg").read_text()


def test_without_static_analysis_nothing_is_compared(tmp_path: Path) -> None:
    ctx = scratch_context("memory", tmp_path)
    assert predictions(ctx) == ({}, "static analysis predicts it: pipeline.static_analysis.enable=true")


def test_the_post_mortem_says_what_was_asked_for_and_what_was_there(tmp_path: Path) -> None:
    ran_out = RanOut(
        error="CUDA out of memory. Tried to allocate 80.00 MiB.",
        at_s=2.0,
        asked_bytes=80_000_000,
        device_free_bytes=3_000_000,
        module="lm_head",
        stack=("/x/site-packages/torch/nn/functional.py:9 linear",),
    )
    ctx = scratch_context("memory", tmp_path)
    (ctx.out_dir / "out_of_memory.pickle").write_bytes(b"")
    dead = document(ran_out=ran_out)
    first, second = memory_sections(ctx, dead, dead, {}, "why", "memory/out_of_memory.json")
    assert (first.title, second.title) == ("Out of memory", "Memory over time")
    assert first.paragraphs == (
        "Memory ran out: CUDA out of memory. Tried to allocate 80.00 MiB.",
        "80.0 MB were requested, 3.0 MB were free.",
        "By: torch/nn/functional.py:9 linear.",
        "In module lm_head.",
    )
    assert first.tables[0].rows == (("weights", None, None, 2, 1e-4),)
    assert first.links[0].target == "memory/out_of_memory.pickle"


def test_a_document_survives_its_file() -> None:
    content = document()
    assert msgspec.json.decode(msgspec.json.encode(content), type=MemoryDocument) == content


def test_nothing_of_ours_opens_a_snapshot() -> None:
    home = Path(watcher.__file__).parent
    assert [p.name for p in home.glob("*.py") if re.search(r"import pickle|torch\.load|_pickle", p.read_text())] == []


def run_watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """The real session over the small model with the watcher inside, as a child of the stage has it."""
    from llm_perf_opt.workload.session import run_inference

    out = folder / "memory"
    out.mkdir()
    monkeypatch.setenv("LLM_PERF_WATCHER", "llm_perf_opt.plugins.memory.watcher:MemoryWatcher")
    monkeypatch.setenv("LLM_PERF_WATCHER_DIR", str(out))
    settings = {"max_entries": 1000, "interval_ms": 5.0, "max_decode_steps": 2, "used_before_bytes": None}
    monkeypatch.setenv("LLM_PERF_WATCHER_SETTINGS", json.dumps(settings))
    config = FakeConfig(dataset=prompts(folder / "p.txt", lines), repeats=1).build(folder)
    run_inference(config, folder / "work", warmup_rounds=0, output=None)
    return out


def test_a_run_on_a_cpu_tells_weights_operators_and_the_module_of_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run_watched(tmp_path, monkeypatch, "1 2 3 4 5 6 7 8", "3")
    found = msgspec.json.decode((out / "memory.json").read_bytes(), type=MemoryDocument)
    # Embedding 32×16, up 16×64+64, norm 2×64, down 64×16+16, head 16×32+32, four bytes each.
    assert found.weights_bytes == 4 * (32 * 16 + 16 * 64 + 64 + 128 + 64 * 16 + 16 + 16 * 32 + 32)
    assert found.peak is not None and found.peak.phase == "prefill"
    assert found.peak.by_kind["weights"] == found.weights_bytes
    assert found.peak.module.startswith("mlp")
    assert found.peak.total_bytes > found.weights_bytes + 2 * 8 * 64 * 4
    assert {"aten::linear", "aten::relu"} <= {o.operator for o in found.operators}
    assert [p.name for p in found.phases] == ["prefill", "decode"] * 2
    assert found.ran_out is None and len(found.resident) >= 1
    # Its state holds no tensor: it is not known whether it has a cache.
    assert found.kv_cache_bytes is None


def test_a_sample_that_runs_out_of_memory_leaves_what_was_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HUGE_BYTES", str(1 << 50))
    with pytest.raises(ProfilingError, match="none of 1 sample could be run"):
        run_watched(tmp_path, monkeypatch, "1 2 3")
    out = tmp_path / "memory"
    found = msgspec.json.decode((out / "out_of_memory.json").read_bytes(), type=MemoryDocument)
    assert found.ran_out is not None and "can't allocate memory" in found.ran_out.error
    assert found.weights_bytes is not None and found.peak is not None
    assert found.peak.by_kind["weights"] == found.weights_bytes
    # What the failed prefill had allocated until then, and where it was.
    assert found.peak.by_kind["activations"] > 0 and found.operators != ()
    assert found.ran_out.asked_bytes == 1 << 50
    assert found.ran_out.stack[0].endswith(" prefill")
    assert (out / "memory.json").is_file()


def test_the_cache_is_what_a_steps_state_holds() -> None:
    import torch

    keys = torch.zeros(1, 2, 8, 4)
    state = SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=keys[:, :, :4])], mask=torch.ones(1, 8), n=3)
    state.itself = state
    assert watcher.storages_of(state) == {keys.data_ptr(): 256}
    assert watcher.storages_of({"model": torch.nn.Linear(2, 2)}) == {}


def test_the_module_of_a_stack_is_found_by_the_classes_in_it(tmp_path: Path) -> None:
    from llm_perf_opt.plugins.memory.module_names import ModuleNames

    source = tmp_path / "small_net.py"
    source.write_text(
        "class Linear:\n    def forward(self):\n        return 1\n"
        "class Mlp:\n    def forward(self):\n        x = 1\n        return x\n"
        "class ModuleList:\n    pass\n"
        "class Net:\n    def forward(self):\n        return 2\n"
    )
    space: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), space)

    def module(kind: str, **children: Any) -> Any:
        one = space[kind]()
        one.named_children = lambda: list(children.items())
        below = [m for child in children.values() for m in child.modules()]
        one.modules = lambda: [one, *below]
        return one

    import linecache

    linecache.checkcache(str(source))
    layers = {"0": module("Mlp", up=module("Linear")), "1": module("Mlp", up=module("Linear"))}
    names = ModuleNames(module("Net", layers=module("ModuleList", **layers), head=module("Linear")))
    net, mlp, linear = f"{source}:11 forward", f"{source}:6 forward", f"{source}:3 forward"
    assert names.of((linear, mlp, net)) == "layers.*.up"
    assert names.of((mlp, "/x/torch/nn/modules/module.py:1 _call_impl", net)) == "layers.*"
    assert names.of((linear, net)) == "head"
    assert names.of(("/x/elsewhere.py:1 main",)) == ""


def test_the_module_of_a_stack_is_found_behind_the_decorators_of_transformers() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from llm_perf_opt.plugins.memory.module_names import ModuleNames

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))
    model.model.layers[1].mlp.down_proj = None
    with pytest.raises(TypeError) as failed:
        model(input_ids=torch.zeros(1, 2, dtype=torch.long))
    assert ModuleNames(model).of(watcher.frames_of(failed.value)) == "model.layers.*.mlp"
