"""The adapter that records the steps of a server, or the reason why its requests are explained from arrivals alone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.serving.requests.adapters.installed import installed_version
from llm_perf_opt.serving.serving_config import ServerSection

INJECT = Path(__file__).with_name("inject")
FOLDER_VARIABLE = "LLM_PERF_STEPS"
PATH_VARIABLE = "PYTHONPATH"
BOUNDS = "requests are explained by bounds from arrival times"


@dataclass(frozen=True, kw_only=True)
class StepAdapter:
    """How one engine is started so that it records its steps. `begins` are beginnings of versions it was tried with.

    `flags` are arguments of the user that leave no place for ours.
    """

    engine: str
    package: str
    begins: tuple[str, ...]
    args: tuple[str, ...]
    flags: tuple[str, ...]


ADAPTERS = (
    StepAdapter(
        engine="vllm",
        package="vllm",
        begins=("0.32.",),
        args=("--scheduler-cls", "llm_perf_vllm_steps.scheduler"),
        flags=("--scheduler-cls", "--scheduler_cls"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class StepRecording:
    """The server as it has to be started, and the arguments for it; `declined` says why its steps are not recorded."""

    section: ServerSection
    args: tuple[str, ...] = ()
    declined: str | None = None


def record_steps(section: ServerSection, folder: Path, environ: Mapping[str, str]) -> StepRecording:
    """Start the server with the adapter for its engine and version; without one, as it is and with the reason."""
    adapter = next((one for one in ADAPTERS if one.engine == section.name), None)
    why = _why_not(section, adapter, environ)
    if adapter is None or why is not None:
        return StepRecording(section=section, declined=f"{why}; {BOUNDS}")
    given = section.env.get(PATH_VARIABLE, environ.get(PATH_VARIABLE, ""))
    path = os.pathsep.join(part for part in (str(INJECT), given) if part)
    env = {**section.env, PATH_VARIABLE: path, FOLDER_VARIABLE: str(folder)}
    return StepRecording(section=replace(section, env=env), args=adapter.args)


def _why_not(section: ServerSection, adapter: StepAdapter | None, environ: Mapping[str, str]) -> str | None:
    if section.url is not None:
        return "the steps of a server that llm-perf did not start are not recorded"
    if adapter is None:
        known = ", ".join(one.engine for one in ADAPTERS)
        return f"no adapter records the steps of server={section.name} (there is one for {known})"
    taken = next((word for word in section.args if word.partition("=")[0] in adapter.flags), None)
    if taken is not None:
        return f"server.args has its own scheduler ({taken})"
    version = installed_version(adapter.package, section.command[0], environ)
    if version is None:
        return f"the version of {adapter.package} behind {section.command[0]!r} is not known"
    if not version.startswith(adapter.begins):
        tried = ", ".join(f"{begin}*" for begin in adapter.begins)
        return f"steps of {adapter.package} {version} are not recorded (the adapter was tried with {tried})"
    return None
