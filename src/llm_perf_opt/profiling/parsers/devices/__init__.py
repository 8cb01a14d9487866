"""Captures of devices that are not NVIDIA's, as the same Timeline.

`rocpd` reads the databases of AMD's rocprofv3.
"""
