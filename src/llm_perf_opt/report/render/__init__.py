"""Renderers: a finished view in, text out; nothing is decided here.

`html` is the page, with `roofline_layout` for places on its plot and `glossary` for terms explained where they are
read. `report_md` (with `markdown_text`), `kernels_md` and `summary_md` are the markdown files, `capture_text` the
terminal output of `analyze`, `perfetto` the trace; `openmetrics`, `otlp` and `stacks_export` are formats of `export`,
`first_screen` is for notebooks.
"""
