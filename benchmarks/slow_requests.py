"""What `capture.requests=slowest` finds on a real vLLM, and what it costs.

    python benchmarks/slow_requests.py planted MODEL [--runs 20]      a long prompt among six streams, run by run
    python benchmarks/slow_requests.py overhead MODEL [--seconds 40]  the record switched on and off in one server

MODEL is a folder with a configuration and a tokenizer (weights are random) for 10,000 positions or more; `vllm` is on
the PATH. As root the client gets a real-time priority where it shares two cores with the server, or it would be late.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.config import LoadLevel, LoadSection, ServerSection
from llm_perf_opt.serving.engine import RunningServer, ServerPlace, running_server
from llm_perf_opt.serving.load import run_level, send_one_by_one
from llm_perf_opt.serving.records import LoadRun
from llm_perf_opt.serving.requests.adapters.choose import INJECT, record_steps
from llm_perf_opt.serving.requests.explain import LevelRecords, explain_level
from llm_perf_opt.serving.requests.stored import STEP_FILES
from llm_perf_opt.serving.requests.trace import read_steps
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.serving.traffic.synthetic import PROBE_WORDS, made_up
from llm_perf_opt.serving.traffic.trace import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.system.redact import Redactor

RESULTS = Path(__file__).with_name("results")
STREAMS, LONG, SHORT = 6, 8000, 64
TOGGLE_S = 0.5
# Nothing but decoding of so many sequences is compared.
BATCH = 8
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
            self.seen.write(f"{{now - self.before[0]:.7f}} {{self.before[1]}} {{int(self.before[2])}}\\n")
        output = super().schedule(*args, **kwargs)
        work = output.num_scheduled_tokens
        self.before = (now, len(work), self.records) if work and max(work.values()) == 1 else None
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
    level = LoadLevel(rate=float(STREAMS))
    run = LoadRun(level=level)
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
    """Periods of steps that decode eight sequences, with and without the record, in turns of half a second."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with started(model, folder, toggled=True) as server:
            rate = words_per_token(server)
            session = TraceSession(turns=(TraceTurn(tokens=SHORT, output_tokens=2000),))
            traffic = TraceTraffic(sessions=(session,), words_per_token=rate, seed="overhead")
            load = LoadSection(requests=100_000, duration_s=seconds, drain_s=60.0)
            run_level(LoadRun(level=LoadLevel(concurrency=BATCH)), server.target, template_for(server), traffic, load)
        lines = [line.split() for line in (folder / "toggled.txt").read_text().splitlines()]
    times: dict[str, list[float]] = {"off": [], "on": []}
    for time_s, batch, is_on in lines:
        if int(batch) == BATCH:
            times["on" if int(is_on) else "off"].append(1e3 * float(time_s))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "steps": {name: len(values) for name, values in times.items()},
        "median_ms": medians,
        "trimmed_mean_ms": {name: _trimmed(values) for name, values in times.items()},
        "overhead_of_median": medians["on"] / medians["off"] - 1.0,
    }


def _trimmed(values: list[float]) -> float:
    """Without the slowest tenth, in which other programs had the core."""
    kept = sorted(values)[: max(1, len(values) * 9 // 10)]
    return statistics.fmean(kept)


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
