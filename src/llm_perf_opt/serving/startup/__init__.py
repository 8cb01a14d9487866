"""Where the time until a server is ready goes, and what its memory is for.

Read in this order. `startup_records`: the document `startup.json`. `sampler`: py-spy on the server's process tree until
it is ready. `startup_stacks`: its trace as spans of stacks, by process. `purposes` with `purposes.toml`: what a stack
is for. `startup_path`: of all processes the one that the others wait for, moment by moment. `startup_memory`: what the
server's log says about memory, and what the checkpoint predicts. `startup_causes`: the document from these. `sections`:
tables of the report.
"""
