"""Everything that measures: stages, the vendor tools they start, and readers of what those tools write.

`stages` has one module per stage and is where a run enters; a stage builds a command (`vendor`), runs it, reads its
files (`parsers`), hands them to `analysis` and writes what came of it. `nsys` and `ncu` hold what is particular to
each tool between those steps. `baseline` is the clean pass a slowdown is measured against, `artifacts` says where
files go, `capture_files` writes the analysis of a timeline, `nvml` samples a GPU
during the workload, `sampled` the stacks of a program (`launch_sampled` is the process that starts it).

Read one stage top to bottom, `stages.nsys`, before anything else.
"""
