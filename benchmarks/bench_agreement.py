"""Whether `llm-perf bench` and `vllm bench serve` measure the same: one server, the same prompts, at the same time.

    python benchmarks/bench_agreement.py VLLM_BIN [--rates 1,2] [--requests 200]

VLLM_BIN is the bin folder of an environment with vLLM and pandas, for the CPU or a GPU; a tiny random model is served.
Both clients load it side by side, each with the same prompts at the same rate, so that whatever else the machine
does is in both. Requests come one every so often, ours to the clock and theirs with gaps that vary by a tenth: spread
evenly over the same minutes, and neither always before the other. Prefix caching is off: both send the same prompts.
Rates are those of one client, and should leave the server idle half of the time.

Printed and written to benchmarks/results/bench_agreement.json, each difference of medians with its 95 % interval
(bootstrap over requests); exit code 1 where a median differs by more than 5 %. Takes about eight minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from llm_perf_opt.core.redact import Redactor  # noqa: E402
from llm_perf_opt.serving.config import ServerSection  # noqa: E402
from llm_perf_opt.serving.engine import ServerPlace, running_server  # noqa: E402
from llm_perf_opt.serving.prompts import made_up  # noqa: E402
from tests.support.tiny_snapshot import write_tiny_snapshot  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "bench_agreement.json"
AIM = 0.05
OUTPUT_TOKENS = 32
PROMPT_WORDS = 40
LAYERS = 8
DRAWINGS = 1000
FloatArray = npt.NDArray[np.float64]


@dataclass(kw_only=True)
class Requests:
    """Milliseconds of all requests of one side at one rate."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)

    def add(self, ttft_s: float, gaps_s: list[float], tokens: int) -> None:
        self.ttft.append(1e3 * ttft_s)
        self.itl += [1e3 * gap for gap in gaps_s]
        self.e2el.append(1e3 * (ttft_s + sum(gaps_s)))
        self.tpot.append(1e3 * sum(gaps_s) / (tokens - 1))


@contextmanager
def serve(vllm_bin: Path, model: Path, folder: Path) -> Iterator[str]:
    section = ServerSection(
        name="vllm",
        command=(str(vllm_bin / "vllm"), "serve", "{args}", "--host", "{host}", "--port", "{port}"),
        args=(
            str(model),
            *["--load-format", "dummy", "--max-model-len", "1024", "--enforce-eager"],
            "--no-enable-prefix-caching",
        ),
        # The model on one core alone, on a CPU: its threads wait by spinning, and server and client need a core too.
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "HF_HUB_OFFLINE": "1"},
        ready_timeout_s=1500,
    )
    place = ServerPlace(
        out_dir=folder,
        cwd=folder,
        environ={**os.environ, "PATH": f"{vllm_bin}{os.pathsep}{os.environ['PATH']}"},
        redactor=Redactor(),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    with running_server(section, place) as server:
        yield server.target.url


def start_ours(url: str, prompts: Path, rate: float, count: int, folder: Path) -> "subprocess.Popen[str]":
    words = [f"server.url={url}", "dataset=prompts", f"dataset.file={prompts}", f"load.rate={rate}"]
    words += [
        f"load.requests={count}",
        f"load.duration_s={2 * count / rate}",
        "load.warmup_requests=1",
        "load.arrival=constant",
    ]
    words += [f"load.output_tokens={OUTPUT_TOKENS}", "server.ignore_eos=true", f"artifacts.runs_dir={folder}"]
    command = [sys.executable, "-m", "llm_perf_opt.cli", "bench", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder.parent, text=True)


def start_theirs(
    vllm_bin: Path, url: str, model: Path, prompts: Path, rate: float, count: int, folder: Path
) -> "subprocess.Popen[str]":
    """Come back when it is about to send: it takes long to start."""
    folder.mkdir()
    command = [str(vllm_bin / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", url]
    command += ["--model", str(model), "--dataset-name", "custom", "--dataset-path", str(prompts)]
    command += ["--custom-output-len", str(OUTPUT_TOKENS), "--skip-chat-template", "--disable-shuffle"]
    command += ["--num-prompts", str(count), "--request-rate", str(rate), "--burstiness", "100", "--ignore-eos"]
    command += ["--num-warmups", "1", "--temperature", "0", "--save-result", "--save-detailed", "--disable-tqdm"]
    command += ["--result-dir", str(folder), "--result-filename", "theirs.json"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environ, cwd=folder, text=True)
    while "Starting main benchmark run" not in log.read_text() and process.poll() is None:
        time.sleep(0.05)
    return process


def read_ours(folder: Path) -> Requests:
    seen = Requests()
    for line in (folder / "bench" / "requests.jsonl").read_text().splitlines():
        one = json.loads(line)
        seen.add(one["ttft_s"], one["gaps_s"], one["output_tokens"])
    (level,) = json.loads((folder / "bench" / "bench.json").read_text())["levels"]
    seen.tokens_per_s.append(level["output_tokens_per_s"])
    return seen


def read_theirs(folder: Path, count: int) -> Requests:
    seen = Requests()
    found = json.loads((folder / "theirs.json").read_text())
    if found["completed"] != count:
        raise SystemExit(f"vllm bench serve completed {found['completed']} of {count} requests")
    for ttft_s, gaps_s, tokens in zip(found["ttfts"], found["itls"], found["output_lens"], strict=True):
        seen.add(ttft_s, gaps_s, tokens)
    seen.tokens_per_s.append(found["output_throughput"])
    return seen


def measure(vllm_bin: Path, url: str, model: Path, rate: float, count: int, root: Path) -> dict[str, Requests]:
    """Both clients at this rate, at the same time."""
    prompts = root / f"prompts-{rate}.jsonl"
    texts = [made_up(PROMPT_WORDS, f"{rate}-{n}") for n in range(count)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    folders = {"ours": root / f"ours-{rate}", "theirs": root / f"theirs-{rate}"}
    theirs = start_theirs(vllm_bin, url, model, prompts, rate, count, folders["theirs"])
    ours = start_ours(url, prompts, rate, count, folders["ours"])
    try:
        codes = {"ours": ours.wait(timeout=900), "theirs": theirs.wait(timeout=900)}
    finally:
        ours.kill()
        theirs.kill()
    if any(codes.values()):
        raise SystemExit(f"exit codes {codes}\n{(folders['theirs'] / 'log.txt').read_text()[-2000:]}")
    return {"ours": read_ours(folders["ours"]), "theirs": read_theirs(folders["theirs"], count)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm_bin", type=Path)
    parser.add_argument("--rates", default="1,2")
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()
    levels = []
    with tempfile.TemporaryDirectory(prefix="bench-agreement-") as scratch:
        root = Path(scratch)
        model = write_tiny_snapshot(root / "tiny", weights=False)
        # Steps that take longer than it takes to tell of them.
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
        with serve(args.vllm_bin.resolve(), model, root) as url:
            for rate in (float(text) for text in args.rates.split(",")):
                levels.append(compare(rate, measure(args.vllm_bin.resolve(), url, model, rate, args.requests, root)))
                print(json.dumps(levels[-1]), file=sys.stderr, flush=True)
    worst = max(abs(row["difference"]) for level in levels for row in level["medians"].values())
    document = {"aim": AIM, "worst_difference": worst, "output_tokens": OUTPUT_TOKENS, "levels": levels}
    print(json.dumps(document, indent=2))
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if worst <= AIM else 1


def compare(rate: float, sides: dict[str, Requests]) -> dict[str, Any]:
    medians: dict[str, dict[str, Any]] = {}
    for name in asdict(sides["ours"]):
        a, b = (np.array(getattr(sides[side], name)) for side in ("ours", "theirs"))
        row = {"ours": round(float(np.median(a)), 3), "theirs": round(float(np.median(b)), 3)}
        medians[name] = {**row, "difference": round(row["ours"] / row["theirs"] - 1, 4), "interval": interval(a, b)}
    return {"rate": rate, "requests": {side: len(seen.ttft) for side, seen in sides.items()}, "medians": medians}


def interval(a: FloatArray, b: FloatArray) -> list[float] | None:
    """Where the difference lies in 95 of 100 drawings of requests; None for a figure there is one of."""
    if len(a) < 2:
        return None
    draw = np.random.default_rng(0)
    medians = [np.median(draw.choice(side, (DRAWINGS, len(side))), axis=1) for side in (a, b)]
    low, high = np.percentile(medians[0] / medians[1] - 1, [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


if __name__ == "__main__":
    sys.exit(main())
