"""Captures of tools that are neither NVIDIA's nor torch's profiler.

`rocpd` reads the databases of AMD's rocprofv3, `ascend` the traces of torch_npu's profiler, `memory_snapshot` the
pickles of torch's allocator.
"""
