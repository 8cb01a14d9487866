"""Where the time until a server is ready goes: stacks of its processes, the critical one, and memory by its log."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.report.sections.startup_sections import startup_lines, startup_sections
from llm_perf_opt.serving.startup.purposes import does_wait, purpose_of
from llm_perf_opt.serving.startup.sampler import StartupSamples
from llm_perf_opt.serving.startup.startup_causes import explain_startup
from llm_perf_opt.serving.startup.startup_memory import memory_rows
from llm_perf_opt.serving.startup.startup_path import critical_path, startup_parts
from llm_perf_opt.serving.startup.startup_records import MemoryRow, StartupDocument
from llm_perf_opt.serving.startup.startup_stacks import SampledFrame, placed, process_title, read_trace
from tests.support.tiny_snapshot import write_tiny_snapshot

PYTHON = "/opt/python3.11/bin/python3.11"
COMMANDS = {
    10: f"{PYTHON} /opt/bin/vllm serve /m --api-key abc",
    20: f"{PYTHON} -B -c from multiprocessing.spawn import spawn_main; spawn_main()",
    30: f"{PYTHON} -c import torch",
}
IMPORT = ("_find_and_load@<frozen importlib._bootstrap>", "<module>@/s/site-packages/torch/__init__.py")
CORE_WAITS = (
    "wait_for_engine_startup@/s/site-packages/vllm/v1/engine/utils.py",
    "Poller.poll@/s/site-packages/zmq/sugar/poll.py",
)
LOAD = ("Worker.load_model@/s/site-packages/vllm/v1/worker/gpu_worker.py", "copy_@/s/site-packages/torch/x.py")
COMPILE = ("_run_compile_cmd@/s/site-packages/torch/_inductor/cpp_builder.py", "Popen.communicate@/l/subprocess.py")
HELPER = ("CDLL.__init__@/l/python3.11/ctypes/__init__.py",)


class _Trace:
    """A trace as py-spy writes one: each change of a stack ends the frames that differ and begins the new ones."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def thread(
        self, chain: list[int], stacks: list[tuple[float, tuple[str, ...]]], end_s: float, *, tid: int | None = None
    ) -> None:
        pid = chain[-1]
        heads = [f'process {number}:"{COMMANDS[number]}"' for number in chain]
        heads.append(f"thread ({pid if tid is None else tid}): MainThread")
        for (at, frames), after in zip(stacks, [*(at for at, _ in stacks[1:]), end_s], strict=True):
            rows = [(head, "") for head in heads]
            rows += [(frame.partition("@")[0], frame.partition("@")[2]) for frame in frames]
            for moment, phase in ((at, "B"), (after, "E")):
                self.events += [
                    {"pid": pid, "tid": tid or pid, "ts": 1e6 * moment, "ph": phase, "name": name,
                     "args": {"filename": file, "line": 1}}
                    for name, file in (rows if phase == "B" else reversed(rows))
                ]  # fmt: skip

    def data(self) -> bytes:
        return json.dumps(self.events).encode()


def _start() -> bytes:
    """A front end that imports, starts an engine and waits; the engine imports, loads and compiles with a helper."""
    trace = _Trace()
    trace.thread([10], [(0.2, IMPORT), (10.0, CORE_WAITS), (29.0, ("run@/s/uvicorn/server.py",))], 30.0)
    trace.thread([10, 20], [(11.0, IMPORT), (18.0, LOAD), (21.0, COMPILE), (28.0, ("mystery@/x.py",))], 29.0)
    trace.thread([10, 20, 30], [(22.0, HELPER)], 30.0)
    return trace.data()


def test_time_belongs_to_the_process_the_others_wait_for_and_parts_sum_to_it() -> None:
    # The helper ended at 26 s; py-spy keeps its last stack.
    processes = placed(read_trace(_start()), 0.0, {30: 26.0})
    parts = {part.purpose: part for part in startup_parts(processes, ready_s=30.0)}
    times = {purpose: part.time_s for purpose, part in parts.items()}
    assert sum(times.values()) == pytest.approx(30.0)
    assert times == pytest.approx(
        {
            "imports": 9.8 + 7.0,
            "weights": 3.0,
            # The compiler and its helper.
            "compile": 7.0,
            # Before the first sample, and until the engine has one.
            "process creation": 0.2 + 1.0,
            "HTTP server": 1.0,
            "other": 1.0,
        },
        abs=0.05,
    )
    assert parts["imports"].processes == ("vllm serve (10)", "child process (20)")
    assert parts["compile"].processes == ("python -c (30)", "child process (20)")
    assert parts["imports"].where == "<module> (torch/__init__.py)"
    path = critical_path(processes, ready_s=30.0)
    assert [(one.purpose, one.process) for one in path][:3] == [
        ("process creation", "the first process"),
        ("imports", "vllm serve (10)"),
        ("process creation", "child process"),
    ]
    assert path[0].start_s == 0.0 and path[-1].end_s == 30.0
    assert all(before.end_s == pytest.approx(after.start_s) for before, after in pairwise(path))


def test_another_thread_counts_while_the_main_one_waits() -> None:
    trace = _Trace()
    waits = ("Event.wait@/l/threading.py",)
    trace.thread([10], [(0.0, waits)], 4.0)
    trace.thread([10], [(1.0, LOAD)], 3.0, tid=11)
    parts = {part.purpose: part.time_s for part in startup_parts(read_trace(trace.data()), ready_s=4.0)}
    assert parts == pytest.approx({"weights": 2.0, "waiting": 2.0}, abs=0.05)


@pytest.mark.parametrize(
    ("frames", "above", "purpose"),
    [
        (IMPORT, [], "imports"),
        (LOAD, [CORE_WAITS], "weights"),
        # A library that is imported while weights are loaded is imported.
        ((*LOAD, *IMPORT), [], "imports"),
        (HELPER, [COMPILE], "compile"),
        (IMPORT, [COMPILE], "compile"),
        (("capture_model@/s/vllm/v1/worker/gpu_model_runner.py",), [], "graph capture"),
        (("_initialize_kv_caches@/s/vllm/v1/engine/core.py", "initialize_kv_cache@/s/x.py"), [], "KV cache allocation"),
        (("profile_run@/s/vllm/v1/worker/gpu_model_runner.py",), [], "warm-up"),
        (("autotune@/s/triton/runtime/autotuner.py",), [], "autotune"),
        (("mystery@/x.py",), [], "other"),
        (("mystery@/x.py",), [("determine_available_memory@/s/vllm/v1/engine/core.py",)], "warm-up"),
    ],
)
def test_a_stack_has_the_purpose_of_the_function_it_is_in(
    frames: tuple[str, ...], above: list[tuple[str, ...]], purpose: str
) -> None:
    assert purpose_of(_frames(frames), [_frames(stack) for stack in above]) == purpose


def _frames(texts: tuple[str, ...]) -> tuple[SampledFrame, ...]:
    return tuple(SampledFrame(text.partition("@")[0], text.partition("@")[2]) for text in texts)


def test_waiting_for_a_compiler_is_work_and_waiting_for_a_message_is_not() -> None:
    assert not does_wait(_frames(COMPILE)) and not does_wait(_frames(IMPORT))
    assert does_wait(_frames(CORE_WAITS))
    assert does_wait(
        _frames(("MultiprocWorker.run@/s/x.py", "Connection._recv@/l/python3.11/multiprocessing/connection.py"))
    )
    assert does_wait(_frames(("_wait_for@/s/llm_perf_opt/core/supervise.py",)))


def test_a_process_is_called_by_its_script_without_arguments() -> None:
    assert [process_title(command) for command in COMMANDS.values()] == ["vllm serve", "child process", "python -c"]
    assert process_title(f"{PYTHON} /bin/server.py --api-key abc") == "server.py"


LOG = """\
(Worker pid=7) INFO 11-18 22:20:35 [gpu_model_runner.py:91] Model loading took 14.99 GiB memory and 5.2 seconds
(Worker pid=7) INFO 11-18 22:20:35 [gpu_worker.py:299] Available KV cache memory: 50.00 GiB
(EngineCore pid=5) INFO 11-18 22:20:35 [kv_cache_utils.py:7] GPU KV cache size: 1,000 tokens
(Worker pid=7) INFO 11-18 22:20:39 [gpu_model_runner.py:3] Graph capturing finished in 12 secs, took 0.50 GiB
"""


def test_memory_is_that_of_the_log_next_to_what_the_models_files_predict(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = write_tiny_snapshot(tmp_path / "tiny")
    # The file is in float32; the server says what it computes in.
    tensors = (model / "model.safetensors").stat().st_size
    said = f"{LOG}[core.py:133] Initializing with config: dtype=torch.bfloat16, kv_cache_dtype=auto, seed=0\n"
    weights, cache, graphs = memory_rows(said, str(model))
    assert (weights.measured_bytes, weights.how) == (round(14.99 * 2**30), "the model's configuration, bf16")
    assert weights.predicted_bytes == pytest.approx(tensors / 2, rel=0.02)
    # Two layers, keys and values of two heads of 64, two bytes each.
    assert (cache, graphs) == (
        MemoryRow(
            purpose="KV cache",
            measured_bytes=50 * 2**30,
            predicted_bytes=1000 * 2 * 2 * 2 * 64 * 2,
            how="1,000 tokens, bf16",
        ),
        MemoryRow(purpose="graphs", measured_bytes=2**29),
    )
    cpu = "Explicitly set (1.0/23.54) GiB for KV cache on node 0."
    assert memory_rows(cpu, None) == (MemoryRow(purpose="KV cache", measured_bytes=2**30),)
    assert memory_rows("", "somebody/hub-name") == ()


def test_the_report_says_what_share_is_explained_and_why_nothing_is() -> None:
    processes = placed(read_trace(_start()), 0.0, {30: 26.0})
    samples = StartupSamples(ready_s=30.0, sampler="py-spy 0.4.3", processes=processes)
    document = explain_startup(samples, engine="vllm", log=LOG, model=None)
    assert document.attributed == pytest.approx(29 / 30, abs=0.01)
    assert startup_lines(document) == [
        "vllm was ready after 30.0 s: imports 16.8 s, compile 7.0 s, weights 3.0 s, process creation 1.2 s; 96.7 % of "
        "the time is explained."
    ]
    (section,) = startup_sections(document, source="bench/startup.json")
    assert [table.title for table in section.tables] == ["Time by purpose", "Memory by purpose"]
    nothing = StartupDocument(engine="vllm", ready_s=30.0, notes=("py-spy is not installed: pip install py-spy",))
    assert nothing.attributed is None
    assert startup_lines(nothing) == ["vllm was ready after 30.0 s.", "py-spy is not installed: pip install py-spy"]
