"""Existing captures, read on any machine: the work behind `llm-perf analyze`.

`read` reads and analyses the files, `analyze_run` writes a run directory. `kernel_files` is the short way to a kernel
summary and imports nothing heavy; `slow` explains slow requests of a load; `served_analysis` and `snapshots` are for
results of load generators and memory snapshots, which have no timeline. What each file is comes from
`capture.readers.kinds`.
"""
