"""What `capture.requests=slowest` finds on a real vLLM, and what it costs.

    python benchmarks/slow_requests.py planted MODEL [--runs 20]      a long prompt among six streams, run by run
    python benchmarks/slow_requests.py overhead MODEL [--seconds 40]  the record switched on and off in one server

MODEL is a folder with a configuration and a tokenizer (weights are random) for 10,000 positions or more; `vllm` is on
the PATH. As root the client gets a real-time priority where it shares two cores with the server, or it would be late.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.engine import RunningServer, ServerPlace, running_server
from llm_perf_opt.serving.load_records import LoadRun
from llm_perf_opt.serving.load_run import run_level, send_one_by_one
from llm_perf_opt.serving.requests.adapters.choose import INJECT, record_steps
from llm_perf_opt.serving.requests.request_causes import LevelRecords, explain_level
from llm_perf_opt.serving.requests.request_trace import read_steps
from llm_perf_opt.serving.requests.stored_requests import STEP_FILES
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection, ServerSection
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.serving.traffic.synthetic import PROBE_WORDS, made_up
from llm_perf_opt.system.redact import Redactor

RESULTS = Path(__file__).with_name("results")
STREAMS, LONG, SHORT = 6, 8000, 64
# Not a part of a second: the page of metrics is read once in one.
TOGGLE_S = 0.37
# Only decode steps with this many sequences are compared.
BATCH = 8
ENOUGH_STEPS = 10
TOGGLED = f"""
import atexit, json, os, time
import llm_perf_vllm_steps as ours

class Toggled(ours.StepRecorder):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = open(os.environ["TOGGLED"], "w", buffering=1 << 16)
        self.before = None

    def schedule(self, *args, **kwargs):
        now = time.monotonic()
        self.records = int(now / {TOGGLE_S}) % 2 == 0
        if self.before is not None:
            self.seen.write(f"{{self.before[0]:.7f}} {{now - self.before[0]:.7f}} {{self.before[1]}}\\n")
        output = super().schedule(*args, **kwargs)
        work = output.num_scheduled_tokens
        self.before = (now, len(work)) if work and max(work.values()) == 1 else None
        if not work:
            self.seen.flush()
        return output

class ToggledScheduler(Toggled, ours.Scheduler):
    pass

def scheduler(**kwargs):
    return ToggledScheduler(**kwargs)
"""


@contextmanager
def started(model: str, folder: Path, *, toggled: bool = False) -> Iterator[RunningServer]:
    """vLLM with its steps recorded."""
    section = ServerSection(
        name="vllm",
        command=("vllm", "serve", "{args}", "--host", "{host}", "--port", "{port}"),
        args=(model, "--load-format", "dummy", "--max-model-len", "10000", "--enforce-eager",
              "--max-num-batched-tokens", "2048"),
        env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
        ignore_eos=True,
        ready_timeout_s=600.0,
    )  # fmt: skip
    if toggled:
        (folder / "toggled_steps.py").write_text(TOGGLED)
        path = os.pathsep.join((str(INJECT), str(folder)))
        env = {"PYTHONPATH": path, "LLM_PERF_STEPS": str(folder), "TOGGLED": str(folder / "toggled.txt")}
        section = replace(section, env={**section.env, **env})
        more: tuple[str, ...] = ("--scheduler-cls", "toggled_steps.scheduler")
    else:
        recording = record_steps(section, folder, os.environ)
        if recording.declined is not None:
            raise SystemExit(recording.declined)
        section, more = recording.section, recording.args
    place = ServerPlace(out_dir=folder, cwd=folder, environ=os.environ, redactor=Redactor(), say=print)
    with running_server(section, place, more_args=more) as server:
        if os.geteuid() == 0:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        yield server


def template_for(server: RunningServer) -> RequestTemplate:
    return RequestTemplate(
        model=server.model, api="completions", output_tokens=64, temperature=0.0, seed=0, ignore_eos=True
    )


def words_per_token(server: RunningServer) -> float:
    turns = [Turn(text=made_up(PROBE_WORDS, "probe")), Turn(text=made_up(PROBE_WORDS, "warm"))]
    records = send_one_by_one(server.target, template_for(server), turns, stall_s=120.0, most_s=240.0)
    if records[-1].status != "ok" or not records[-1].prompt_tokens:
        raise SystemExit(f"the server did not answer: {records[-1].error}")
    return PROBE_WORDS / records[-1].prompt_tokens


def planted(model: str, runs: int) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with started(model, folder) as server:
            rate = words_per_token(server)
            for number in range(runs):
                rows.append(one_run(server, folder, number, rate))
                print(json.dumps(rows[-1]), flush=True)
    right = sum(row["cause"] == STREAMS and row["spikes_of_it"] == STREAMS for row in rows)
    least = min(row["steps_matched"] for row in rows)
    return {"runs": rows, "identified": right, "of": runs, "least_steps_matched": least}


def one_run(server: RunningServer, folder: Path, number: int, rate: float) -> dict[str, Any]:
    """Six streams, and after a second a long prompt; each run has texts of its own, so nothing is in a cache."""
    short = [TraceSession(turns=(TraceTurn(tokens=SHORT, output_tokens=600),), at_s=0.02 * n) for n in range(STREAMS)]
    long = TraceSession(turns=(TraceTurn(tokens=LONG, output_tokens=8),), at_s=1.0)
    traffic = TraceTraffic(sessions=(*short, long), words_per_token=rate, seed=f"run-{number}")
    load = LoadSection(arrival="recorded", requests=STREAMS + 1, duration_s=60.0, drain_s=120.0)
    template = replace(template_for(server), id_prefix=f"llmperf.bench.{number}")
    # At the recorded moments: the rate of the recording itself.
    level = LoadLevel(rate=STREAMS / 1.0)
    run = run_level(LoadRun(level=level), server.target, template, traffic, load)
    (path,) = folder.glob(STEP_FILES)
    trace = read_steps(path.read_bytes().splitlines())
    records = tuple(run.records)
    slow = explain_level(LevelRecords(key=level.key, label=level.label, begun_s=run.begun_s, records=records), [trace])
    streams = [one for one in slow.slowest if one.index < STREAMS]
    spikes = [one.longest_gap.request == STREAMS for one in streams if one.longest_gap is not None]
    errors = [abs(sum(part.time_s for part in one.parts) / one.e2e_s - 1.0) for one in slow.slowest]
    match = slow.match
    return {
        "requests": len(records),
        "failed": sum(record.status != "ok" for record in records),
        "cause": slow.delays[0].request if slow.delays else None,
        "victims": slow.delays[0].victims if slow.delays else 0,
        "delay_ms": round(1e3 * slow.delays[0].time_s, 1) if slow.delays else 0.0,
        "spikes_of_it": sum(spikes),
        "longest_gaps_ms": [round(1e3 * one.longest_gap.time_s, 1) for one in streams if one.longest_gap is not None],
        "steps_matched": 0.0 if match is None else match.steps_share,
        "tokens_matched": 0.0 if match is None else match.tokens_share,
        "largest_error_of_sum": max(errors),
        "client_lag_mean_ms": None if run.lag is None else round(1e3 * run.lag.mean_s, 2),
    }


def overhead(model: str, seconds: float) -> dict[str, Any]:
    """Periods of steps that decode eight sequences, with and without the record, interleaved of half a second."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with started(model, folder, toggled=True) as server:
            rate = words_per_token(server)
            session = TraceSession(turns=(TraceTurn(tokens=SHORT, output_tokens=2000),))
            traffic = TraceTraffic(sessions=(session,), words_per_token=rate, seed="overhead")
            load = LoadSection(requests=100_000, duration_s=seconds, drain_s=60.0)
            run_level(LoadRun(level=LoadLevel(concurrency=BATCH)), server.target, template_for(server), traffic, load)
        rows = [line.split() for line in (folder / "toggled.txt").read_text().splitlines()]
    windows: defaultdict[int, list[float]] = defaultdict(list)
    for at_s, time_s, batch in rows:
        # A step belongs to the window it began in.
        if int(batch) == BATCH:
            windows[int(float(at_s) / TOGGLE_S)].append(1e3 * float(time_s))
    medians = {number: statistics.median(times) for number, times in windows.items() if len(times) >= ENOUGH_STEPS}
    # Steps grow with the context: a window with the record is compared with those before and after it.
    pairs = [
        (medians[n], (medians[n - 1] + medians[n + 1]) / 2)
        for n in sorted(medians)
        if n % 2 == 0 and {n - 1, n + 1} <= medians.keys()
    ]
    ratios = [on / off - 1.0 for on, off in pairs]
    low, high = interval(ratios)
    own_us = 1e6 * own_time_s()
    off_ms = statistics.median(off for _, off in pairs)
    return {
        "windows": len(pairs),
        "steps": sum(len(times) for times in windows.values()),
        "median_ms": {"on": statistics.median(on for on, _ in pairs), "off": off_ms},
        "overhead": statistics.median(ratios),
        "overhead_95": [low, high],
        "own_us_per_step": own_us,
        "own_share_of_step": own_us / 1e3 / off_ms,
    }


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by drawing pairs again."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def own_time_s(steps: int = 20_000) -> float:
    """What the recorder itself takes for a step of eight sequences: an empty scheduler with and without it."""
    plain, recorded = stand_ins()
    times = {}
    for name, kind in (("plain", plain), ("recorded", recorded)):
        best = float("inf")
        for _ in range(5):
            scheduler = kind()
            for number in range(BATCH):
                scheduler.add_request(
                    SimpleNamespace(
                        request_id=f"cmpl-llmperf.ab12cd34.1.{number}-0-0a1b2c3d",
                        num_prompt_tokens=64,
                        num_computed_tokens=64,
                        arrival_time=time.time(),
                    )
                )
            began = time.perf_counter()
            for _ in range(steps):
                scheduler.update_from_output(scheduler.schedule(), scheduler.made)
            best = min(best, (time.perf_counter() - began) / steps)
        times[name] = best
    return times["recorded"] - times["plain"]


def stand_ins() -> tuple[Any, Any]:
    """A scheduler as small as can be, and the same with our recorder, which is imported with stand-ins for vLLM."""

    class Plain:
        def __init__(self) -> None:
            self.requests: dict[str, Any] = {}
            self.running: list[Any] = []
            self.waiting: list[Any] = []

        def add_request(self, request: Any) -> None:
            self.requests[request.request_id] = request
            self.running.append(request)
            names = list(self.requests)
            self.work = dict.fromkeys(names, 1)
            self.made = SimpleNamespace(req_ids=names, sampled_token_ids=[[5]] * len(names))

        def schedule(self) -> Any:
            return SimpleNamespace(num_scheduled_tokens=self.work)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None:
            return None

    sched = "vllm.v1.core.sched"
    for name in ("vllm", "vllm.v1", "vllm.v1.core", sched, f"{sched}.scheduler", f"{sched}.async_scheduler"):
        sys.modules[name] = ModuleType(name)
    sys.modules["vllm"].__version__ = "0.32.0"  # type: ignore[attr-defined]
    sys.modules[f"{sched}.scheduler"].Scheduler = Plain  # type: ignore[attr-defined]
    sys.modules[f"{sched}.async_scheduler"].AsyncScheduler = Plain  # type: ignore[attr-defined]
    sys.path.insert(0, str(INJECT))
    os.environ["LLM_PERF_STEPS"] = tempfile.mkdtemp()
    import llm_perf_vllm_steps

    return Plain, type("Recorded", (llm_perf_vllm_steps.StepRecorder, Plain), {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("planted", "overhead"))
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    model = str(Path(args.model).resolve())
    result = planted(model, args.runs) if args.what == "planted" else overhead(model, args.seconds)
    path = RESULTS / f"slow_requests_{args.what}.json"
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "runs"}, indent=2))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
