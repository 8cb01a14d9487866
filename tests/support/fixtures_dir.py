"""Where captures too large or not ours to commit may lie; tests that need them skip when they are absent."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DATA = REPO / "tests" / "data"


def shared_fixtures() -> Path | None:
    """The folder of real captures alongside the checkout, or None."""
    path = REPO.parent / "shared" / "fixtures"
    return path if path.is_dir() else None
