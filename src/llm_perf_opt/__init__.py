"""Profile LLM inference through static analysis, the PyTorch profiler, Nsight Systems and Nsight Compute."""

__version__ = "0.1.0"
