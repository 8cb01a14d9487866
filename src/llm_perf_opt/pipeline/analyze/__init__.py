"""Existing captures, read on any machine: the work behind `llm-perf analyze`.

`kinds` finds out what each file is, `foreign` names what is no capture, `read` reads and analyses them, `text` prints
tables, `run` writes a run directory. `sections` and `pictures` show a detailed reading of a trace on the terminal and
on the page. `kernels` is the short way to a kernel summary and imports nothing heavy; `served` and `snapshots` are for
results of load generators and memory snapshots, which have no timeline.
"""
