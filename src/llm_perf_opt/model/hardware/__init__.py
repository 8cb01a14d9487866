"""What a device allows.

`work` is what a device is requested: number formats, FLOPs and bytes. `hardware` reads the catalogue and recognises a
device, `calibrate` measures what it really reaches and keeps it,
`gpu_generation` says what a generation of GPUs multiplies on its matrix units,
`roofline` turns FLOPs and bytes into the shortest time possible, and says by which limit.
"""
