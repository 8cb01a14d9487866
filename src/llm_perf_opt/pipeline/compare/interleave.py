"""Makes the runs of a comparison itself, in pairs: base, candidate, candidate, base, … so that drift hits both alike.

Each run is its own process. By default it is a clean pass alone (stage `direct_inference`).
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.core.manifest import read_manifest, write_json
from llm_perf_opt.core.names import BUILT_IN
from llm_perf_opt.errors import CommandFailed, ConfigError, ManifestError
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.system.process import allowed_environment, run_command, run_quick
from llm_perf_opt.system.redact import Redactor

SIDES = ("base", "candidate")
CLEAN_PASS_ALONE = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
)
RUN_TIMEOUT_S = 4 * 3600.0
PLAN_FILE = "experiment.json"
_ALLOWED = (
    "allowed: overrides of both sides, base.overrides=KEY=VALUE, candidate.overrides=…, base.ref=, candidate.ref="
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What both sides run, and in what they differ. `refs` are commits of the repository the user is in."""

    common: tuple[str, ...]
    overrides: dict[str, tuple[str, ...]]
    refs: dict[str, str]

    def fixed(self) -> "Experiment":
        """With commits instead of names, which may move before the last run."""
        env = allowed_environment(os.environ)
        refs = {}
        for side, ref in self.refs.items():
            code, text = run_quick(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], env=env)
            if code != 0:
                raise ConfigError(f"compare --interleave: {side}.ref={ref}: no such commit here: {text.strip()}")
            refs[side] = text.strip()
        return replace(self, refs=refs)

    @property
    def meant(self) -> frozenset[str]:
        """The keys that were changed on purpose."""
        words = [word for side in SIDES for word in self.overrides[side]]
        return frozenset(word.lstrip("+~").partition("=")[0] for word in words)


@dataclass(frozen=True, kw_only=True)
class PlannedExperiment:
    """`experiment.json`: what was requested, so that an interrupted comparison can be resumed."""

    schema_version: Literal[1] = 1
    options: tuple[str, ...]
    user_dir: str
    experiment: Experiment


def write_plan(folder: Path, options: Sequence[str], experiment: Experiment) -> None:
    planned = PlannedExperiment(options=tuple(options), user_dir=str(Path.cwd()), experiment=experiment)
    write_json(folder / PLAN_FILE, planned)


def read_plan(folder: Path) -> PlannedExperiment:
    try:
        return msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=PlannedExperiment)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--resume: {folder / PLAN_FILE} cannot be read ({error}); give the directory of an interrupted "
            "compare --interleave"
        ) from error


def parse_experiment(words: Sequence[str]) -> Experiment:
    """The words behind `--`; an override of a side may be given several times, or several in one with commas.

    Behind a second `--` is a program of the user's own.
    """
    place = words.index("--") if "--" in words else len(words)
    command = list(words[place + 1 :])
    common = [f"workload.command={quote(command)}"] if command else []
    overrides: dict[str, list[str]] = {side: [] for side in SIDES}
    refs: dict[str, str] = {}
    for word in words[:place]:
        key, _, value = word.partition("=")
        side, _, what = key.partition(".")
        if side not in SIDES:
            common.append(word)
        elif what == "overrides":
            overrides[side] += _split(value.removeprefix("[").removesuffix("]") if value.startswith("[") else value)
        elif what == "ref" and value:
            refs[side] = value
        else:
            raise ConfigError(f"compare --interleave: {word!r} is not understood, {_ALLOWED}")
    if overrides["base"] == overrides["candidate"] and refs.get("base") == refs.get("candidate"):
        raise ConfigError(
            f"compare --interleave: both sides are the same, {_ALLOWED}; to compare one with itself, give a side a "
            "value it has already, such as candidate.overrides=run.seed=0"
        )
    return Experiment(
        common=tuple(common), overrides={side: tuple(found) for side, found in overrides.items()}, refs=refs
    )


def check_sides(experiment: Experiment) -> None:
    """What is wrong with the words of either side, before the first run; another commit may know other keys."""
    problems: list[str] = []
    for side in (side for side in SIDES if side not in experiment.refs):
        try:
            _compose([*CLEAN_PASS_ALONE, *experiment.common, *experiment.overrides[side]])
        except ConfigError as error:
            problems += [f"{side}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def _compose(words: Sequence[str]) -> None:
    from llm_perf_opt.config.arguments import parse_arguments
    from llm_perf_opt.pipeline.compose import (
        COMPOSITION_ERRORS,
        CONFIG_NAME,
        ConfigEntry,
        compose_config,
        explain_composition_error,
        open_known_keys,
        type_config,
    )
    from llm_perf_opt.pipeline.plan import find_entry_points, open_plugin_keys

    arguments = parse_arguments(words)
    overrides = open_plugin_keys(arguments.overrides, find_entry_points().keys() - set(BUILT_IN))
    if arguments.config_name is not None or arguments.config_dir is not None:
        overrides = open_known_keys(overrides, below="" if arguments.config_name is not None else "pipeline.")
    entry = ConfigEntry(name=arguments.config_name or CONFIG_NAME, extra_dir=arguments.config_dir)
    try:
        composed = compose_config(overrides, entry)
    except COMPOSITION_ERRORS as error:
        raise explain_composition_error(error, overrides, user_dir=Path.cwd(), entry=entry) from error
    type_config(composed, user_dir=Path.cwd())


def run_pairs(
    experiment: Experiment,
    looks: Sequence[int],
    out_dir: Path,
    say: Callable[[str], None],
    is_settled: Callable[[int], bool],
) -> None:
    """Make runs of each side below `out_dir`, in pairs, until the result is conclusive or `looks` ends.

    `is_settled` is called with the position in `looks`, and not after the last. A run that fails ends it, since
    nothing can be compared then.
    """
    with _checkouts(experiment, out_dir) as places:
        for number in range(1, looks[-1] + 1):
            # The order changes with every pair, so that being first is not an advantage.
            for side in SIDES if number % 2 else reversed(SIDES):
                folder = out_dir / side / str(number)
                if _is_done(folder):
                    continue
                most = "" if len(looks) == 1 else "at most "
                say(f"pair {number} of {most}{looks[-1]}: {side}")
                if not _run(experiment, side, folder, places[side]):
                    say(f"{side} {number} failed: {folder}")
                    return
            if number in looks[:-1] and is_settled(looks.index(number)):
                return


def _is_done(folder: Path) -> bool:
    """Whether an earlier start made this run; what it left unfinished is removed."""
    with suppress(ManifestError):
        if read_manifest(folder).status == "ok":
            return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _run(experiment: Experiment, side: str, folder: Path, place: Path | None) -> bool:
    # It is this program once more, which keeps secrets from its own children and files.
    env = dict(os.environ)
    if place is not None:
        # What is in the checkout is found before what is installed.
        paths = [str(place / "src"), str(place), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(paths)
    words = [*CLEAN_PASS_ALONE, *experiment.common, *experiment.overrides[side]]
    return llm_perf("profile", words, folder, env=env, cwd=place, what=f"the {side}")


def llm_perf(
    command: str,
    words: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    what: str = "a run",
    timeout_s: float = RUN_TIMEOUT_S,
) -> bool:
    """Run one of our commands in its own process, its run in `folder`; whether it succeeded."""
    argv = [sys.executable, "-m", "llm_perf_opt.cli", command]
    argv += [f"artifacts.runs_dir={quote(str(folder))}", f"hydra.run.dir={quote(str(folder))}", *words]
    log = folder.with_name(f"{folder.name}.log")
    result = run_command(argv, env=env, timeout_s=timeout_s, log=log, cwd=cwd, redactor=Redactor.of(os.environ))
    try:
        read_manifest(folder)
    except ManifestError as error:
        raise CommandFailed(
            f"{what} could not be started: {result.tail.strip() or 'it printed nothing'} (log: {log})"
        ) from error
    return result.ok


@contextmanager
def _checkouts(experiment: Experiment, out_dir: Path) -> Iterator[dict[str, Path | None]]:
    """A working tree for each commit that was named, taken away at the end."""
    env = allowed_environment(os.environ)
    places: dict[str, Path | None] = dict.fromkeys(SIDES)
    try:
        for side, ref in experiment.refs.items():
            place = out_dir / f"{side}-checkout"
            if place.exists():
                # Left by a start that was killed.
                run_quick(["git", "worktree", "remove", "--force", str(place)], env=env, timeout_s=300)
            code, text = run_quick(["git", "worktree", "add", "--detach", str(place), ref], env=env, timeout_s=300)
            if code != 0:
                raise ConfigError(f"compare --interleave: {side}.ref={ref}: no checkout could be made: {text.strip()}")
            places[side] = place
        yield places
    finally:
        for made in places.values():
            if made is not None:
                run_quick(["git", "worktree", "remove", "--force", str(made)], env=env, timeout_s=300)


def _split(text: str) -> list[str]:
    """At commas outside brackets and quotes."""
    parts, depth, start, quoted = [], 0, 0, ""
    for index, character in enumerate(text + ","):
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in "'\"":
            quoted = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [part for part in parts if part]
