"""The sampler py-spy: where it is, and its version."""

import shutil
from importlib.metadata import distributions
from pathlib import Path

SAMPLER = "py-spy"


def find_sampler() -> tuple[str, str] | None:
    """py-spy's program and version: that of its package first, else the one on PATH."""
    version = SAMPLER
    package = next(iter(distributions(name=SAMPLER)), None)
    if package is not None:
        version = f"{SAMPLER} {package.version}"
        for file in package.files or ():
            path = Path(str(file.locate()))
            if file.name == SAMPLER and path.is_file():
                return str(path.resolve()), version
    # `pip install --target` puts the program where the package's own list of files does not say.
    found = shutil.which(SAMPLER)
    return None if found is None else (found, version)
