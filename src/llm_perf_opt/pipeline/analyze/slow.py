"""The slowest requests of a run of `llm-perf bench`, from the files it left: `llm-perf analyze RUN_DIR`."""

from pathlib import Path

import msgspec

from llm_perf_opt.core.sections import SectionTable, table_texts
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.report.sections.slow_requests import slow_sections
from llm_perf_opt.serving.load_results import BENCH
from llm_perf_opt.serving.requests.request_records import SLOW_FILE
from llm_perf_opt.serving.requests.stored_requests import explain_run, is_load_run
from llm_perf_opt.system.json_output import print_json
from llm_perf_opt.system.terminal import number_columns, terminal_table

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
        print("\n\n".join([*section.paragraphs, *(_text(table) for table in section.tables)]))


def _text(table: SectionTable) -> str:
    rows = table_texts(table.rows)
    return f"{table.title}\n{terminal_table(table.columns, rows, right=number_columns(rows) if rows else [])}"
