"""Every command in README.md, docs/ and the help of the commands themselves.

Commands that read (predict, plan, analyze, compare, runs, report, open, export, sweep report, doctor) are run, in a
folder with the runs and captures they name. Those that would run a model, a program or a server (profile, run, infer,
bench, optimize, compare --interleave) are composed and typed: keys, choices and flags are those of the command, and
each job of a sweep has a configuration. What neither can be done with is in `ELSEWHERE`, with the reason.
"""

import itertools
import json
import lzma
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.cli import COMMANDS, main
from llm_perf_opt.commands import bisect, optimize
from llm_perf_opt.commands.attach import parse_options
from llm_perf_opt.commands.profile import INFER_OVERRIDES
from llm_perf_opt.commands.run import implied_overrides, split_command
from llm_perf_opt.config.arguments import parse_arguments
from llm_perf_opt.core.names import BUILT_IN
from llm_perf_opt.pipeline.bench.bench_config import read_config
from llm_perf_opt.pipeline.compare.interleave import parse_experiment
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.pipeline.plan import find_entry_points, open_plugin_keys
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.load_results import BenchDocument, LevelResult
from tests.support.fixtures_dir import REPO
from tests.support.nsys_builder import h200_export
from tests.support.report_runs import clean, stage, write_run

pytestmark = [pytest.mark.long, pytest.mark.slow]
DATA = REPO / "tests" / "data"
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
PLACEHOLDERS = {
    "tmp/runs/<run>": "tmp/runs/demo",
    "tmp/runs/RUN": "tmp/runs/demo",
    "RUN_DIR": "tmp/runs/demo",
    "tmp/runs/sweep-…": "tmp/runs/sweep",
    "=…": "=1",
    "/models/Qwen3-30B-A3B": "model",
}
# A word of the command, and why it is not even composed here.
ELSEWHERE = {
    "pipeline.pyspy.enable=true": "needs the plug-in of examples/: test_example_stage.py runs it",
    "launcher=ray": "needs Ray: make test-cluster runs it",
    "resume": "starts the jobs of a sweep: test_sweep_jobs.py",
    "mlflow": "needs MLflow: test_export.py",
    "wandb": "needs W&B: test_export.py",
    "rocprofv3.db": "a database of rocprofv3: test_rocpd.py",
    "22_results.db": "a database of rocprofv3: test_rocpd.py",
    "snapshot.pickle": "a memory snapshot: test_memory_snapshot.py",
    "--prices": "a file of prices: test_plan.py",
    "--calibrate-from": "a run of bench with several levels: test_calibration.py",
    "--endpoint": "needs a collector: test_exports.py",
    "speedscope": "needs a run with stacks: test_exports.py",
    "collapsed": "needs a run with stacks: test_exports.py",
    "artifacts/profile_export_aiperf.json": "a result of aiperf: test_serving_foreign.py",
}
STORE = "s3://"
BINARY = (".nsys-rep", ".ncu-rep")


def _lines(text: str) -> Iterator[str]:
    """Lines that begin with the command, those that continue after a backslash joined."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip().startswith("llm-perf "):
            yield line.strip()


def _commands(line: str) -> Iterator[list[str]]:
    for found, stands_for in PLACEHOLDERS.items():
        line = line.replace(found, stands_for)
    words = [word for word in shlex.split(line, comments=True) if word != "…"]
    for is_command, part in itertools.groupby(words, lambda word: word != "&&"):
        if not is_command:
            continue
        # `FILE | FILE` are alternatives.
        *common, first = list(itertools.takewhile(lambda word: word != "|", chosen := list(part)))
        yield from ([*common[1:], word] for word in (first, *chosen[len(common) + 2 :: 2]))


def _documented() -> list[object]:
    """Each command once, by where it is first."""
    found: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in _lines(block if language in ("", "sh", "bash") else ""):
                for words in _commands(line):
                    found.setdefault(tuple(words), page.name)
    return [pytest.param(list(words), id=f"{page}: {' '.join(words)}") for words, page in found.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documentation calls its runs and captures."""
    folder = tmp_path_factory.mktemp("place")
    for name, tpot in (("base", 12.5), ("candidate", 10.0), ("demo", 11.0), ("sweep/0", 12.5), ("sweep/1", 10.0)):
        for runs in ("runs", "tmp/runs"):
            run = folder / runs / name
            write_run(run, stage("torch_profiler", run, metrics=clean(ttft_ms=120.0, tpot_ms=tpot)))
            assert main(["report", str(run)]) == 0
    level = LevelResult(label="concurrency 4", concurrency=4, completed=40, output_tokens_per_s=80.0)
    answered = [
        RequestRecord(index=i, started_s=i / 20, status="ok", ttft_s=0.1, latency_s=0.2 + i / 1e3, output_tokens=4)
        for i in range(40)
    ]
    requests = "\n".join(json.dumps({"level": level.key, **asdict(one)}) for one in answered)
    for name in ("bench-a", "bench-b"):
        files = {
            "bench_json": ("bench.json", BenchDocument(levels=(level,))),
            "bench_requests": ("requests.jsonl", requests),
        }
        write_run(folder / "runs" / name, stage("bench", folder / "runs" / name, files))
    export = h200_export(folder)
    for name in ("capture", "run", "run.1", "run.2", "a", "b", "base", "candidate"):
        (folder / f"{name}.sqlite").symlink_to(export)
    traces = {
        "trace": "llama",
        "rank0": "llama",
        "rank1": "llama",
        "replay": "graph_replay",
        "capture": "graph_capture",
    }
    for name, file in traces.items():
        (folder / f"{name}.json.gz").symlink_to(DATA / "h200" / f"{file}.trace.json.gz")
    for page in ("raw", "details"):
        (folder / f"{page}.csv").write_bytes(lzma.decompress((DATA / f"ncu_{page}.csv.xz").read_bytes()))
    shutil.copy(DATA / "ncu_decode_kern_sum.csv", folder / "summary_cuda_gpu_kern_sum.csv")
    for name in ("vllm-rate4", "vllm-rate8"):
        shutil.copy(DATA / "vllm_bench.json", folder / f"{name}.json")
    (folder / "model").mkdir()
    arch = REPO / "conf/model/causal_lm/arch/qwen3_30b_a3b.yaml"
    (folder / "model/config.json").write_text(json.dumps(yaml.safe_load(arch.read_text())["geometry"]))
    return folder


def _jobs(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Every combination of bare lists with commas, as a sweep has them."""
    parts = []
    for override in overrides:
        key, sign, value = override.partition("=")
        is_list = "," in value and not re.search(r"[\[{\"']", value)
        parts.append([f"{key}{sign}{one}" for one in value.split(",")] if is_list else [override])
    yield from map(list, itertools.product(*parts))


def _compose(words: Sequence[str], implied: Sequence[str] = ()) -> None:
    arguments = parse_arguments(words, implied=implied)
    given = [*arguments.implied, *(o for o in arguments.overrides if not o.startswith("run.resume="))]
    sweeps = {"-m", "--multirun"} & set(arguments.flags)
    plugins = find_entry_points().keys() - set(BUILT_IN)
    for overrides in _jobs(given) if sweeps else [given]:
        type_config(compose_config(open_plugin_keys(overrides, plugins)), user_dir=Path.cwd())


def _check(words: list[str]) -> None:
    """Run it, or compose what it would run."""
    name, *rest = words
    if name == "profile":
        _compose(rest)
    elif name == "infer":
        _compose(rest, INFER_OVERRIDES)
    elif name == "run" and "--attach" in rest:
        assert parse_options(rest).pid
    elif name == "run":
        given, command = split_command(rest)
        _compose(given, implied_overrides(given, command, missing=()))
    elif name == "bench":
        read_config(rest, user_dir=Path.cwd())
    elif name == "optimize":
        given, _, command = (list(part) for part in _around(rest, "--"))
        args = optimize._parser().parse_intermixed_args(given)
        if optimize.is_of_a_server(args):
            assert optimize._limits(args)[0] == []
            read_config(args.words, user_dir=Path.cwd())
            return
        optimize._options(args, is_program=bool(command))
        _compose([word for word in args.words if not word.startswith("run=")])
    elif name == "bisect":
        given, _, command = (list(part) for part in _around(rest, "--"))
        args = bisect._parser().parse_intermixed_args(given)
        assert args.resume is not None or bisect._check(args, command) == ()
    elif name == "compare" and "--" in rest:
        found = parse_experiment(rest[rest.index("--") + 1 :])
        for overrides in found.overrides.values():
            _compose([*found.common, *overrides])
    else:
        # Two commands that write to one folder, as two readers would try them.
        shutil.rmtree("runs/old", ignore_errors=True)
        # A gate on runs without repeats is inconclusive.
        assert main(words) in ((0, 3) if "--gate" in words else (0,))


def _around(words: Sequence[str], sign: str) -> tuple[Sequence[str], str, Sequence[str]]:
    cut = words.index(sign) if sign in words else len(words)
    return words[:cut], sign, words[cut + 1 :]


@pytest.mark.parametrize("words", _documented())
def test_a_command_of_the_documentation_does_what_it_says(
    words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("SHELL", "/bin/bash")
    reason = next((ELSEWHERE[word] for word in words if word in ELSEWHERE), None)
    # Captures only the vendor's tools write, and stores on the network, are those of other tests.
    if reason is not None or any(word.endswith(BINARY) or STORE in word for word in words):
        assert words[0] in COMMANDS, reason
        return
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    _check(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples_that_do_what_they_say_and_fit_80_columns(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    with suppress(SystemExit):
        main([name, "--help"])
    _, _, shown = capsys.readouterr().out.partition("examples:\n")
    lines = list(_lines(shown))
    assert lines and max(len(line) for line in shown.splitlines() if "llm-perf" in line) <= 80
    for line in lines:
        for words in _commands(line):
            _check(words)
