"""`llm-perf export RUN|CAPTURE --to parquet -o DIR`: every view as a Parquet file."""

import sys
from pathlib import Path

from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.arrays import load_numpy


def export_tables(source: Path, folder: Path) -> list[Path]:
    """Write all views; returns the files. Of a run without its capture, those of its documents."""
    load_numpy()
    from llm_perf_opt.api.load import open_any
    from llm_perf_opt.sql.view_schema import VIEWS

    opened = open_any(source, detail=True)
    target = folder.expanduser()
    with written_by("-o", folder):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"-o {folder}: exists and is not an empty directory, allowed: a new or an empty one")
        target.mkdir(parents=True, exist_ok=True)
    unread = [view.name for view in VIEWS if view.needs == "capture" and not opened.has_capture]
    if unread:
        print(f"not written, for the run holds no capture: {', '.join(unread)}", file=sys.stderr)
    names = [view.name for view in VIEWS if view.name not in unread]
    return [opened.table(name).parquet(target / f"{name}.parquet") for name in names]
