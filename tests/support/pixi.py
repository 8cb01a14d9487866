"""The pixi tasks of pyproject.toml."""

import tomllib

from tests.support.fixtures_dir import REPO


def pixi_task(name: str) -> list[str]:
    """The words of a task after `python -m`."""
    text: str = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["pixi"]["tasks"][name]
    assert text.startswith("python -m ")
    return text.split()[2:]
