"""One start of a server with a configuration: started, warmed up, its answers compared, put under load, ended."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.core.records import Progress
from llm_perf_opt.errors import CommandFailed, ToolError
from llm_perf_opt.optimize.experiment_verdict import broken_constraints
from llm_perf_opt.optimize.server.levels import FIRST_CONCURRENCY, climb
from llm_perf_opt.optimize.server.server_document import (
    LoadObservation,
    ServedCheck,
    ServerObjective,
    StartOutcome,
)
from llm_perf_opt.optimize.server.server_evidence import LoadFacts, StreamedRequest, observations
from llm_perf_opt.optimize.server.server_outputs import ServedReference, check_answers
from llm_perf_opt.optimize.server.server_search import StartRequest
from llm_perf_opt.optimize.server.space import (
    START,
    Configuration,
    ServerSettings,
    ServerSpace,
    applied,
    name_of,
    without,
)
from llm_perf_opt.pipeline.bench.bench_config import BenchConfig
from llm_perf_opt.pipeline.bench.warm_up import WarmServer, warm_up
from llm_perf_opt.pipeline.console import Console
from llm_perf_opt.pipeline.optimize.server.answer_check import PROMPTS, ask_answers
from llm_perf_opt.pipeline.optimize.server.server_journal import write_reference
from llm_perf_opt.serving.engine import RunningServer, ServerPlace, running_server
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import LevelResult, level_result, tpot_s
from llm_perf_opt.serving.load_run import run_level
from llm_perf_opt.serving.serving_config import LoadLevel, ServerSection, SloSection
from llm_perf_opt.serving.telemetry import gpu_figures, is_local, sampled_gpus
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession
from llm_perf_opt.system.redact import Redactor

# Sessions no load uses, so that nothing of them is in a cache; below those of the warm-up.
FIRST_CHECKED = -1000
ARGS = "{args}"
# A level in which no request met the limits counts as half a request: its logarithm is then known to be small.
HALF_A_REQUEST = 0.5
NONE_KEPT = (
    "no request of the baseline met the limits, so its goodput counts as half a request: a gain over it says that "
    "requests meet the limits now, not how much faster they are"
)
UNSTEADY = "the baseline answers the same prompts differently from one start to the next: answers cannot be compared"
STREAMS_KEPT = 500
# The answers that are compared may take as long as the requests of a level, but a short level leaves them this time: a
# server without batches makes them one after the other.
ANSWERS_S = 300.0


@dataclass(frozen=True, kw_only=True)
class _MeasuredLevel:
    """A level with the records it is made of."""

    run: LoadRun
    result: LevelResult


@dataclass(kw_only=True)
class ServerEvaluator:
    """Starts servers one after the other, never two at the same time. `reference` are the answers of the start."""

    config: BenchConfig
    space: ServerSpace
    objective: ServerObjective
    folder: Path
    redactor: Redactor
    console: Console
    recorded: tuple[TraceSession, ...]
    gpus: tuple[int | str, ...]
    min_top1: float | None
    constraints: tuple[Condition, ...] = ()
    reference: ServedReference | None = None
    model: str | None = None
    is_unsteady: bool = False
    start_metrics: Mapping[str, float] | None = None
    # The concurrency that suited each configuration best, where the load is climbed to.
    climbed: dict[Configuration, int] = field(default_factory=dict)

    def start(self, request: StartRequest, number: int, *, until: float) -> StartOutcome:
        """One start as a record, however it ends; an interrupt ends the server and continues up."""
        # A child of ours that the first load would start: before any server, or it is mistaken for one of its
        # processes.
        resource_tracker.ensure_running()
        begun = time.monotonic()
        folder = self.folder / f"{number:02d}"
        outcome = StartOutcome(configuration=request.configuration, purpose=request.purpose, status="failed")
        try:
            outcome = self._measured(request, folder, until)
        except (CommandFailed, ToolError) as error:
            outcome = replace(outcome, reason=self.redactor.text(str(error)))
        finally:
            self.console.close()
        log = folder / "server.log"
        return replace(
            outcome,
            took_s=time.monotonic() - begun,
            log=log.relative_to(self.folder.parent).as_posix() if log.is_file() else None,
        )

    def _measured(self, request: StartRequest, folder: Path, until: float) -> StartOutcome:
        configuration = request.configuration
        section = configured(self.config.server, self.space, configuration)
        left_s = max(1.0, until - time.monotonic())
        section = replace(section, ready_timeout_s=min(section.ready_timeout_s, left_s))
        config = replace(self.config, server=section)
        place = ServerPlace(
            out_dir=folder,
            cwd=self.config.user_dir,
            environ=os.environ,
            redactor=self.redactor,
            say=lambda text: None,
        )
        begun = time.monotonic()
        with running_server(section, place) as server:
            start_s = time.monotonic() - begun
            self.model = server.model
            warm = warm_up(config, server, self.recorded, self.redactor.text)
            check = self._checked(configuration, server, warm)
            level, notes = self._loaded(configuration, server, warm)
        is_wrong = check is not None and check.verdict == "different" and configuration != START
        if check is not None and check.verdict == "different" and configuration == START:
            self.is_unsteady = True
            notes.append(UNSTEADY)
        reason = f"{check.text} (allowed: {check.limits})" if is_wrong and check is not None else ""
        if level.result.stopped is not None:
            return StartOutcome(
                configuration=configuration,
                purpose=request.purpose,
                status="failed",
                reason=self.redactor.text(level.result.stopped),
                start_s=start_s,
            )
        if configuration == START and self.objective == "goodput" and level.result.goodput_per_s == 0:
            notes.append(NONE_KEPT)
        metrics = metrics_of(level.result)
        if self.objective not in metrics:
            common = next(iter(level.result.errors), "no request succeeded")
            raise ToolError(f"{self.objective} could not be measured under {level.result.label}: {common}")
        if configuration == START and self.start_metrics is None:
            self.start_metrics = metrics
        broken = broken_constraints(self.constraints, metrics, self.start_metrics or metrics)
        is_over = bool(broken) and configuration != START
        return StartOutcome(
            configuration=configuration,
            purpose=request.purpose,
            status="wrong" if is_wrong else "over a limit" if is_over else "ok",
            reason=reason or "; ".join(broken),
            metrics=metrics,
            level=level.result.label,
            concurrency=level.result.concurrency,
            check=check,
            observations=self._observed(level) if request.purpose == "start" else (),
            start_s=start_s,
            notes=(*warm.notes, *notes),
        )

    def _checked(self, configuration: Configuration, server: RunningServer, warm: WarmServer) -> ServedCheck | None:
        """The answers against those of the start; of the start itself they become the reference."""
        turns = [warm.traffic.session(FIRST_CHECKED - number).turns[0] for number in range(PROMPTS)]
        load = self.config.load
        most_s = max(load.duration_s + load.drain_s, ANSWERS_S)
        ask = partial(ask_answers, server.target, warm.template, turns, most_s=most_s)
        if self.reference is None:
            self.reference = ServedReference(answers=ask(), again=ask())
            write_reference(self.folder.parent, self.reference)
            return None
        if self.is_unsteady:
            return ServedCheck(verdict="not comparable", text=UNSTEADY)
        is_lossy = any(self.space.choice(one).lossy for one in configuration)
        return check_answers(self.reference, ask(), is_lossy=is_lossy, min_top1=self.min_top1)

    def _loaded(
        self, configuration: Configuration, server: RunningServer, warm: WarmServer
    ) -> tuple[_MeasuredLevel, list[str]]:
        """The level the objective is taken from: the only one, the best of those given, or what is climbed to."""
        load = self.config.load
        measured: dict[str, _MeasuredLevel] = {}

        def measure(level: LoadLevel) -> float:
            found = self._level(server, warm, level)
            measured[level.key] = found
            return metrics_of(found.result, plain=True).get(self.objective, 0.0)

        if load.rate is None and load.concurrency is None and self.objective in ("goodput", "tokens_per_s"):
            known = self.climbed.get(configuration)
            at_once = known
            if at_once is None:
                first = self.climbed.get(START, FIRST_CONCURRENCY)
                at_once = climb(lambda count: measure(LoadLevel(concurrency=count)), first=first)
                self.climbed[configuration] = at_once
            else:
                measure(LoadLevel(concurrency=known))
            chosen = measured[LoadLevel(concurrency=at_once).key]
        else:
            values = {level.key: measure(level) for level in warm.levels(load)}
            chosen = measured[max(values, key=lambda key: values[key])]
        invalid = chosen.result.invalid
        return chosen, [] if invalid is None else [f"{name_of(configuration)}: {invalid}"]

    def _level(self, server: RunningServer, warm: WarmServer, level: LoadLevel) -> _MeasuredLevel:
        load = self.config.load
        run = LoadRun(level=level)
        with sampled_gpus(self.gpus if is_local(server.target.url) else ()) as gpus:
            run_level(
                run,
                server.target,
                warm.template,
                warm.traffic_of(level.key),
                load,
                on_tick=lambda elapsed, done: self.console.tick(elapsed, Progress(text=f"{level.label}: {done} done")),
            )
        return _MeasuredLevel(run=run, result=level_result(run, load.slo, gpus=gpu_figures(gpus)))

    def _observed(self, level: _MeasuredLevel) -> tuple[LoadObservation, ...]:
        return observations(facts_of(level.run, level.result, self.config.load.slo))


def configured(section: ServerSection, space: ServerSpace, configuration: Configuration) -> ServerSection:
    """The server with these settings, whether their options are in its arguments or in its command."""
    if not configuration:
        return section
    added = applied(space, configuration, ServerSettings(args=section.args, environment=section.env))
    command = without(space, configuration, section.command)
    # A command that names no place for arguments gets them at its end.
    command = command if ARGS in command else (*command, ARGS)
    return replace(section, command=command, args=added.args, env=added.environment)


def metrics_of(level: LevelResult, *, plain: bool = False) -> dict[str, float]:
    """The figures of a level that are objectives or limits; `plain`: a goodput of zero stays zero."""
    found: dict[str, float] = {}
    if level.goodput_per_s is not None and level.completed:
        least = HALF_A_REQUEST / level.duration_s if level.duration_s and not plain else 0.0
        found["goodput"] = max(level.goodput_per_s, least)
    for name, value in (("requests_per_s", level.requests_per_s), ("tokens_per_s", level.output_tokens_per_s)):
        if value:
            found[name] = value
    for name in ("ttft", "tpot", "itl", "e2el"):
        figures = level.latencies.get(name)
        if figures is None:
            continue
        if figures.median_ms and name != "itl":
            found[f"{name}_ms"] = figures.median_ms
        if figures.p99_ms:
            found[f"{name}_p99_ms"] = figures.p99_ms
    return found


def facts_of(run: LoadRun, level: LevelResult, slo: SloSection) -> LoadFacts:
    """What a level shows that options can be chosen by."""
    counters = {one.name: one for one in level.counters}
    busy = [gpu.utilisation_pct for gpu in level.gpus if gpu.utilisation_pct is not None]
    good = [record for record in run.records if record.status == "ok" and record.ttft_s is not None]
    return LoadFacts(
        preemptions=counters["preemptions"].last if "preemptions" in counters else None,
        kv_cache_most=counters["KV cache use"].most if "KV cache use" in counters else None,
        waiting_mean=counters["waiting"].mean if "waiting" in counters else None,
        gpu_busy=sum(busy) / len(busy) / 100 if busy else None,
        missed=_missed(good, slo),
        requests=tuple(
            StreamedRequest(started_s=r.started_s, ttft_s=r.ttft_s or 0.0, gaps_s=r.gaps_s) for r in good[:STREAMS_KEPT]
        ),
    )


def _missed(records: Sequence[RequestRecord], slo: SloSection) -> str | None:
    """The limit that most requests miss, where more miss it than the SLO allows."""
    limits = {
        "ttft": (slo.ttft_ms, [r.ttft_s for r in records]),
        "tpot": (slo.tpot_ms, [tpot_s(r) for r in records]),
        "e2el": (slo.e2el_ms, [r.latency_s for r in records]),
    }
    counts = {
        name: sum(value is not None and 1e3 * value > limit for value in values)
        for name, (limit, values) in limits.items()
        if limit is not None
    }
    worst = max(counts, key=lambda name: counts[name], default=None)
    return worst if worst is not None and counts[worst] > (1 - slo.share) * len(records) else None
