"""Walks over an image element by element."""

import os
import time

import numpy

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def brighten(image: numpy.ndarray) -> numpy.ndarray:
    out = numpy.empty_like(image)
    height, width = image.shape
    for y in range(height):
        for x in range(width):
            out[y, x] = min(255, image[y, x] + 10)
    return out


def main() -> None:
    image = numpy.full((120, 160), 100, dtype=numpy.int64)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        brighten(image)


main()
