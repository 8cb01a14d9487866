"""From a run directory to what people read.

`write` is the whole of it in a screen: read (`run_files`, `samples`), find the figures (`run_facts`), decide what is
shown (`view`), render (`render`). `sections` builds what stages and commands add to a report; `kernel_columns` says
which columns a kernel table has. `draw` has every drawing. `compare` and `optimize` have the pages and terminal texts
of those commands. Numbers and tables are formatted by `core.units` and `core.markdown`.

Renderers decide nothing; a question of what to show belongs in `view`.
"""
