"""Resizes the same image for each request (PIL)."""

import os
import time

from PIL import Image

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def preprocess(image: Image.Image) -> Image.Image:
    return image.resize((336, 336), Image.Resampling.LANCZOS)


def main() -> None:
    image = Image.new("RGB", (2000, 1500), "grey")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        preprocess(image)


main()
