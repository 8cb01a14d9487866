"""What a run's figures say should change.

`facts` holds the figures, each known with its source or unknown with a reason. `waterfall` puts those of one phase in
order, from the physical limit to the measured time. `finding` says what a finding and a rule are, and ranks findings.
`phase_kernels` cuts kernels by phase for the rules that look at them. `rules` has one module per rule, their list, and
`diagnose`, which applies them all; a capture alone, without a run around it, is judged by `diagnose_ranges`.

The report gathers facts from the files of a run, builds waterfalls, and diagnoses; the analysis of a capture diagnoses
its ranges. Read `facts`, `finding`, then one rule (`rules/kernel_gaps.py` is the shortest about idle time).
"""
