"""A run from its overrides to its manifest.

compose  overrides and presets to typed configuration
plan     which stages run, in which order, and what is in their way
preflight  the workload's files, checked before anything starts
run      executes the plan; failure is data here, and the manifest is rewritten after each stage
resume   what an earlier run of the same directory already has
provenance  what the run was made with: env.json, config.yaml, inputs.yaml
index    one run of many: its labels, keys and numbers
catalogue  thousands of runs, from an index alongside them
loaded_run  a run that was made, as an object with its numbers
run_result  what a run came to, as one document
share    a copy of a run for others, redacted
stores   runs sent to an object store or another host, and listed there
sweep    the runs of a sweep as one table, and its Pareto front
console  what the user sees meanwhile, and the lines a run ends with

Sub-packages hold the work behind a command: `analyze`, `bench`, `bisect`, `compare`, `optimize`; `jobs` is sweeps on
clusters. `job` is one run from typed configuration to reports and calls the modules in the order above. Stages are
found by entry point and never named here.
"""
