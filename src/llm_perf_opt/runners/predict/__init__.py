"""`llm-perf predict`: what hardware allows for a model, from its configuration alone.

`cli` reads the request, composes and computes; `table` prints it.
"""
