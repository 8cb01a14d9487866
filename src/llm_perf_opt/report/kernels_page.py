"""kernels.md: every kernel of a run, and what ncu says about those it measured."""

from llm_perf_opt.core.markdown import code, escape, table
from llm_perf_opt.report.kernels_md import render_kernels_md
from llm_perf_opt.report.report_md import kernel_table
from llm_perf_opt.report.view.report import ReportView

SHOWN = 200


def render_kernels_page(view: ReportView) -> str:
    kernels = view.kernels
    if kernels.missing is not None:
        return f"# Kernels\n\nUnknown: {escape(kernels.missing.text)}.\n"
    sources = ", ".join(code(s) for s in (kernels.source, kernels.ncu_source) if s)
    lines = [
        "# Kernels",
        "",
        f"{len(kernels.rows)} kernels ({sources}). {escape(kernels.join)}",
        "",
        "Share is of all kernel time of the capture; prefill and decode are times of one prompt and of one token. "
        "Floor: the time the kernel's own FLOPs and bytes need at the data sheet's peaks. A dash: not measured.",
        "",
        *kernel_table(kernels, SHOWN),
    ]
    if len(kernels.rows) > SHOWN:
        lines += ["", f"{len(kernels.rows) - SHOWN} more are in {sources}."]
    lines += ["", *(f"- {escape(note)}" for note in kernels.notes)]
    if view.ncu is not None and view.ncu.kernels:
        text = render_kernels_md(view.ncu)
        lines += ["", "## Measured by ncu", *text.splitlines()[1:]]
    return "\n".join([*lines, "", "## Full names", "", *_names(view)]) + "\n"


def _names(view: ReportView) -> list[str]:
    rows = [(str(rank), code(row.name)) for rank, row in enumerate(view.kernels.rows[:SHOWN], start=1)]
    return table(("#", "name"), rows, right=("#",))
