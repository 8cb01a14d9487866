"""The meaning of numbers: pure functions from records to records, no process, no GPU, no file of a run.

timeline  busy and idle time, ranges, operators of one capture
kernels   names and classes of kernels, what ncu's counters say of them
hardware  peaks and bandwidths, measured ceilings, roofline
static    FLOPs, bytes and memory of a model, counted twice
ranks     several GPUs, processes or ranks: communication, overlap, who waited for whom
findings  what to change first: facts of a run, the waterfall, one module per rule

Sub-packages import each other only from right to left, `capture` puts a timeline and its findings into one analysis:
`kernels`, `hardware` <- `timeline`, `static` <- `ranks` <- `findings` <- `capture`. Called by `profiling`, `report`,
`runners`.
"""
