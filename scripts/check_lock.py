"""Says where constraints.txt does not lock a direct dependency of pyproject.toml, or locks what is not installed.

python scripts/check_lock.py        exit code 1 and a line for each problem
"""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def locked(text: str) -> dict[str, str]:
    """The pinned versions by name."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def direct(pyproject: str) -> list[Requirement]:
    """Every requirement of the package, of running models and of development; other extras are a user's own choice."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    found = [Requirement(text) for text in (*project["dependencies"], *extras.get("run", ()), *extras["dev"])]
    return [need for need in found if need.name != project.get("name")]


def problems(pyproject: str, constraints: str) -> list[str]:
    """What is not locked, or locked to a version the package does not allow."""
    pins = locked(constraints)
    found = []
    for need in direct(pyproject):
        version = pins.get(canonicalize_name(need.name))
        if version is None:
            found.append(f"{need.name}: not in constraints.txt; add {need.name}==<version>")
        elif not need.specifier.contains(version, prereleases=True):
            found.append(f"{need.name}: constraints.txt has {version}, pyproject.toml asks for {need.specifier}")
    return found


def not_installed(constraints: str) -> list[str]:
    """Pins that differ from what is installed; what is not installed at all is not a difference."""
    found = []
    for name, version in locked(constraints).items():
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed != version:
            found.append(f"{name}: constraints.txt has {version}, {installed} is installed")
    return found


def main() -> int:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = [*problems(pyproject, constraints), *not_installed(constraints)]
    print("\n".join(found) if found else "every direct dependency is locked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
