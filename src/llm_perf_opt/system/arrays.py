"""Numpy without idle threads, and with freed memory kept for the next column."""

import os
import sys

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# A little less than the most that glibc takes for usual.
USUAL_BYTES = (32 << 20) - 8192


def load_numpy() -> None:
    """Import numpy without the threads of its BLAS: nothing here needs them, and they are busy waiting when they start.

    What other programs inherit from us stays as it is.
    """
    is_asked = BLAS_THREADS in os.environ
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        import numpy  # noqa: F401
    finally:
        if not is_asked:
            del os.environ[BLAS_THREADS]


def keep_freed_memory() -> None:
    """Have glibc keep what is freed: it takes the largest block freed so far for a usual size, and keeps as much.

    Without this one, which is never touched, every column of a long capture would come from pages the system has to
    clear first.
    """
    import numpy as np

    np.empty(USUAL_BYTES, np.uint8)


def give_back_freed_memory() -> None:
    """Have glibc return what it kept to the system, between two steps that need memory of different sizes."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        # Other C libraries keep less.
        if trim is not None:
            trim(0)
