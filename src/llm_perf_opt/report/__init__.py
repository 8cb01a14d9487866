"""From a run directory to what people read.

`write` is the whole of it in a screen: read (`run_files`, `samples`), find the figures (`facts`), decide what is shown
(`view`), render: `html` with what only the page needs (`page`), `report_md` and `markdown`, `kernels_md` with
`kernel_columns`, `summary_md`, `perfetto`, `openmetrics`. `charts`, `load_charts` and `svg` draw. `compare` and
`optimize` have the pages and terminal texts of those commands. Numbers and tables are formatted by `core.units` and
`core.markdown`.

Renderers decide nothing; a question of what to show belongs in `view`.
"""
