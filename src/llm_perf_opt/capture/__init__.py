"""One capture as intervals on a clock: what ran, what waited, and inside which range.

`timeline` is the record every reader fills; `intervals` has the set algebra on it. `idle` gives each idle nanosecond
one cause, `ownership` finds the range for which a thread launches, `ranges` measures named ranges, `operators`
attributes kernels to operators and modules, `tables` and `rows` aggregate, `window` cuts out what a page draws,
`allocator_memory` follows the allocator and `allocations` its snapshots. `shapes` puts operators under the GPU's
roofline, `critical` finds what decides when a range is done, `frames` has Python's call tree, `graphs` names what
graphs replay. `streams` finds streams that wait for each other, `fusion` kernels that one kernel would do, `exclusive`
gives each busy instant of a GPU to one kernel and finds how much of it decides when the work ends, `copy_kernels` says
what kernels that only move data do, `gemms` in which precision products run, `launch_shapes` which launches leave most
of a GPU empty, `floors` what optimizers and copies need at least. `kernel_names` limits how many kernels are
distinguished.

Sub-packages: `readers` (files to a timeline), `kernels` (names, classes, counters of ncu), `ranks` (communication,
overlap, who waited for whom).

Read `timeline`, then `ranges`; `llm_perf_opt.diagnosis.evidence` calls them all. `rows` stays free of numpy: a kernel
summary starts without it.
"""
