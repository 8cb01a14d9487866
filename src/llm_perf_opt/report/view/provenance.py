"""Provenance: what ran, with which versions and commands, what failed or was skipped and why."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.analysis.findings.facts import RunFacts
from llm_perf_opt.analysis.findings.finding import Finding
from llm_perf_opt.analysis.findings.rules import profiler_overhead
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import OFFERED
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.core.units import format_factor
from llm_perf_opt.report.run_files import RunFiles
from llm_perf_opt.report.view.program import without_log


@dataclass(frozen=True, kw_only=True)
class CommandView:
    text: str
    ending: str


@dataclass(frozen=True, kw_only=True)
class StageView:
    name: str
    status: str
    duration: str
    reason: str
    notes: tuple[str, ...]
    commands: tuple[CommandView, ...]
    metrics: tuple[tuple[str, Metric], ...]


@dataclass(frozen=True, kw_only=True)
class ProvenanceView:
    run_id: str
    status: str
    created_at: str
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
    for stage in files.manifest.stages:
        if stage.status != "failed":
            continue
        log = files.logs.get(stage.name)
        key = log.content if log is not None else stage.reason or ""
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
    return without_log(stage.reason) if has_log else stage.reason


def provenance_view(
    files: RunFiles, facts: RunFacts, sources: tuple[str, ...], found: tuple[Finding, ...]
) -> ProvenanceView:
    manifest = files.manifest
    ran = {stage.name for stage in manifest.stages}
    return ProvenanceView(
        run_id=manifest.run_id,
        status=manifest.status,
        created_at=manifest.created_at,
        stages=tuple(_stage(stage) for stage in manifest.stages),
        not_run=tuple(name for name in OFFERED if name not in ran),
        slowdowns=tuple(
            (name, format_factor(known.value), known.how, known.source or "") for name, known in facts.slowdowns.items()
        ),
        versions=_versions(manifest),
        overrides=manifest.overrides,
        warnings=manifest.warnings,
        overhead=tuple(f"{f.title}; {f.remedy}" for f in found if f.rule == profiler_overhead.RULE.id),
        files=sources,
    )


def _stage(stage: StageRecord) -> StageView:
    return StageView(
        name=stage.name,
        status=stage.status,
        duration="" if stage.duration_s is None else f"{stage.duration_s:.1f} s",
        reason=stage.reason or "",
        notes=stage.notes,
        commands=tuple(
            CommandView(text=shlex.join(c.argv), ending=_ending(c.exit_code, c.timed_out)) for c in stage.commands
        ),
        metrics=tuple(stage.metrics.items()),
    )


def _ending(code: int | None, timed_out: bool) -> str:
    if timed_out:
        return "ended after its timeout"
    return f"exit code {code}" if code is not None else "ended by us"


def _versions(manifest: RunManifest) -> tuple[tuple[str, str], ...]:
    """Machine and software, as far as the run recorded them."""
    environment = manifest.environment
    found = [(key, str(environment[key])) for key in ("os", "cpu", "cuda_driver", "python") if environment.get(key)]
    for index, gpu in enumerate(_list(environment, "gpus")):
        # A capture made elsewhere knows its GPU by name alone.
        text = gpu if isinstance(gpu, str) else f"{gpu['name']}, driver {gpu['driver']}"
        found.append((f"GPU {index}", text))
    found += [(name, str(version)) for name, version in _map(environment, "packages").items() if version]
    for name, tool in _map(environment, "tools").items():
        if tool["version"]:
            found.append((name, str(tool["version"])))
    git = _map(environment, "git")
    if git and git["commit"]:
        found.append(("git commit", git["commit"][:12] + (" with changes" if git["changed"] else "")))
    return tuple(found)


def _list(environment: Mapping[str, Any], key: str) -> list[Any]:
    return list(environment[key]) if key in environment else []


def _map(environment: Mapping[str, Any], key: str) -> dict[str, Any]:
    return dict(environment[key]) if key in environment else {}
