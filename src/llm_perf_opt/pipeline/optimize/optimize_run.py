"""One search from its plan to its pages. Every experiment is written down before the next one starts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import Pass, level_of
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import MEASURED_GAINS_FILE
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.errors import CommandFailed, ConfigError, ProfilingError, ToolError
from llm_perf_opt.optimize.experiment_plan import (
    PAIR_LOOKS,
    PHASE_OF,
    USUAL_PAIRS,
    Costs,
    ExperimentPlan,
    Situation,
    TrialSet,
    left_words,
    look_share,
    scaled_bound,
    with_costs,
)
from llm_perf_opt.optimize.experiment_verdict import (
    LossLimits,
    MeasuredMetric,
    bound_held,
    break_even_tokens,
    broken_constraints,
    calibrate_rules,
    compare_passes,
    gains_of_causes,
    is_hopeless,
    is_settled,
    judge_experiment,
)
from llm_perf_opt.optimize.optimize_document import (
    ExperimentRow,
    ExperimentStatus,
    MetricChange,
    Objective,
    OptimizeDocument,
    OptimizeStatus,
    OutputCheck,
    Recommendation,
    StartRow,
)
from llm_perf_opt.optimize.recommend import (
    distance_to_bound,
    in_words,
    pasted_code,
    path_to_best,
)
from llm_perf_opt.optimize.search import ExperimentSearch
from llm_perf_opt.pipeline.console import Console, StageTurn
from llm_perf_opt.pipeline.optimize.metered import metered_pass
from llm_perf_opt.pipeline.optimize.setup import Profile
from llm_perf_opt.pipeline.optimize.worker_protocol import WorkerReady
from llm_perf_opt.pipeline.optimize.workers import Bench, ExperimentWorker, OutOfMemory, OutOfTime
from llm_perf_opt.report.optimize.optimize_page import render_page
from llm_perf_opt.report.optimize.optimize_text import render_markdown
from llm_perf_opt.report.write import write_reports
from llm_perf_opt.system.files import write_page
from llm_perf_opt.system.lock import locked
from llm_perf_opt.system.redact import Redactor

START = "start"
ENERGY = "joules_per_token"
JSON_FILE, MARKDOWN_FILE, PAGE_FILE = "optimize.json", "optimize.md", "optimize.html"
EXPERIMENTS_DIR, BEST_DIR, REFERENCE_FILE = "experiments", "best", "reference.pt"
# Two passes compile, and a machine is never as quiet as hoped.
LOOK_MARGIN = 1.5
METRICS = ("tpot_ms", "ttft_ms", "tokens_per_s", "joules_per_token", "wall_ms")
# No experiment takes more of what is left of the budget than this, unless that is very little.
MOST_SHARE, LEAST_S = 0.6, 60.0
MeasuredPass = Mapping[str, list[RepeatedValue]]


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions:
    """What the command line asks for."""

    objective: Objective
    budget_s: float
    most: int | None = None
    constraints: tuple[Condition, ...] = ()
    limits: LossLimits = field(default_factory=LossLimits)


@dataclass(kw_only=True)
class Side:
    """A configuration with its worker, as long as that lives, and every pass it made."""

    name: str
    worker: ExperimentWorker | None
    ready: WorkerReady
    start_s: float
    passes: list[MeasuredPass] = field(default_factory=list)
    peak_bytes: int | None = None

    def median(self, metric: str) -> float | None:
        series: list[Pass] = [one[metric] for one in self.passes if one.get(metric)]
        return level_of(series).median if series else None

    def metrics(self) -> dict[str, float]:
        return {name: value for name in METRICS if (value := self.median(name)) is not None}

    def end(self) -> None:
        if self.worker is not None:
            self.worker.end()
            self.worker = None

    def limited(self) -> dict[str, float | None]:
        """What limits can be set on."""
        return {
            **{name: self.median(name) for name in METRICS},
            "peak_gb": None if self.peak_bytes is None else self.peak_bytes / 1e9,
            "compile_s": self.ready.compile_s or 0.0,
        }


@dataclass(kw_only=True)
class Optimizer:
    """A search under way."""

    bench: Bench
    profile: Profile | None
    plan: ExperimentPlan
    situation: Situation
    options: OptimizeOptions
    folder: Path
    console: Console
    redactor: Redactor
    began: float
    # The driver's number of the GPU, for objectives that need its counter of energy.
    gpu: int | str | None = None
    # How long the profile took, where it was made here.
    profile_s: float | None = None
    left: tuple[str, ...] | None = None
    rows: list[ExperimentRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start: Side | None = None
    best: Side | None = None
    sides: list[Side] = field(default_factory=list)
    direct: MetricChange | None = None
    # Two of them do not fit on the device side by side.
    alone: bool = False
    _search: ExperimentSearch | None = None

    @property
    def search(self) -> ExperimentSearch:
        assert self._search is not None
        return self._search

    @property
    def deadline(self) -> float:
        return self.began + self.options.budget_s

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def run(self) -> OptimizeDocument:
        """Search until nothing is left to try or the budget is used; whatever happens, what was measured is kept."""
        self._search = ExperimentSearch(
            plan=self.plan, situation=self.situation, most=self.options.most, refuse=self.bench.refuse
        )
        status: OptimizeStatus = "failed"
        try:
            self._open_start()
            self.save("running")
            while (candidate := self.search.next(self.left_s)) is not None:
                self._try(candidate)
                self.save("running")
            self._verify_best()
            status = "done"
            self._end_sides()
            self._look_at_best()
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except (ProfilingError, OSError) as error:
            self.notes.append(f"ended early: {error}")
            raise
        finally:
            self._end_sides()
            (self.folder / REFERENCE_FILE).unlink(missing_ok=True)
            self.console.close()
            document = self.save(status)
        return self._tell_profile(document)

    def _tell_profile(self, document: OptimizeDocument) -> OptimizeDocument:
        """The report of the profile shows what was measured alongside what it promised."""
        gains = gains_of_causes(self.rows, self.options.objective)
        if self.profile is None or not gains:
            return document
        try:
            with locked(self.profile.folder, self.console.say):
                write_json(self.profile.folder / MEASURED_GAINS_FILE, gains)
                write_reports(self.profile.folder)
        except (ProfilingError, OSError) as error:
            self.notes.append(f"the report of the profile does not show the measured gains: {error}")
            return self.save(document.status)
        return document

    def _open_start(self) -> None:
        """The configuration as it is: its worker, its outputs, and one pass that measures the cost of a pass."""
        self.console.say(f"{START}: loading")
        left_s = self.left_s
        try:
            self.start = self._open(START, None, until=self.deadline)
            worker = self.start.worker
            assert worker is not None
            self._note_other_device(self.start.ready)
            worker.write_reference(self.folder / REFERENCE_FILE, self.deadline)
            before = time.monotonic()
            self._pass(self.start)
        except OutOfTime as error:
            used = "" if self.profile_s is None else f", the profile took {self.profile_s:.0f} s of it"
            again = "" if self.profile is None else f"; it is kept, run={self.profile.folder} uses it again"
            raise CommandFailed(
                f"--budget: {self.options.budget_s:.0f} s are too short to measure the baseline ("
                f"{max(left_s, 0.0):.0f} s were left{used}), allowed: more{again}"
            ) from error
        pass_s = time.monotonic() - before
        self.search.plan = with_costs(self.plan, Costs(start_s=self.start.start_s, pass_s=pass_s))
        # It paid for what a first pass pays for; pairs begin after it.
        shown, measured = self.start.median(self.options.objective), self.start.metrics()
        self.start.passes.clear()
        if shown is None:
            raise CommandFailed(
                f"--objective {self.options.objective}: not measured here; measured: {', '.join(measured)}"
            )
        self.console.say(
            f"{START}: {self.options.objective} {shown:.4g}; ready after {self.start.start_s:.0f} s, a pass takes "
            f"{pass_s:.1f} s"
        )

    def _note_other_device(self, ready: WorkerReady) -> None:
        stages = () if self.profile is None else self.profile.manifest.stages
        named = [stage.metrics["device_name"].value for stage in stages if "device_name" in stage.metrics]
        if named and named[0] != ready.device_name:
            self.notes.append(
                f"the profile was made on {named[0]}, the experiments run on {ready.device_name}: its bounds are of "
                "another machine"
            )

    def _open(self, name: str, candidate: TrialSet | None, *, until: float) -> Side:
        folder = self._folder_of(name)
        self.console.stage_started(StageTurn(name=name))
        worker = self.bench.open(candidate, folder, self.console.tick)
        ready = None
        try:
            ready = worker.wait_ready(until)
        finally:
            self.console.close()
            if ready is None:
                worker.end()
        side = Side(name=name, worker=worker, ready=ready, start_s=worker.start_s)
        self.sides.append(side)
        return side

    def _folder_of(self, name: str) -> Path:
        """Numbered in the order of the experiments."""
        return self.folder / EXPERIMENTS_DIR / f"{len(self.rows) if name != START else 0:02d}-{name}"

    def _try(self, candidate: TrialSet) -> None:
        """One experiment, from its start to its row."""
        is_single = len(candidate.remedies) == 1
        other = self.start if is_single or self.best is None else self.best
        assert other is not None
        bound = candidate.bound
        promised = "" if bound is None or bound.gain is None else f", at most {bound.gain:.2f}×"
        self.console.say(f"{candidate.name}: {candidate.title}{promised}")
        until = min(time.monotonic() + max(LEAST_S, MOST_SHARE * self.left_s), self.deadline)
        log = self._folder_of(candidate.name) / "worker.log"
        side = None
        try:
            side = self._open_beside(candidate, other, until)
            row = self._measure(candidate, side, other, until)
        except (CommandFailed, ToolError, ConfigError) as error:
            row = self._row(candidate, "failed", str(error), against=other.name, log=log)
            helped = False
        else:
            helped = row.status == "helped"
        self.rows.append(row)
        self.console.say(f"{candidate.name}: {row.status}" + (f" — {row.reason}" if row.reason else ""))
        is_best = self.search.record(candidate, helped=helped, total_gain=row.total_gain)
        if is_best and side is not None:
            if self.best is not None and self.best is not self.start:
                self.best.end()
            self.best = side
        elif side is not None:
            side.end()

    def _open_beside(self, candidate: TrialSet, other: Side, until: float) -> Side:
        """Load it alongside what it is compared with; where there is no room for both, alone."""
        try:
            return self._open(candidate.name, candidate, until=until)
        except OutOfMemory:
            living = [side for side in self.sides if side.worker is not None]
            if not living:
                raise
            self.alone = True
            self.notes.append(
                f"{candidate.name}: no room alongside {', '.join(side.name for side in living)}; from here on "
                "configurations run one after the other, so drift of the machine is in their intervals"
            )
            for side in living:
                while len(side.passes) < USUAL_PAIRS:
                    self._pass(side)
                side.end()
            return self._open(candidate.name, candidate, until=until)

    def _measure(self, candidate: TrialSet, side: Side, other: Side, until: float) -> ExperimentRow:
        assert side.worker is not None
        check = side.worker.check(
            self.folder / REFERENCE_FILE, until, is_lossy=candidate.is_lossy, limits=self.options.limits
        )
        # What is wrong does not count, however fast; two pairs say how fast it would have been.
        found = self._pairs(other, side, until, looks=1 if check.verdict == "different" else len(PAIR_LOOKS))
        objective = self.options.objective
        measured = found.get(objective)
        changes = tuple(one.change for one in found.values())
        assert self.start is not None
        broken = broken_constraints(self.options.constraints, side.limited(), self.start.limited())
        status, reason = judge_experiment(measured, check, broken, objective=objective)
        before = 1.0 if other is self.start else self.search.best_gain
        return self._row(
            candidate,
            status,
            reason,
            against=other.name,
            log=side.worker.log,
            changes=changes,
            measured=measured,
            before=before,
            check=check,
            side=side,
        )

    def _pairs(
        self, other: Side, side: Side, until: float, *, looks: int = len(PAIR_LOOKS)
    ) -> dict[str, MeasuredMetric]:
        """Passes interleaved, first the one, then the other: until more would not change the verdict, or time is up."""
        mine: list[MeasuredPass] = []
        theirs: list[MeasuredPass] = []
        paired = other.worker is not None
        found: dict[str, MeasuredMetric] = {}
        for number in range(1, PAIR_LOOKS[looks - 1] + 1):
            began = time.monotonic()
            order = (other, side) if number % 2 else (side, other)
            for one in order if paired else (side,):
                (mine if one is side else theirs).append(self._pass(one))
            is_over = number > 1 and 2 * time.monotonic() - began > until
            if number in PAIR_LOOKS or is_over:
                share = look_share(number, is_last=is_over)
                found = compare_passes(theirs if paired else other.passes, mine, METRICS, paired=paired, spent=share)
            measured = found.get(self.options.objective)
            if is_over or (number in PAIR_LOOKS and (is_settled(measured) or is_hopeless(measured))):
                break
        return found

    def _pass(self, side: Side) -> MeasuredPass:
        """One pass; where energy is the objective, as many as the driver's counter needs to be distinguished."""
        assert side.worker is not None
        until, number = self.deadline + LEAST_S, len(side.passes)
        values: MeasuredPass
        if self.options.objective == ENERGY:
            values, peak = metered_pass(side.worker, number, until, gpu=self.gpu)
        else:
            found = side.worker.run_pass(number, until)
            values, peak = found.values, found.peak_bytes
        side.passes.append(values)
        known = [bytes_ for bytes_ in (side.peak_bytes, peak) if bytes_ is not None]
        side.peak_bytes = max(known, default=None)
        return values

    def _verify_best(self) -> None:
        """Where the best was reached in several steps, measure it once more, alongside the start itself."""
        best, start = self.best, self.start
        row = None if best is None else next((r for r in self.rows if r.name == best.name), None)
        if best is None or start is None or row is None:
            return
        if row.against == START:
            self.direct = row.change(self.options.objective)
        elif best.worker is not None and start.worker is not None and self.left_s > self.search.plan.costs.least_s:
            self.console.say(f"{best.name}: measured again, alongside the baseline")
            found = self._pairs(start, best, self.deadline).get(self.options.objective)
            self.direct = None if found is None else found.change

    def _end_sides(self) -> None:
        for side in self.sides:
            side.end()

    def _look_at_best(self) -> None:
        """Where the budget has room for it, profile the best: what is left is what its findings say."""
        best = self.search.best
        if best is None or self.profile_s is None or self.best is None:
            return
        need = LOOK_MARGIN * (self.profile_s + (self.best.ready.compile_s or 0.0))
        if self.left_s < need:
            self.notes.append(
                f"the best configuration was not profiled: about {need:.0f} s, and {self.left_s:.0f} s were left"
            )
            return
        self.save("running")
        self.console.say(f"{self.best.name}: profiling what is left")
        self.console.stage_started(StageTurn(name="profile of the best"))
        try:
            found = self.bench.look(best.candidate, self.folder / BEST_DIR, self.left_s + LEAST_S, self.console.tick)
        except ProfilingError as error:
            self.notes.append(f"the best could not be profiled: {error}")
        else:
            self.left = None if found is None else left_words(found, self.rows)
        finally:
            self.console.close()

    def _row(
        self,
        candidate: TrialSet,
        status: ExperimentStatus,
        reason: str,
        *,
        against: str,
        log: Path | None,
        changes: tuple[MetricChange, ...] = (),
        measured: MeasuredMetric | None = None,
        before: float = 1.0,
        check: OutputCheck | None = None,
        side: Side | None = None,
    ) -> ExperimentRow:
        total = None if measured is None else before * measured.change.gain
        low = None if measured is None or measured.change.low is None else before * measured.change.low
        by_name = {change.metric: change for change in changes}
        tpot = by_name.get("tpot_ms")
        compile_s = None if side is None else side.ready.compile_s
        start_tpot = None if self.start is None else self.start.median("tpot_ms")
        return ExperimentRow(
            name=candidate.name,
            is_combined=len(candidate.remedies) > 1,
            title=candidate.title,
            overrides=candidate.overrides,
            environment=dict(candidate.environment),
            is_lossy=candidate.is_lossy,
            status=status,
            reason=reason,
            against=against,
            bound=candidate.bound,
            bound_held=None if total is None else bound_held(total, low, self._bound_now(candidate)),
            changes=changes,
            total_gain=total,
            check=check,
            peak_memory_bytes=None if side is None else side.peak_bytes,
            start_s=None if side is None else side.start_s,
            compile_s=compile_s,
            break_even_tokens=None
            if tpot is None or status != "helped"
            else break_even_tokens(compile_s, start_tpot, tpot.after),
            pairs=0 if side is None else len(side.passes),
            how="" if measured is None else measured.estimate.how,
            log=None if log is None or not log.is_file() else log.relative_to(self.folder).as_posix(),
        )

    def _bound_now(self, candidate: TrialSet) -> float | None:
        """The bound over the start as it was measured alongside the experiment."""
        objective = self.options.objective
        if candidate.bound is None or self.start is None:
            return None
        name = PHASE_OF.get(objective)
        wall = None if name is None or self.profile is None else self.profile.facts.phases[name].wall
        profiled = wall.value if isinstance(wall, Known) else None
        measured = self.start.median(objective)
        if measured is None:
            return candidate.bound.gain
        return scaled_bound(
            candidate.bound, profiled=profiled, measured=measured, is_cpu=self.start.ready.device == "cpu"
        )

    def save(self, status: OptimizeStatus) -> OptimizeDocument:
        """Write everything there is, as a whole each time."""
        whole = msgspec.to_builtins(self._document(status))
        document = msgspec.convert(self.redactor.tree(whole), OptimizeDocument)
        write_document(self.folder, document)
        return document

    def _document(self, status: OptimizeStatus) -> OptimizeDocument:
        objective = self.options.objective
        start = self.start
        first = None
        if start is not None and start.passes:
            first = StartRow(
                metrics=start.metrics(),
                peak_memory_bytes=start.peak_bytes,
                start_s=start.start_s,
                passes=len(start.passes),
            )
        best = self.search.best
        name = None if best is None else best.candidate.name
        path = [] if first is None else path_to_best(first, self.rows, name, objective)
        row = next((r for r in self.rows if r.name == name), None)
        direct = self.direct
        gain = direct.gain if direct is not None else None if row is None else row.total_gain
        last = path[-1].value if path else None
        limits = [condition.text for condition in self.options.constraints]
        check = None if row is None or row.check is None else row.check.verdict
        not_tried = self._not_tried(status)
        sentence = in_words(
            objective=objective,
            path=path,
            gain=gain,
            low=None if direct is None else direct.low,
            high=None if direct is None else direct.high,
            check=check,
            tried=len(self.search.tried),
            left_out=len(not_tried),
            over_limit=[row.name for row in self.rows if row.status == "over a limit"],
        )
        return OptimizeDocument(
            status=status,
            objective=objective,
            constraints=tuple(limits),
            model=self.bench.title,
            device=None if start is None else start.ready.device_name,
            budget_s=self.options.budget_s,
            spent_s=round(time.monotonic() - self.began, 1),
            max_experiments=self.options.most,
            profile=None if self.profile is None else str(self.profile.folder),
            start=first,
            experiments=(*self.rows, *not_tried),
            best=name,
            gain=gain,
            gain_low=None if direct is None else direct.low,
            gain_high=None if direct is None else direct.high,
            gain_is_direct=direct is not None,
            path=tuple(path),
            distance=distance_to_bound(self.plan.facts, last, objective),
            left=self.plan.left if self.left is None else self.left,
            recommendation=None if best is None else self._recommend(best.candidate, sentence),
            calibration=calibrate_rules(self.rows, objective),
            sentence=sentence,
            notes=tuple(dict.fromkeys((*self.notes, *self._start_notes()))),
        )

    def _start_notes(self) -> tuple[str, ...]:
        return () if self.start is None else (*self._start_over_limits(), *self.start.ready.notes)

    def _start_over_limits(self) -> tuple[str, ...]:
        """A limit the start itself does not keep: then it is the limit that decides, and not the experiments."""
        if self.start is None or not self.start.passes:
            return ()
        values = self.start.limited()
        broken = broken_constraints(self.options.constraints, values, values)
        return tuple(f"the baseline itself breaks a limit: {text}" for text in broken)

    def _not_tried(self, status: OptimizeStatus) -> list[ExperimentRow]:
        """Those that were passed over, refused by their guards, or not reached."""
        passed = {p.candidate.name: (p.candidate, p.why) for p in self.search.passed}
        if status != "running":
            why = {"interrupted": "the search was interrupted"}.get(status, "the search ended before it")
            if self.options.most is not None and len(self.search.tried) >= self.options.most:
                why = f"--max-experiments {self.options.most} were made"
            passed |= {c.name: (c, why) for c in self.search.unseen()}
        done = {row.name for row in self.rows}
        rows = [
            self._row(candidate, "not tried", why, against=START, log=None)
            for name, (candidate, why) in passed.items()
            if name not in done
        ]
        for refused in self.plan.refused:
            candidate = TrialSet(
                remedies=(refused.remedy,),
                sets=refused.remedy.sets,
                environment=refused.remedy.environment,
                bound=None,
                order=1.0,
                cost_s=0.0,
            )
            rows.append(self._row(candidate, "not tried", refused.why, against=START, log=None))
        return rows

    def _recommend(self, candidate: TrialSet, sentence: str) -> Recommendation:
        file, command = self.bench.recommend(candidate, sentence, self.folder)
        return Recommendation(
            overrides=candidate.overrides,
            environment=dict(candidate.environment),
            is_lossy=candidate.is_lossy,
            file=file,
            command=command,
            code=pasted_code(candidate),
        )


def write_document(folder: Path, document: OptimizeDocument) -> None:
    """optimize.json first: pages can be made of it again."""
    write_json(folder / JSON_FILE, document)
    write_page(folder / MARKDOWN_FILE, render_markdown(document))
    write_page(folder / PAGE_FILE, render_page(document))
