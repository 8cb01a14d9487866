"""`llm-perf optimize`: `cli` reads the words, `setup` profiles or reads a run, `run` tries one experiment after
another.

An experiment is a process of its own that stays alive (`worker`), so that its passes and those of what it is compared
with can be made in turns without starting anything again; `workers` is our end of the line to it. A program of the
user's own is started for every pass (`program`). What is decided is in `analysis/optimize`, what is shown in
`report/optimize`.
"""
