"""From a run directory to what people read.

`write` is the whole of it in a screen: read (`run_files`), decide (`facts`, then `view`), render
(`report_md`, `html`, `kernels_md`, `summary_md`, `perfetto`). Numbers and tables are formatted by `core.units` and
`core.markdown`; `svg` has the drawings outside the page.

Renderers decide nothing; a question of what to show belongs in `view`.
"""
