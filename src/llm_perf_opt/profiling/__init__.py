"""Everything that measures: stages and the vendor tools they start.

`stages` has one module per stage and is where a run enters; a stage builds a command (`vendor`), runs it, has
`capture.readers` read its files, and `capture_files` analyse and write them. `nsys` and `ncu` hold what is particular
to each tool between those steps. `artifacts` says where files go.

Passes: `baseline` is the clean pass a slowdown is measured against, `workload_run` a pass of any command line,
`user_program` a pass of a user's program, `found_model` the model it generated with, `injected` one with the profiler
put into it (`injection` puts modules of `inject` there), `sampled` one whose stacks are sampled (`launch_sampled`
starts it, `observed` reads what `inject` saw from inside it), `attached` samples a running process, `static_child` has
what the counting child answers, `generated` what a model wrote. `trace_tables` and `clean_ranks` turn a pass into
tables and per-rank times.

Read one stage top to bottom, `stages.nsys`, before anything else.
"""
