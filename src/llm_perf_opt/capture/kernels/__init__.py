"""One kernel: its name, its class, and what ncu measured of it.

`names` shortens and classifies, `copies` says what a kernel that only moves data does, `gemm_names` in which precision
a GEMM runs and on which units, `match` joins nsys's and ncu's names, `operator_work` is what an operator has to compute
and to move, `ncu_records` holds counters and their units, `ncu_figures` derives figures from counters, `ncu_analysis`
puts figures, percentage of peak and explanation into one row per kernel.
"""
