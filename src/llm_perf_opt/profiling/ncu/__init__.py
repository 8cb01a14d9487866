"""What the ncu stage does between choice and files.

`select` decides which kernels and launches are worth ncu's time, `ncu_session` plans the captures and walks through
them, `ncu_capture` runs ncu and names what went wrong, `ncu_results` turns its report into files and figures of the
manifest. Called by `stages.ncu`; read `ncu_session` first. The meaning of ncu's numbers is in `analysis.kernels`.
"""
