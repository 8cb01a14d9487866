"""Whether `llm-perf bench` and `vllm bench serve` measure the same: one server, the same prompts, at the same time.

    python benchmarks/bench_agreement.py VLLM_BIN [--rates 1.5,2.5] [--requests 200] [--concurrency 1,8,32 [--rounds 3]]

VLLM_BIN is the bin folder of an environment with vLLM and pandas, for the CPU or a GPU; a tiny random model is served.
Both clients load it side by side, with the same prompts and request bodies and Poisson arrivals of the same rate, each
its own: requests of the two take turns by chance, so what the machine does meanwhile hits both. (In rounds, first the
one, then the other, a machine whose speed moves by a tenth within a minute cannot be distinguished from a client.)
Prefix caching is off. Rates are those of one client; both together should leave the server idle half of the time,
because a queue makes a small difference large.

With --concurrency both clients load the server interleaved instead, in closed loops of these streams, because two
closed loops at once would be a load of both. As root, the clients run with real-time priority (`chrt`): on two cores a
client without it loses the CPU to vLLM for up to a second at a time, ours and theirs. The server gets a high priority
of the usual kind (`nice`, of its processes and of their autogroup), because Linux stops real-time processes that use
whole cores for 50 ms of every second.

Printed and written to benchmarks/results/bench_agreement.json (with --concurrency to
bench_agreement_concurrency.json), each difference of medians with its 95 % interval
(bootstrap over requests); exit code 1 where a median differs by more than 5 %. Takes about five minutes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from llm_perf_opt.serving.engine import ServerPlace, running_server  # noqa: E402
from llm_perf_opt.serving.serving_config import ServerSection  # noqa: E402
from llm_perf_opt.serving.traffic.synthetic import made_up  # noqa: E402
from llm_perf_opt.system.redact import Redactor  # noqa: E402
from tests.support.tiny_snapshot import write_tiny_snapshot  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "bench_agreement.json"
AIM = 0.05
OUTPUT_TOKENS = 16
PROMPT_WORDS = 10
# Steps of more than 10 ms on one core, as those of real servers: on two cores the client takes its CPU time from the
# server, and with steps of 2 ms the lighter client left a server that was up to 16 % faster.
LAYERS = 8
WIDE = {
    "hidden_size": 768,
    "intermediate_size": 2112,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
}
# Waves of a closed loop in each round: which prompts share a step depends on chance in the first few.
WAVES = 12
DRAWINGS = 1000
START_TIMEOUT_S = 180
SIDE_TIMEOUT_S = 900
FloatArray = npt.NDArray[np.float64]
Sides = dict[str, "Seen"]


@dataclass(kw_only=True)
class Seen:
    """What one client saw at one rate, in milliseconds."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)

    def extend(self, other: "Seen") -> None:
        for one in fields(self):
            getattr(self, one.name).extend(getattr(other, one.name))

    def add(self, ttft_s: float, gaps_s: list[float], tokens: int) -> None:
        self.ttft.append(1e3 * ttft_s)
        self.itl += [1e3 * gap for gap in gaps_s]
        self.e2el.append(1e3 * (ttft_s + sum(gaps_s)))
        self.tpot.append(1e3 * sum(gaps_s) / (tokens - 1))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The server under test, and where results go."""

    vllm_bin: Path
    url: str
    model: Path
    root: Path


@dataclass(frozen=True, kw_only=True)
class Load:
    """A rate or a concurrency, as each client is reported it."""

    rate: float | None = None
    concurrency: int | None = None

    @property
    def name(self) -> str:
        return f"rate-{self.rate:g}" if self.rate is not None else f"concurrency-{self.concurrency}"

    @property
    def ours(self) -> str:
        return f"load.rate={self.rate}" if self.rate is not None else f"load.concurrency={self.concurrency}"

    @property
    def theirs(self) -> list[str]:
        if self.rate is not None:
            return ["--request-rate", str(self.rate)]
        return ["--max-concurrency", str(self.concurrency)]


@dataclass(frozen=True, kw_only=True)
class Client:
    """A load generator that runs, and what it prints."""

    process: "subprocess.Popen[bytes]"
    log: Path


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
        ready_timeout_s=900,
    )
    place = ServerPlace(
        out_dir=folder,
        cwd=folder,
        environ={**os.environ, "PATH": f"{vllm_bin}{os.pathsep}{os.environ['PATH']}"},
        redactor=Redactor(),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    with running_server(section, place, prefix=["nice", "-n", "-20"] if os.geteuid() == 0 else []) as server:
        if server.service is not None and os.geteuid() == 0:
            prefer(server.service.pid)
        yield server.target.url


def prefer(pid: int) -> None:
    """Between sessions Linux compares the priorities of their autogroups, where it has them."""
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text("-20")


def realtime() -> list[str]:
    return ["chrt", "-r", "1"] if os.geteuid() == 0 and shutil.which("chrt") else []


def start_ours(setup: Setup, prompts: Path, load: "Load", count: int, folder: Path) -> Client:
    words = [f"server.url={setup.url}", "server.ignore_eos=true", "dataset=prompts", f"dataset.file={prompts}"]
    words += [load.ours, f"load.requests={count}", f"load.duration_s={SIDE_TIMEOUT_S}"]
    words += ["load.warmup_requests=2", f"load.output_tokens={OUTPUT_TOKENS}", f"artifacts.runs_dir={folder}"]
    return _start([sys.executable, "-m", "llm_perf_opt.cli", "bench", *words], folder, ": started")


def start_theirs(setup: Setup, prompts: Path, load: "Load", count: int, folder: Path) -> Client:
    command = [str(setup.vllm_bin / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", setup.url]
    command += ["--model", str(setup.model), "--dataset-name", "custom", "--dataset-path", str(prompts)]
    command += ["--custom-output-len", str(OUTPUT_TOKENS), "--skip-chat-template", "--disable-shuffle"]
    command += ["--num-prompts", str(count), *load.theirs, "--ignore-eos", "--disable-tqdm"]
    command += ["--temperature", "0", "--extra-body", '{"seed": 0}', "--num-warmups", "2"]
    command += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "theirs.json"]
    return _start(command, folder, "Starting main benchmark run")


def _start(command: list[str], folder: Path, is_ready: str) -> Client:
    """Come back when it is about to send: both take seconds to start."""
    log = folder.with_suffix(".log")
    command = [*realtime(), *command]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, cwd=folder.parent
        )
    until = time.monotonic() + START_TIMEOUT_S
    while is_ready not in log.read_text() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return Client(process=process, log=log)


def read_ours(folder: Path) -> Seen:
    seen = Seen()
    for line in (folder / "bench" / "requests.jsonl").read_text().splitlines():
        one = json.loads(line)
        seen.add(one["ttft_s"], one["gaps_s"], one["output_tokens"])
    (level,) = json.loads((folder / "bench" / "bench.json").read_text())["levels"]
    seen.tokens_per_s.append(level["output_tokens_per_s"])
    return seen


def read_theirs(folder: Path, count: int) -> Seen:
    seen = Seen()
    found = json.loads((folder / "theirs.json").read_text())
    if found["completed"] != count:
        raise SystemExit(f"vllm bench serve completed {found['completed']} of {count} requests")
    for ttft_s, gaps_s, tokens in zip(found["ttfts"], found["itls"], found["output_lens"], strict=True):
        seen.add(ttft_s, gaps_s, tokens)
    seen.tokens_per_s.append(found["output_throughput"])
    return seen


def measure(setup: Setup, load: Load, count: int, *, sides: Sequence[str] = ("theirs", "ours"), tag: str = "") -> Sides:
    """These clients under this load, at the same time."""
    name = f"{load.name}{tag}"
    prompts = setup.root / f"prompts-{name}.jsonl"
    texts = [made_up(PROMPT_WORDS, f"{name}-{n}") for n in range(count)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    folders = {side: setup.root / f"{side}-{name}" for side in sides}
    clients = [STARTS[side](setup, prompts, load, count, folders[side]) for side in sides]
    try:
        for client in clients:
            code = client.process.wait(timeout=SIDE_TIMEOUT_S)
            if code:
                raise SystemExit(f"exit code {code}\n{client.log.read_text()[-2000:]}")
    finally:
        for client in clients:
            client.process.kill()
    return {side: read_ours(folders[side]) if side == "ours" else read_theirs(folders[side], count) for side in sides}


def measure_in_turns(setup: Setup, load: Load, count: int, rounds: int) -> Sides:
    """One client after the other, the order reversed from round to round."""
    found: Sides = {"ours": Seen(), "theirs": Seen()}
    for number in range(rounds):
        for side in sorted(found, reverse=bool(number % 2)):
            found[side].extend(measure(setup, load, count, sides=(side,), tag=f"-{number}")[side])
    return found


# Theirs takes longer to start.
STARTS = {"theirs": start_theirs, "ours": start_ours}


def compare(load: Load, sides: Sides) -> dict[str, Any]:
    medians: dict[str, dict[str, Any]] = {}
    for name in (one.name for one in fields(Seen)):
        a, b = (np.array(getattr(sides[side], name)) for side in ("ours", "theirs"))
        row = {"ours": round(float(np.median(a)), 3), "theirs": round(float(np.median(b)), 3)}
        medians[name] = {**row, "difference": round(row["ours"] / row["theirs"] - 1, 4), "interval": interval(a, b)}
    requests = {side: len(seen.ttft) for side, seen in sides.items()}
    return {"load": load.name, "requests": requests, "medians": medians}


def interval(a: FloatArray, b: FloatArray) -> list[float] | None:
    """Where the difference lies in 95 of 100 drawings of values; None for a figure there is one of."""
    if len(a) < 2:
        return None
    draw = np.random.default_rng(0)
    medians = [np.median(draw.choice(side, (DRAWINGS, len(side))), axis=1) for side in (a, b)]
    low, high = np.percentile(medians[0] / medians[1] - 1, [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def loads_of(args: argparse.Namespace) -> list[Load]:
    if args.concurrency:
        return [Load(concurrency=int(text)) for text in args.concurrency.split(",")]
    return [Load(rate=float(text)) for text in args.rates.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm_bin", type=Path)
    parser.add_argument("--rates", default="1.5,2.5")
    parser.add_argument("--concurrency", help="streams of closed loops, with commas, in place of rates")
    parser.add_argument("--rounds", type=int, default=3, help="of each client at each concurrency")
    parser.add_argument("--requests", type=int, default=200, help="of each client at each rate")
    args = parser.parse_args()
    levels = []
    with tempfile.TemporaryDirectory(prefix="bench-agreement-") as scratch:
        root, vllm_bin = Path(scratch), args.vllm_bin.resolve()
        model = write_tiny_snapshot(root / "tiny", weights=False)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **WIDE, "num_hidden_layers": LAYERS}))
        with serve(vllm_bin, model, root) as url:
            setup = Setup(vllm_bin=vllm_bin, url=url, model=model, root=root)
            for load in loads_of(args):
                if load.rate is not None:
                    sides = measure(setup, load, args.requests)
                else:
                    count = max(args.requests, WAVES * (load.concurrency or 1))
                    sides = measure_in_turns(setup, load, count, args.rounds)
                levels.append(compare(load, sides))
                print(json.dumps(levels[-1]), file=sys.stderr, flush=True)
    worst = max(abs(row["difference"]) for level in levels for row in level["medians"].values())
    document = {
        "aim": AIM,
        "worst_difference": worst,
        "output_tokens": OUTPUT_TOKENS,
        "layers": LAYERS,
        "hidden_size": WIDE["hidden_size"],
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "levels": levels,
    }
    print(json.dumps(document, indent=2))
    results = RESULTS.with_stem(f"{RESULTS.stem}_concurrency") if args.concurrency else RESULTS
    results.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if worst <= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
