"""Existing captures, read on any machine: the work behind `llm-perf analyze`.

`read` reads and analyses the files, `run` writes a run directory. `kernels` is the short way to a kernel summary and
imports nothing heavy; `slow` explains slow requests of a load; `served` and `snapshots` are for results of load
generators and memory snapshots, which have no timeline. What each file is comes from `capture.readers.kinds`.
"""
