"""Whether `llm-perf bench` and `vllm bench serve` measure the same: one server, the same prompts, in turns.

    python benchmarks/bench_agreement.py VLLM_BIN [--rates 5,10] [--requests 200] [--slices 2] [--nice N]

VLLM_BIN is the bin folder of an environment with vLLM, for the CPU or a GPU; a tiny random model is served. Each rate's
requests are sent in slices, ours and theirs in turns, so that whatever else the machine does meanwhile is in both; the
requests of all slices of a side are taken together. Arrivals are constant for both (burstiness 1e6 for theirs), since
the two draw their Poisson gaps differently. Prefix caching is off: both send the same prompts. Printed and written to
benchmarks/results/bench_agreement.json; exit code 1 where a median differs by more than 5 %. On a machine with other
work the medians of one side alone differ more than that from slice to slice: --nice -15 (as root) gives the server and
both clients the machine whenever they want it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

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


def put_first(pids: list[int], nice: int) -> None:
    """A priority is a thread's own, and that of its session where the kernel groups processes by theirs."""
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, nice)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text(str(nice))
            # The kernel takes one change of a group every tenth of a second.
            time.sleep(0.2)


def ours(url: str, prompts: Path, rate: float, count: int, seen: Requests, folder: Path) -> None:
    words = [f"server.url={url}", "dataset=prompts", f"dataset.file={prompts}", f"load.rate={rate}"]
    words += [f"load.requests={count}", "load.arrival=constant", "load.duration_s=600", "load.warmup_requests=1"]
    words += [f"load.output_tokens={OUTPUT_TOKENS}", "server.ignore_eos=true", f"artifacts.runs_dir={folder}"]
    command = [sys.executable, "-m", "llm_perf_opt.cli", "bench", *words]
    subprocess.run(command, check=True, timeout=900, stdout=subprocess.DEVNULL, cwd=folder.parent)
    for line in (folder / "bench" / "requests.jsonl").read_text().splitlines():
        one = json.loads(line)
        seen.add(one["ttft_s"], one["gaps_s"], one["output_tokens"])
    (level,) = json.loads((folder / "bench" / "bench.json").read_text())["levels"]
    seen.tokens_per_s.append(level["output_tokens_per_s"])


def theirs(
    vllm_bin: Path, url: str, model: Path, prompts: Path, rate: float, count: int, seen: Requests, folder: Path
) -> None:
    folder.mkdir()
    command = [str(vllm_bin / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", url]
    command += ["--model", str(model), "--dataset-name", "custom", "--dataset-path", str(prompts)]
    command += ["--custom-output-len", str(OUTPUT_TOKENS), "--skip-chat-template", "--disable-shuffle"]
    command += ["--num-prompts", str(count), "--request-rate", str(rate), "--burstiness", "1e6", "--ignore-eos"]
    command += ["--num-warmups", "1", "--temperature", "0", "--save-result", "--save-detailed", "--disable-tqdm"]
    command += ["--result-dir", str(folder), "--result-filename", "theirs.json"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, timeout=900, stdout=subprocess.DEVNULL, env=environ, cwd=folder)
    found = json.loads((folder / "theirs.json").read_text())
    if found["completed"] != count:
        raise SystemExit(f"vllm bench serve completed {found['completed']} of {count} requests")
    for ttft_s, gaps_s, tokens in zip(found["ttfts"], found["itls"], found["output_lens"], strict=True):
        seen.add(ttft_s, gaps_s, tokens)
    seen.tokens_per_s.append(found["output_throughput"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm_bin", type=Path)
    parser.add_argument("--rates", default="5,10")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--slices", type=int, default=2)
    parser.add_argument("--nice", type=int, default=0, help="priority of the server and of both clients")
    args = parser.parse_args()
    count = args.requests // args.slices
    levels = []
    with tempfile.TemporaryDirectory(prefix="bench-agreement-") as scratch:
        root = Path(scratch)
        model = write_tiny_snapshot(root / "tiny", weights=False)
        # Steps that take longer than it takes to tell of them.
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
        with serve(args.vllm_bin.resolve(), model, root) as url:
            if args.nice:
                # Threads that start from now on take it over, and so do the clients.
                started = [process.pid for process in psutil.Process().children(recursive=True)]
                put_first([*started, os.getpid()], args.nice)
            for rate in (float(text) for text in args.rates.split(",")):
                sides = {"ours": Requests(), "theirs": Requests()}
                for part in range(args.slices):
                    texts = [made_up(PROMPT_WORDS, f"{rate}-{part}-{n}") for n in range(count)]
                    prompts = root / f"prompts-{rate}-{part}.jsonl"
                    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
                    # First one side, then the other, so that neither always has the warmer machine.
                    for side in ("ours", "theirs") if part % 2 == 0 else ("theirs", "ours"):
                        folder = root / f"{side}-{rate}-{part}"
                        if side == "ours":
                            ours(url, prompts, rate, count, sides[side], folder)
                        else:
                            theirs(args.vllm_bin.resolve(), url, model, prompts, rate, count, sides[side], folder)
                levels.append(compare(rate, sides))
                print(json.dumps(levels[-1]), file=sys.stderr, flush=True)
    worst = max(abs(row["difference"]) for level in levels for row in level["medians"].values())
    document = {
        "aim": AIM,
        "nice": args.nice,
        "worst_difference": worst,
        "output_tokens": OUTPUT_TOKENS,
        "levels": levels,
    }
    print(json.dumps(document, indent=2))
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if worst <= AIM else 1


def compare(rate: float, sides: dict[str, Requests]) -> dict[str, object]:
    medians: dict[str, dict[str, float]] = {}
    for name in asdict(sides["ours"]):
        a, b = (statistics.median(getattr(sides[side], name)) for side in ("ours", "theirs"))
        medians[name] = {"ours": round(a, 3), "theirs": round(b, 3), "difference": round(a / b - 1, 4)}
    return {"rate": rate, "requests": {side: len(seen.ttft) for side, seen in sides.items()}, "medians": medians}


if __name__ == "__main__":
    sys.exit(main())
