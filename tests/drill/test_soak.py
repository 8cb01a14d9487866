"""An hour of the workload, of `bench` and of `analyze` in one process each: memory, files and threads stay flat."""

import lzma
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import linear_regression

import psutil
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.errors import EXIT_OK
from llm_perf_opt.workload.session import run_inference
from tests.support.fixtures_dir import DATA, REPO
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = [pytest.mark.drill, pytest.mark.soak]
SAMPLES = 2_000
ROUND_SAMPLES = 200
LEAST_ROUNDS = SAMPLES // ROUND_SAMPLES
LARGEST_GROWTH_BYTES = 64 << 20
# What the straight line through the later rounds may climb while all rounds are done once more.
LARGEST_TREND_BYTES = 16 << 20
FAKE_SERVER = REPO / "tests" / "support" / "fake_server.py"
CAPTURES = ("llama.sqlite.xz", "llama.trace.json.gz", "graphs_node.sqlite.xz")


def _stays_flat(what: str, one_round: Callable[[int], None]) -> None:
    """Do rounds for the time asked for; the first quarter fills caches and the allocator's arenas."""
    until = time.monotonic() + float(os.environ.get("LLM_PERF_SOAK_S", "3600"))
    process = psutil.Process()
    used: list[int] = []
    handles: list[tuple[int, int]] = []
    while len(used) < LEAST_ROUNDS or time.monotonic() < until:
        one_round(len(used))
        used.append(process.memory_info().rss)
        handles.append((process.num_fds(), process.num_threads()))
    later = len(used) // 4
    trend = linear_regression(range(later, len(used)), used[later:]).slope * len(used)
    told = (
        f"{what}: {len(used)} rounds: {used[0] >> 20} MiB after one, {max(used) >> 20} MiB at most, "
        f"{used[-1] >> 20} MiB now, {trend / (1 << 20):+.1f} MiB by the trend of as many more; "
        f"(files, threads) {handles[later]} then {handles[-1]}"
    )
    print(told)
    assert max(used) - used[0] < LARGEST_GROWTH_BYTES, told
    assert trend < LARGEST_TREND_BYTES, told
    assert handles[-1] <= handles[later], told


def test_the_workload(tmp_path: Path) -> None:
    dataset = prompts(tmp_path / "p.txt", [str(n % 29 + 1) for n in range(ROUND_SAMPLES)])
    config = FakeConfig(dataset=dataset, repeats=1).build(tmp_path)
    _stays_flat("workload", lambda _: run_inference(config, tmp_path / "out", warmup_rounds=0, output=None))


def test_analyze(tmp_path: Path) -> None:
    files = [_unpacked(DATA / "h200" / name, tmp_path) for name in CAPTURES]

    def one_round(number: int) -> None:
        out = tmp_path / f"report{number}"
        assert main(["analyze", str(files[number % len(files)]), "-o", str(out)]) == EXIT_OK
        shutil.rmtree(out)

    _stays_flat("analyze", one_round)


def test_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    monkeypatch.chdir(tmp_path)
    load = ("load.requests=60", "load.rate=60", "load.output_tokens=4", "load.duration_s=30")

    def one_round(_: int) -> None:
        assert main(["bench", f"server.url={server}", *load, "dataset.prompt_tokens=16"]) == EXIT_OK
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)

    _stays_flat("bench", one_round)


def _unpacked(packed: Path, folder: Path) -> Path:
    if packed.suffix != ".xz":
        return packed
    path = folder / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


@pytest.fixture
def server() -> Iterator[str]:
    """In a process of its own: its memory is not measured."""
    port = 18_000 + os.getpid() % 10_000
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, str(FAKE_SERVER), "--host", "127.0.0.1", "--port", str(port)]) as process:
        try:
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                except urllib.error.URLError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
