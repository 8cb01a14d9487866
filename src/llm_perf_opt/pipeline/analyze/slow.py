"""The slowest requests of a run of `llm-perf bench`, from the files it left: `llm-perf analyze RUN_DIR`."""

from pathlib import Path

import msgspec

from llm_perf_opt.core.sections import titled_table
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.report.sections.slow_requests import slow_sections
from llm_perf_opt.serving.load_results import BENCH
from llm_perf_opt.serving.requests.request_records import SLOW_FILE
from llm_perf_opt.serving.requests.stored_requests import explain_run, is_load_run
from llm_perf_opt.system.json_output import print_json

__all__ = ["analyze_load_run", "is_load_run"]


def analyze_load_run(run_dir: Path, output: Path | None, *, as_json: bool) -> None:
    """Print the document or its tables. The run has a report already, so that no other is written."""
    if output is not None:
        raise ConfigError(f"-o {output}: the run has its report; leave -o out, or give --json and redirect the output")
    document = explain_run(run_dir)
    if as_json:
        print_json(msgspec.to_builtins(document))
        return
    sections = slow_sections(document, source=f"{BENCH}/{SLOW_FILE}")
    if not sections:
        print("No request succeeded in this run.")
    for section in sections:
        print("\n\n".join([*section.paragraphs, *(titled_table(table) for table in section.tables)]))
