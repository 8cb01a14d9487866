"""The version of a package in another Python, read from its files: to start that Python would take seconds."""

import re
import shutil
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path

_SHEBANG = re.compile(rb"^#!\s*(/\S*python[0-9.]*)")
_HEAD_BYTES = 512


def installed_version(package: str, program: str, environ: Mapping[str, str]) -> str | None:
    """The version of `package` that a program of it (its script, or its Python) uses; None where that is not plain."""
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        return None
    for folder in _folders(Path(found)):
        for info in sorted(folder.glob(f"{package}-*.dist-info/METADATA")):
            version = HeaderParser().parsestr(info.read_text(encoding="utf-8", errors="replace")).get("Version")
            if version:
                return version
    return None


def _folders(program: Path) -> Iterator[Path]:
    """Where the packages of a program's Python are: next to it, or next to the Python its first line names."""
    homes = [program.parent.parent, program.resolve().parent.parent]
    with program.open("rb") as file:
        shebang = _SHEBANG.match(file.read(_HEAD_BYTES))
    if shebang is not None:
        homes.insert(0, Path(shebang.group(1).decode("utf-8", "replace")).parent.parent)
    for home in dict.fromkeys(homes):
        yield from sorted(home.glob("lib/python3*/site-packages"))
        yield from sorted(home.glob("lib/python3*/dist-packages"))
