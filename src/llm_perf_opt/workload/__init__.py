"""What is profiled: models, data, clocks and NVTX ranges."""
