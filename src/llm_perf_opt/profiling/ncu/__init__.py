"""What the ncu stage does between choice and files.

`select` decides which kernels and launches are worth ncu's time, `session` plans the captures and walks through them,
`capture` runs ncu and names what went wrong, `results` turns its report into files and figures of the manifest.
Called by `stages.ncu`; read `session` first. The meaning of ncu's numbers is in `analysis.kernels`.
"""
