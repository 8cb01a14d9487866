"""Stage memory: where memory goes over time, what peaks and why, and what was there when it ran out.

`stage` runs the workload with a `watcher` inside it and reports. The watcher records through `cuda` (the allocator's
own history) or `cpu` (torch.profiler, and the resident set); both give `blocks`: pieces of memory with a birth and a
death, which are given a kind, laid over time and asked about the peak. `module_names` finds the module behind a Python
stack. `document` is what is written, `section` what is shown of it.
"""
