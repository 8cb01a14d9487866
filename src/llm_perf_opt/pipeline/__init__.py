"""A run from its overrides to its manifest.

compose  overrides and presets to typed configuration
plan     which stages run, in which order, and what stands in their way
preflight  the workload's files, checked before anything starts
run      executes the plan; failure is data here, and the manifest is rewritten after each stage
resume   what an earlier run of the same directory already has
provenance  what the run was made with: env.json, config.yaml, inputs.yaml
index    one run of many: its labels, keys and numbers
catalogue  thousands of runs, from an index beside them
stores   runs sent to an object store or another host, and listed there
sweep    the runs of a sweep as one table, and the front nobody beats
console  what the user sees meanwhile, and the lines a run ends with

`runners.job` calls them in that order. Stages are found by entry point and never named here.
"""
