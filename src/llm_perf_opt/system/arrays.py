"""Numpy without idle threads, and with freed memory kept for the next column; the cores there are to work on."""

import os
import sys

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# A little less than the most that glibc takes for usual.
USUAL_BYTES = (32 << 20) - 8192
# Columns of fewer rows are small next to the interpreter: giving their memory back costs more than it brings.
MANY_ROWS = 1_000_000


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


def give_back_freed_memory(rows: int) -> None:
    """Have glibc return what it kept to the system, between two steps that need memory of different sizes.

    `rows` are those of the longest column that was worked on.
    """
    if rows >= MANY_ROWS and sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        # Other C libraries keep less.
        if trim is not None:
            trim(0)


def usable_cores() -> int:
    """Those this process may run on; one where others keep all of them busy: there, help makes it slower."""
    cores = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
    return cores if os.getloadavg()[0] < cores else 1
