"""What happened while no kernel ran.

`host_gaps` says what a host thread did during a time: the operator, Python frame, runtime call, range or system call
that covers it. `gap_verdict` names the kind of work that is, by the patterns in `host_time.toml`: loading data,
compiling, allocating, talking to other ranks, or simply host work. `gap_owners` names the Python functions it was spent
in. `startup_gaps` recognises start-up by what the runtime does. `long_gaps` applies all four to the longest gaps of a
capture and adds up the reasons. `traits` says what the timing shows of the whole program: how far launches run ahead
of the GPU, the steps of an unmarked loop, launches that block, allocator flushes, a shared GPU. `edges` is what the
host does before the first GPU work and after the last, `host_alone` where the time goes of a program that has none.
`gap_report` adds what synchronisation and memory calls cost and where, and puts them together: the part `idle` of
`analysis.json`, which the causes of `llm_perf_opt.diagnosis` judge a capture by.

Short gaps are only counted: an eager framework leaves one behind every kernel, and they all have the same reason. Read
`capture/idle.py` first, then `host_gaps`, `gap_verdict`, `long_gaps`.
"""
