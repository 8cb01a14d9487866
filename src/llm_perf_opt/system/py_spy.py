"""The sampler py-spy: where it is, and its version."""

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SAMPLER = "py-spy"


def find_sampler() -> tuple[str, str] | None:
    """py-spy's program and version: that of its package first, else the one on PATH."""
    try:
        package = distribution(SAMPLER)
    except PackageNotFoundError:
        found = shutil.which(SAMPLER)
        return None if found is None else (found, SAMPLER)
    for file in package.files or ():
        path = Path(str(file.locate()))
        if file.name == SAMPLER and path.is_file():
            return str(path.resolve()), f"{SAMPLER} {package.version}"
    return None
