"""Stage energy: joules of the workload, by phase and per token.

`stage` walks through it: idle power, the workload with meters alongside it, figures, files. `meters` finds what can be
asked (NVIDIA's driver, RAPL, AMD's library) and samples it. `attribution` is pure: readings of a counter and spans of
the workload become joules. `document` is what is written, `section` what is shown of it.
"""
