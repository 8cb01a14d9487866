"""`llm-perf predict`: what hardware allows for a model and what to expect, from its configuration alone.

`request` reads the command line, `source` finds a model's config.json, `machine` this machine's device; `cli` composes
and computes rows, `counted` and `beside` ask torch where no closed form does. `row` has their columns, `table` prints
them, `files` writes CSV and a picture.
"""
