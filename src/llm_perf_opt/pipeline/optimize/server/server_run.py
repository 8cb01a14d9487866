"""A search over a server's settings from its first start to its pages; each start is written down when it ended."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.units import digits
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.optimize.server.configuration_rows import configuration_rows, option_rows
from llm_perf_opt.optimize.server.recommend_flags import (
    HOST,
    PORT,
    compose_file,
    kubernetes_manifest,
    launch_command,
    result_in_words,
)
from llm_perf_opt.optimize.server.server_document import (
    OptimizeServerDocument,
    SearchStatus,
    ServerRecommendation,
    StartOutcome,
)
from llm_perf_opt.optimize.server.server_search import SelectedSpace, ServerSearch, StartRequest, select
from llm_perf_opt.optimize.server.space import (
    START,
    Configuration,
    ServerSettings,
    ServerSpace,
    name_of,
    settings_of,
)
from llm_perf_opt.pipeline.console import Console, StageTurn
from llm_perf_opt.pipeline.optimize.server.evaluate import ServerEvaluator, configured
from llm_perf_opt.pipeline.optimize.server.server_journal import StartJournal
from llm_perf_opt.report.optimize.server_page import render_server_page
from llm_perf_opt.report.optimize.server_text import render_server_markdown
from llm_perf_opt.serving.engine import build_server_cmd
from llm_perf_opt.system.files import write_page, write_whole
from llm_perf_opt.system.redact import Redactor

JSON_FILE, MARKDOWN_FILE, PAGE_FILE = "optimize_server.json", "optimize.md", "optimize.html"
STARTS_DIR, COMPOSE_FILE, KUBERNETES_FILE = "starts", "compose.yaml", "kubernetes.yaml"


@dataclass(kw_only=True)
class ServerOptimizer:
    """A search under way."""

    evaluator: ServerEvaluator
    space: ServerSpace
    search: ServerSearch
    journal: StartJournal
    folder: Path
    console: Console
    redactor: Redactor
    budget_s: float
    constraints: tuple[str, ...]
    has_gpu: bool
    lossless: bool
    # The program as it was given, before it was resolved.
    program: str
    began: float
    # What an earlier part of the search used of the budget.
    spent_before_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def spent_s(self) -> float:
        return self.spent_before_s + time.monotonic() - self.began

    def run(self) -> OptimizeServerDocument:
        """Search until nothing is left to try or the budget is used; whatever happens, what was measured is kept."""
        status: SearchStatus = "failed"
        try:
            while (request := self.search.next(self.budget_s - self.spent_s)) is not None:
                self.search.record(self._outcome(request))
                if request.purpose == "start":
                    self._choose()
                self.save("running")
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self.console.close()
            document = self.save(status)
        return document

    def _outcome(self, request: StartRequest) -> StartOutcome:
        earlier = self.journal.earlier(request)
        if earlier is not None:
            self.spent_before_s, self.began = earlier.spent_s, time.monotonic()
            self._remember(earlier)
            return earlier
        number = len(self.search.outcomes)
        title = name_of(request.configuration)
        self.console.say(f"{number}: {title} ({request.purpose})")
        self.console.stage_started(StageTurn(name=title))
        until = self.began + self.budget_s - self.spent_before_s
        outcome = replace(self.evaluator.start(request, number, until=until), spent_s=self.spent_s)
        self.journal.keep(outcome)
        value = self.search.value_of(outcome)
        said = outcome.reason if value is None else f"{self.search.objective} {digits(value, 4)} at {outcome.level}"
        self.console.say(f"{number}: {title}: {outcome.status}, {said}")
        return outcome

    def _remember(self, outcome: StartOutcome) -> None:
        """What the evaluator learnt from a start that is not made again."""
        if outcome.concurrency is not None:
            self.evaluator.climbed.setdefault(outcome.configuration, outcome.concurrency)
        if outcome.configuration == START and outcome.metrics and self.evaluator.start_metrics is None:
            self.evaluator.start_metrics = outcome.metrics

    def _choose(self) -> None:
        first = self.search.outcomes[0]
        if self.search.start_value is None:
            self.search.why_ended = "the server could not be measured as it is"
            raise CommandFailed(f"the server could not be measured as it is: {first.reason}")
        self.search.choose(self._selected(first))
        shown = "; ".join(one.text for one in first.observations) or "nothing"
        self.console.say(f"the load shows: {shown}")
        if not self.search.selected or not self.search.selected.tuned:
            self.notes.append("the load shows nothing that an option of this space is worth trying for")

    def _selected(self, first: StartOutcome) -> SelectedSpace:
        section = self.evaluator.config.server
        given = ServerSettings(args=(*section.command, *section.args), environment=section.env)
        return select(
            self.space,
            first.observations,
            settings_of(self.space, given),
            has_gpu=self.has_gpu,
            lossless=self.lossless,
        )

    def save(self, status: SearchStatus) -> OptimizeServerDocument:
        """Write everything there is, as a whole each time."""
        whole = msgspec.to_builtins(self._document(status))
        document = msgspec.convert(self.redactor.tree(whole), OptimizeServerDocument)
        write_server_document(self.folder, document)
        return document

    def _document(self, status: SearchStatus) -> OptimizeServerDocument:
        search, section = self.search, self.evaluator.config.server
        rows = configuration_rows(search, self.space)
        best = search.best
        row = None if best is None else next(one for one in rows if one.name == name_of(best))
        start = next((one for one in rows if one.status == "start"), None)
        selected = search.selected
        observed = search.outcomes[0].observations if search.outcomes else ()
        before, after = (None if one is None else one.metrics.get(search.objective) for one in (start, row))
        sentence = result_in_words(
            objective=search.objective,
            name=None if row is None else row.name,
            before=before,
            after=after,
            gain=None if row is None else row.gain,
            starts=len(search.outcomes),
            why_ended=search.why_ended,
            check=None if row is None or row.check is None else row.check.verdict,
        )
        return OptimizeServerDocument(
            status=status,
            engine=self.space.engine,
            model=self.evaluator.model,
            command=tuple(build_server_cmd(section, port=section.port or PORT)),
            objective=search.objective,
            slo=self.evaluator.config.load.slo.text,
            constraints=self.constraints,
            budget_s=self.budget_s,
            spent_s=round(self.spent_s, 1),
            starts=len(search.outcomes),
            most_starts=search.most_starts,
            resumed=self.journal.replayed,
            grid=search.grid,
            observations=observed,
            options=()
            if selected is None
            else option_rows(self.space, selected.tuned, observed, has_gpu=self.has_gpu, present=selected.present),
            configurations=rows,
            best=None if row is None else row.name,
            gain=None if row is None else row.gain,
            flags=search.flag_gains(),
            recommendation=None if best is None else self._recommend(best),
            sentence=sentence,
            notes=tuple(dict.fromkeys((*self.notes, *(n for one in search.outcomes for n in one.notes)))),
        )

    def _recommend(self, best: Configuration) -> ServerRecommendation:
        section = configured(self.evaluator.config.server, self.space, best)
        words = tuple(word for setting in best for word in self.search.words_of(setting))
        command = build_server_cmd(replace(section, host=HOST), port=PORT)
        gpus = len(self.evaluator.gpus)
        # In a container the program has no path of this machine, but its files do.
        contained = [self.program, *command[1:]]
        mounts = [word for word in command[1:] if word.startswith("/") and Path(word).exists()]
        return ServerRecommendation(
            name=name_of(best),
            words=words,
            environment=dict(section.env),
            is_lossy=any(self.space.choice(one).lossy for one in best),
            command=launch_command(command, section.env),
            compose=compose_file(contained, section.env, image=self.space.image, gpus=gpus, mounts=mounts),
            kubernetes=kubernetes_manifest(
                contained,
                section.env,
                image=self.space.image,
                gpus=gpus,
                ready_path=section.ready_path,
                mounts=mounts,
            ),
        )


def write_server_document(folder: Path, document: OptimizeServerDocument) -> None:
    """The document first: pages can be made of it again."""
    write_json(folder / JSON_FILE, document)
    write_page(folder / MARKDOWN_FILE, render_server_markdown(document))
    write_whole(folder / PAGE_FILE, render_server_page(document).encode("utf-8", "backslashreplace"))
    done = document.recommendation
    if done is not None:
        write_whole(folder / COMPOSE_FILE, done.compose.encode())
        write_whole(folder / KUBERNETES_FILE, done.kubernetes.encode())
