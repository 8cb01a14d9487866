"""`%load_ext llm_perf_opt`, then `%%llm_perf [NAME]`: profile a cell and show the first screen of its report."""

from typing import Any

from llm_perf_opt.api.profile import profile
from llm_perf_opt.errors import ConfigError

MAGIC = "llm_perf"
DEFAULT_NAME = "analysis"


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; IPython calls this."""

    def llm_perf(line: str, cell: str) -> Any:
        """Profile a cell: `%%llm_perf [NAME]` keeps the analysis under that name (default: analysis)."""
        name = line.strip() or DEFAULT_NAME
        if not name.isidentifier():
            raise ConfigError(f"%%llm_perf: not a name (got {name!r}), allowed: such as %%llm_perf before")
        with profile() as block:
            result = shell.run_cell(cell)
        # The error was shown where the cell is; what ran before it says little.
        if not result.success:
            return None
        shell.push({name: block.analysis})
        return block.analysis

    shell.register_magic_function(llm_perf, magic_kind="cell", magic_name=MAGIC)
