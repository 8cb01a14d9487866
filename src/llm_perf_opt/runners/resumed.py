"""Turns `run.resume=<dir>` into the overrides the run was started with, plus the new ones."""

import os
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.legacy import override_key
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ConfigError

KEY = "run.resume"


def resumed_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments of the first start with the new ones on top; unchanged when nothing is resumed.

    Relative paths in the recorded overrides were meant from where the user stood, so the process goes back there.
    """
    value = next((a.partition("=")[2] for a in argv if override_key(a) == KEY), None)
    if value is None or value in ("null", ""):
        return list(argv)
    run_dir = Path(value.strip("'\"")).expanduser().resolve()
    if not (run_dir / MANIFEST_FILE).exists():
        raise ConfigError(
            f"{KEY}: no {MANIFEST_FILE} in it (got {value!r}), allowed: the directory of a run "
            "(`llm-perf runs` lists them)"
        )
    manifest = read_manifest(run_dir)
    new = [a for a in argv if override_key(a) != KEY]
    given = {override_key(a) for a in new}
    old = [o for o in manifest.overrides if override_key(o) not in given | {KEY, "run.dry_run"}]
    if manifest.user_dir and Path(manifest.user_dir).is_dir():
        os.chdir(manifest.user_dir)
    return [*old, *new, f'{KEY}="{run_dir}"']
