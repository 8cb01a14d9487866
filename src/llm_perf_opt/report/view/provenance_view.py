"""Provenance: what ran, with which versions and commands, what failed or was skipped and why."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import OFFERED, STATIC_ANALYSIS
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.core.units import format_factor
from llm_perf_opt.diagnosis.facts import RunFacts
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.report.run_files import RunFiles
from llm_perf_opt.report.view.findings import IN_PROVENANCE
from llm_perf_opt.report.view.subject_view import PageSubject

# Longer waits than ten years are a mistake.
LONGEST_S = 315_360_000.0
SMALLEST_REST_S = 0.1


@dataclass(frozen=True, kw_only=True)
class CommandView:
    text: str
    ending: str


@dataclass(frozen=True, kw_only=True)
class StageView:
    name: str
    status: str
    duration: str
    spent: tuple[str, ...]
    reason: str
    notes: tuple[str, ...]
    commands: tuple[CommandView, ...]
    metrics: tuple[tuple[str, Metric], ...]


@dataclass(frozen=True, kw_only=True)
class ProvenanceView:
    run_id: str
    status: str
    created_at: str
    first_verdict: str
    stages: tuple[StageView, ...]
    not_run: tuple[str, ...]
    slowdowns: tuple[tuple[str, str, str, str], ...]
    versions: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    warnings: tuple[str, ...]
    overhead: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why stages failed: once for all of which the program said the same. `log` is the end of what it said."""

    stages: tuple[str, ...]
    reason: str
    log: str
    source: str | None


def failures_view(files: RunFiles) -> tuple[Failure, ...]:
    """In the order of the stages."""
    found: dict[str, Failure] = {}
    keys: dict[str, str] = {}
    for stage in files.manifest.stages:
        if stage.status != "failed":
            continue
        log = files.logs.get(stage.name)
        reason = stage.reason or ""
        # A stage that did not start what had failed before it names the log of that one.
        key = log.content if log is not None else keys.get(reason, reason)
        keys.setdefault(reason, key)
        first = found.get(key)
        if first is not None:
            found[key] = replace(first, stages=(*first.stages, stage.name))
            continue
        found[key] = Failure(
            stages=(stage.name,),
            reason=_reason(stage, has_log=log is not None),
            log=log.content if log is not None else "",
            source=log.source if log is not None else None,
        )
    return tuple(found.values())


def _reason(stage: StageRecord, *, has_log: bool) -> str:
    if not stage.reason:
        return "no reason was recorded"
    return stage.said if has_log else stage.reason


def provenance_view(
    files: RunFiles, facts: RunFacts, sources: tuple[str, ...], found: tuple[Finding, ...], subject: PageSubject
) -> ProvenanceView:
    """Of given captures and of a load no stage is missing; how a program has bounds is reported elsewhere, once."""
    manifest = files.manifest
    ran = {stage.name for stage in manifest.stages}
    return ProvenanceView(
        run_id=manifest.run_id,
        status=manifest.status,
        created_at=manifest.created_at,
        first_verdict="" if manifest.first_verdict_s is None else _seconds(manifest.first_verdict_s, places=0),
        stages=tuple(_stage(stage) for stage in manifest.stages),
        not_run=tuple(
            name
            for name in OFFERED
            if name not in ran
            and not (subject.is_bare or subject.is_load_alone)
            and not (subject.kind == "program" and name == STATIC_ANALYSIS)
        ),
        slowdowns=tuple(
            (name, format_factor(known.value), known.how, known.source or "") for name, known in facts.slowdowns.items()
        ),
        versions=_versions(manifest),
        overrides=manifest.overrides,
        warnings=manifest.warnings,
        overhead=tuple(f"{f.title}; {f.remedy}" for f in found if f.rule == IN_PROVENANCE),
        files=sources,
    )


def _stage(stage: StageRecord) -> StageView:
    return StageView(
        name=stage.name,
        status=stage.status,
        duration="" if stage.duration_s is None else _seconds(stage.duration_s),
        spent=tuple(_spent(stage)),
        reason=stage.reason or "",
        notes=stage.notes,
        commands=tuple(
            CommandView(text=shlex.join(c.argv), ending=_ending(c.exit_code, c.timed_out)) for c in stage.commands
        ),
        metrics=tuple(stage.metrics.items()),
    )


def _spent(stage: StageRecord) -> Iterator[str]:
    """Where the time of a stage went: each command, by its steps where it noted them, and what is left."""
    for command in stage.commands:
        steps = ", ".join(f"{step.name} {_seconds(step.duration_s)}" for step in command.steps)
        if command.label:
            yield f"{command.label}, {_seconds(command.duration_s)}" + (f": {steps}" if steps else "")
    rest_s = (stage.duration_s or 0.0) - sum(command.duration_s for command in stage.commands)
    if any(command.label for command in stage.commands) and rest_s >= SMALLEST_REST_S:
        yield f"reading, analysing and writing, {_seconds(rest_s)}"


def _seconds(duration_s: float, places: int = 1) -> str:
    """A time of a manifest, which may be anyone's."""
    return f"{duration_s:.{places}f} s" if 0 <= duration_s <= LONGEST_S else "unknown"


def _ending(code: int | None, timed_out: bool) -> str:
    if timed_out:
        return "ended after its timeout"
    return f"exit code {code}" if code is not None else "ended by us"


def _versions(manifest: RunManifest) -> tuple[tuple[str, str], ...]:
    """Machine and software, as far as the run recorded them."""
    environment = manifest.environment
    found = [(key, str(environment[key])) for key in ("os", "cpu", "cuda_driver", "python") if environment.get(key)]
    for index, gpu in enumerate(_list(environment, "gpus")):
        # A existing capture knows its GPU by name alone.
        known = f"{gpu.get('name')}, driver {gpu.get('driver')}" if isinstance(gpu, Mapping) else str(gpu)
        found.append((f"GPU {index}", known))
    found += [(name, str(version)) for name, version in _map(environment, "packages").items() if version]
    for name, tool in _map(environment, "tools").items():
        if isinstance(tool, Mapping) and tool.get("version"):
            found.append((name, str(tool["version"])))
    git = _map(environment, "git")
    if git.get("commit"):
        found.append(("git commit", str(git["commit"])[:12] + (" with changes" if git.get("changed") else "")))
    return tuple(found)


def _list(environment: Mapping[str, Any], key: str) -> list[Any]:
    """What a run recorded may be anyone's words: nothing where it is not a list."""
    found = environment.get(key)
    return [*found] if isinstance(found, list | tuple) else []


def _map(environment: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = environment.get(key)
    return {**found} if isinstance(found, Mapping) else {}
