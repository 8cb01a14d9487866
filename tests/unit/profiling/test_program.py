"""Programs of the user's own: their names, phases, clean pass, and the words they end with."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.ranges import PRESETS, chosen_phases, with_phases
from llm_perf_opt.capture.timeline import Ranges, Timeline, no_activities, no_calls
from llm_perf_opt.commands.run import implied_overrides, refuse_input, split_command, tool_flags
from llm_perf_opt.config.arguments import parse_arguments
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.baseline import clean_metrics, last_words
from llm_perf_opt.profiling.injected import injected_environment
from llm_perf_opt.profiling.injection import INJECT_DIR
from llm_perf_opt.profiling.stages.torch_profiler import TorchProfilerConfig
from llm_perf_opt.profiling.user_program import (
    Mark,
    ProgramRun,
    describe_program,
    is_python,
    phase_metrics,
    read_marks,
    sample_lines,
)
from llm_perf_opt.system.process import program_title
from llm_perf_opt.system.redact import Redactor
from tests.support.model_presets import compose_preset


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (("python", "my_script.py", "--flag"), "my_script.py"),
        (("/usr/bin/python3.12", "-u", "dir/bench.py"), "bench.py"),
        (("python", "-m", "vllm.entrypoints.cli.main"), "vllm.entrypoints.cli.main"),
        (("env", "A=1", "./bench", "--steps"), "bench"),
        (("torchrun", "train.py"), "train.py"),
        (("bench",), "bench"),
    ],
)
def test_a_program_is_called_by_its_script(command: tuple[str, ...], title: str) -> None:
    assert program_title(command) == title


def test_python_is_seen_by_name_or_by_the_first_line_of_the_file(tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    shell = tmp_path / "bench"
    shell.write_text("#!/bin/sh\n")
    shell.chmod(0o755)
    commands = [("python3.12", "a.py"), ("./serve",), ("./bench",), ("./gone",)]
    assert [is_python(command, tmp_path) for command in commands] == [True, True, False, False]
    lines = ["/usr/bin/python3 a.py < in.txt", "exit 0", "", "./python_bench"]
    assert [is_python(("sh", "-c", line), tmp_path) for line in lines] == [True, False, False, False]


def mark(name: str, ms: float, *, tokens: int | None = None, warmup: bool = False, start_ns: int = 0) -> Mark:
    return Mark(kind="phase", name=name, ms=ms, start_ns=start_ns, tokens=tokens, warmup=warmup, synchronised=True)


def test_phases_become_the_metrics_a_report_looks_for() -> None:
    marks = [mark("prefill", 10.0, tokens=2048), *(mark("decode_step", 2.0, tokens=2) for _ in range(4))]
    metrics = phase_metrics([*marks, mark("tokenise it", 1.0)])
    found = {name: stats.p50 for name, stats in metrics.items()}
    assert found == {
        "prefill_ms": 10.0,
        "prefill_tokens_per_s": 204_800.0,
        "tpot_ms": 2.0,
        "itl_ms": 2.0,
        "decode_tokens_per_s": 1000.0,
        "tokenise_it_ms": 1.0,
        "prompt_tokens": 1024.0,
        "batch": 2.0,
        "tokens": 5.0,
        "ttft_ms": 10.0,
    }


def test_every_phase_and_every_run_of_a_program_is_a_line_of_its_samples() -> None:
    marks = (mark("prefill", 10.0, tokens=100), mark("decode_step", 90.0, warmup=True), mark("decode_step", 2.0))
    runs = [
        ProgramRun(wall_s=3.0, marks=(*marks, mark("decode_step", 4.0, tokens=2))),
        ProgramRun(wall_s=2.5, marks=()),
    ]
    common = {"pass": "clean", "repeat": 0, "start_ns": 0}
    assert sample_lines(runs) == [
        {"sample_id": "prefill 1", **common, "prefill_ms": 10.0, "ttft_ms": 10.0, "prefill_tokens_per_s": 10_000.0},
        {"sample_id": "decode_step 1", **common, "tpot_ms": 2.0},
        {"sample_id": "decode_step 2", **common, "tpot_ms": 4.0, "decode_tokens_per_s": 500.0},
        {"sample_id": "program", "pass": "clean", "repeat": 0, "wall_ms": 3000.0},
        {"sample_id": "program", "pass": "clean", "repeat": 1, "wall_ms": 2500.0},
    ]
    assert sample_lines([ProgramRun(wall_s=None, marks=())]) == []


def test_warm_up_is_in_no_latency_and_a_program_that_was_ended_has_no_wall_time() -> None:
    run = ProgramRun(wall_s=None, marks=(mark("decode_step", 90.0, warmup=True), mark("decode_step", 2.0)))
    document = describe_program(
        ("python", "a.py"),
        [run],
        device_name="a GPU",
        is_cpu=False,
        peak_memory_bytes=None,
        peak_memory_reason="not asked",
    )
    assert document.model.name == "a.py"
    assert document.clean.metrics["tpot_ms"].p50 == 2.0
    assert document.clean.metrics["wall_ms"].reason == ("the program did not end by itself, it was ended after a while")
    assert document.notes == ()


def test_a_batch_is_no_number_of_tokens() -> None:
    document = describe_program(
        ("python", "a.py"),
        [ProgramRun(wall_s=1.0, marks=(mark("decode_step", 2.0, tokens=4),))],
        device_name="a CPU",
        is_cpu=True,
        peak_memory_bytes=None,
        peak_memory_reason="not asked",
    )
    found = clean_metrics(document, "metrics.json")
    assert [(name, found[name].value, found[name].unit) for name in ("batch", "tpot_ms", "decode_tokens_per_s")] == [
        ("batch", 4.0, ""),
        ("tpot_ms", 2.0, "ms"),
        ("decode_tokens_per_s", 2000.0, "tokens/s"),
    ]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    line = json.dumps({"kind": "phase", "name": "a", "ms": 1.0, "start_ns": 5, "more": "x"})
    (tmp_path / "marks-1.jsonl").write_text(f"{line}\n{line[:20]}")
    assert read_marks(tmp_path, Redactor()) == (Mark(kind="phase", name="a", ms=1.0, start_ns=5),)


def test_a_secret_in_the_name_of_a_phase_is_in_no_name_of_a_metric(tmp_path: Path) -> None:
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    names = (f"load {token}", "user hunter-two", "a")
    lines = [json.dumps({"kind": "phase", "name": name, "ms": 1.0, "start_ns": 5}) for name in names]
    (tmp_path / "marks-1.jsonl").write_text("\n".join([*lines, ""]))
    metrics = phase_metrics(read_marks(tmp_path, Redactor(values=("hunter-two",))))
    assert [key for key in metrics if key.endswith("_ms")] == ["load_redacted_ms", "user_redacted_ms", "a_ms"]


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (
            "Traceback (most recent call last):\n  File 'a.py', line 1\n"
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        ),
        (
            "ValueError: bad batch\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            "============\ntrain.py FAILED\n------------\n",
            "ValueError: bad batch",
        ),
        ("loading\nsomething is wrong\n", "something is wrong"),
        ("error: ours\nmore\n", "ours; more"),
        ("", ""),
    ],
)
def test_the_line_that_matters_is_quoted_and_not_the_last_one(tail: str, words: str) -> None:
    assert last_words(tail) == words


def test_run_stands_for_a_profile_of_the_command_with_every_stage_that_is_here() -> None:
    given, command = split_command(["model=llama3_1b", "--", "python", "a b.py", "--", "-x"])
    assert (given, command) == (["model=llama3_1b"], ["python", "a b.py", "--", "-x"])
    assert implied_overrides(given, command, missing=["ncu"]) == [
        'workload.command=["python","a b.py","--","-x"]',
        "pipeline.static_analysis.enable=true",
        "pipeline.static_analysis.find_model=false",
        "pipeline.torch_profiler.enable=true",
        "pipeline.host_samples.enable=true",
        "pipeline.nsys.enable=true",
        "pipeline.ncu.enable=false",
    ]
    assert "pipeline.static_analysis.find_model=true" in implied_overrides([], command, missing=[])


def test_run_without_a_program_says_where_to_put_it() -> None:
    with pytest.raises(ConfigError) as error:
        split_command(["--nsys", "run.device=cpu"])
    assert str(error.value) == (
        "run: no program given (got '--nsys run.device=cpu'), put it after `--`: llm-perf run -- python my_script.py"
    )


def test_run_takes_a_program_without_the_dashes_and_a_script_without_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("print()\n", encoding="utf-8")
    assert split_command(["--nsys", "run.device=cpu", "python", "a.py", "x=1"]) == (
        ["--nsys", "run.device=cpu"],
        ["python", "a.py", "x=1"],
    )
    given, command = split_command([str(script), "--steps", "2"])
    assert given == [] and command[1:] == [str(script), "--steps", "2"]
    script.chmod(0o755)
    assert split_command(["--", str(script)]) == ([], [str(script)])


def test_a_flag_of_run_switches_a_profiler() -> None:
    assert tool_flags(["--nsys", "model=llama_tiny", "--no-torch", "--ncu"]) == (
        ["model=llama_tiny"],
        {"nsys": "true", "torch_profiler": "false", "ncu": "true"},
    )


def test_run_refuses_an_input_that_the_program_would_not_get(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("2 lines\n")
    command = ["python", "a b.py"]
    with path.open() as file, pytest.raises(ConfigError) as error:
        refuse_input(file, command)
    assert str(error.value) == (
        "run: standard input holds data, and the program would get none of it: it is run several times, each time with "
        """an empty input. Have it read a file: llm-perf run -- sh -c 'python '"'"'a b.py'"'"' < FILE'; """
        "or leave its input empty: llm-perf run -- python 'a b.py' < /dev/null"
    )
    reader, writer = os.pipe()
    with open(reader) as pipe:
        refuse_input(pipe, command)
        os.write(writer, b"x")
        with pytest.raises(ConfigError):
            refuse_input(pipe, command)
        os.read(reader, 1)
        os.close(writer)
        refuse_input(pipe, command)
    refuse_input(pipe, command)
    refuse_input(None, command)
    path.write_text("")
    for empty in (path, Path("/dev/null")):
        with empty.open() as file:
            refuse_input(file, command)


def test_the_injected_module_is_on_the_path_of_the_child_before_what_was_there() -> None:
    cfg = TorchProfilerConfig()
    found = injected_environment(cfg, Path("/t"), has_phases=False, environ={"PYTHONPATH": "/mine"})
    assert found["PYTHONPATH"] == f"{INJECT_DIR}:/mine"
    assert json.loads(found["LLM_PERF_TORCH_WINDOW"]) == {
        "folder": "/t",
        "start_after_s": 0.0,
        "seconds": 30.0,
        "steps": None,
        "activities": ["cpu", "cuda"],
        "record_shapes": True,
        "profile_memory": True,
        "with_stack": False,
    }


def timeline_with_ranges(names: tuple[str, ...]) -> Timeline:
    """A capture of nothing but these ranges, one after the other."""
    number = np.arange(len(names), dtype=np.int64)
    return Timeline(
        source="a.sqlite",
        kind="nsys",
        producer=None,
        schema=None,
        names=names,
        kernels=no_activities(),
        copies=no_activities(),
        graphs=no_activities(),
        calls=no_calls(),
        ranges=Ranges(
            start_ns=number * 10,
            end_ns=number * 10 + 5,
            name=number,
            thread=number * 0,
            process_wide=np.zeros(len(names), np.bool_),
        ),
        thread_process=np.zeros(1, np.int64),
    )


@pytest.mark.parametrize(
    ("preset", "name", "phase"),
    [
        ("vllm", "execute_context_1(1024)_generation_0(0)", "prefill"),
        ("vllm", "execute_context_0(0)_generation_8(8)", "decode_step"),
        ("vllm", "execute_context_3(200)_generation_1(1)", "prefill"),
        ("vllm", "execute_7_context_0(sq0)_generation_2(sq1sk300)", "decode_step"),
        ("sglang", "step[EXTEND bs=1 toks=107]", "prefill"),
        ("sglang", "step[DECODE bs=4]", "decode_step"),
        ("tensorrt_llm", "[Executor] _forward_step 12: 0 ctx reqs, 4 gen reqs", "decode_step"),
        ("tensorrt_llm", "[Executor] _forward_step 3: 2 ctx reqs, 0 gen reqs", "prefill"),
        ("jax", "XlaModule:#hlo_module=jit_decode_step,program_id=3#", "decode_step"),
    ],
)
def test_the_ranges_of_an_engine_count_as_phases(preset: str, name: str, phase: str) -> None:
    timeline = with_phases(timeline_with_ranges((name, "other")), chosen_phases(preset, {}))
    assert [timeline.names[int(code)] for code in timeline.ranges.name] == [phase, "other"]
    assert timeline.notes == (f"counted as {phase}: 1 range name such as {name!r} (workload.phases)",)


def test_steps_of_a_known_engine_are_phases_without_being_asked() -> None:
    # As vLLM 0.32 names them; a step of no request is none.
    names = (
        "execute_context_3(200)_generation_1(1)",
        "execute_context_0(0)_generation_4(4)",
        "execute_context_0(0)_generation_0(0)",
        "forward",
    )
    found = with_phases(timeline_with_ranges(names), {})
    assert [found.names[int(code)] for code in found.ranges.name] == ["prefill", "decode_step", *names[2:]]
    assert found.notes[0] == f"counted as prefill: 1 range name such as {names[0]!r} (names of vllm)"
    # A jitted function of any program may be called so: the name is not unique.
    other = timeline_with_ranges(("XlaModule:#hlo_module=jit_decode_image,program_id=3#", "forward"))
    assert with_phases(other, {}) is other


def test_what_the_user_gives_takes_the_place_of_a_presets_pattern() -> None:
    found = chosen_phases("sglang", {"decode_step": "execute_model*", "verify": ("a*", "b*")})
    prefill = PRESETS["sglang"]["prefill"]
    assert found == {"prefill": prefill, "decode_step": ("execute_model*",), "verify": ("a*", "b*")}


def test_names_of_the_users_own_choosing_can_be_set_as_documented() -> None:
    given = ('workload.phases={step: "run*"}', "server.env.VLLM_USE_X=1", "workload.repeats=2", "++server.env={A: b}")
    opened = parse_arguments(given).overrides
    assert opened == (f"++{given[0]}", f"++{given[1]}", "workload.repeats=2", "++server.env={A: b}")
    assert compose_preset("model=llama_tiny", opened[0]).workload.phases == {"step": "run*"}


def test_a_model_of_the_hub_is_answered_with_the_commands_that_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_perf_opt.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    argv = ["profile", "model=meta-llama/Llama-3.2-1B", "run.dry_run=true"]
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert (
        "run: hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B, then llm-perf profile model=causal_lm"
        in told
    )
    snapshot = tmp_path / "models--meta-llama--Llama-3.2-1B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    assert main(argv) == 2
    assert f"run: llm-perf profile model=causal_lm model.path={snapshot};" in capsys.readouterr().err
