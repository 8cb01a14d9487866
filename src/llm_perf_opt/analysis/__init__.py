"""The meaning of numbers: pure functions from records to records, no process, no GPU, no file of a run.

timeline  busy and idle time, ranges, operators of one capture
kernels   names and classes of kernels, what ncu's counters say of them
hardware  peaks and bandwidths, measured ceilings, roofline
memory    snapshots of torch's allocator
static    FLOPs, bytes and memory of a model, counted twice
host      what sampled stacks of a program say, by cause and source line
ranks     several GPUs, processes or ranks: communication, overlap, who waited for whom
gaps      what happened while no kernel ran
families, estimate  closed forms by model family, and what a deployment would take
compare, bisect, optimize   two sides compared, the change that did it, and which experiment to try next

This is evidence: what a capture holds and what a model needs. The judgement of it is `llm_perf_opt.diagnosis`, which
only `compare` and `optimize` here know. Sub-packages import each other only from right to left: `kernels`, `hardware`
<- `timeline`, `static` <- `gaps`, `ranks`. Called by `diagnosis`, `profiling`, `report`, `runners`.
"""
