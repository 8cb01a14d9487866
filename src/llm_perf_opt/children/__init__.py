"""Child processes of a run: each composes its configuration, does its work and answers with files.

`start` is what every child does first; `inference` is the clean pass and what nsys and ncu watch, `torch_profile` both
passes of the torch profiler, `static_counts` counts operators and calibrates, `optimize_worker` runs the experiments of
`llm-perf optimize`. `profiling.vendor.launch` builds their command lines; nothing imports them but `runners`.
"""
