"""Where the shipped configuration lies."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """`conf/` inside an installed wheel, or at the top of a checkout."""
    installed = PACKAGE / "conf"
    return installed if installed.is_dir() else PACKAGE.parent.parent / "conf"
