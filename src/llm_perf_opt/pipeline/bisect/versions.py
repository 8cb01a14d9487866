"""Releases of a package, each installed in a fresh virtual environment."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.comparison.bisect.bisect_document import Kind
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bisect.line import PointFails, PointName, RunPlace
from llm_perf_opt.system.process import run_command, run_quick
from llm_perf_opt.system.redact import Redactor

INSTALL_TIMEOUT_S = 3600.0
INDEX_TIMEOUT_S = 120.0
_RANGE = re.compile(r"(?P<package>[A-Za-z0-9._-]+)==(?P<good>[0-9][\w.!+-]*?)\.\.(?P<bad>[0-9][\w.!+-]*)")
_RELEASE = re.compile(r"\d+(\.\d+)*")
ALLOWED = "allowed: such as transformers==5.10..5.17"


@dataclass(kw_only=True)
class VersionLine:
    """Releases from good to bad. `extra` are packages that every environment has as well."""

    package: str
    versions: tuple[str, ...]
    extra: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    env: dict[str, str]
    kind: Kind = "versions"
    _made: dict[int, Path] = field(default_factory=dict)

    @property
    def names(self) -> Sequence[PointName]:
        return [PointName(label=f"{self.package}=={version}") for version in self.versions]

    def place(self, point: int) -> RunPlace:
        venv = self._made.get(point) or self._install(point)
        scripts = venv / "bin"
        env = {
            **self.env,
            "VIRTUAL_ENV": str(venv),
            "PATH": os.pathsep.join([str(scripts), self.env.get("PATH", os.defpath)]),
        }
        return RunPlace(command=self.command, cwd=Path.cwd(), env=env)

    def _install(self, point: int) -> Path:
        venv = self.folder / "environments" / self.versions[point]
        shutil.rmtree(venv, ignore_errors=True)
        self._made[point] = venv
        log = self.folder / "logs" / f"install-{self.versions[point]}.log"
        packages = [f"{self.package}=={self.versions[point]}", *self.extra]
        for argv in ([sys.executable, "-m", "venv", str(venv)], [*_installer(venv), *packages]):
            result = run_command(
                argv, env=self.env, timeout_s=INSTALL_TIMEOUT_S, log=log, redactor=Redactor.of(os.environ)
            )
            if not result.ok:
                raise PointFails(f"{packages[0]} could not be installed (log: {log})")
        return venv

    def leave(self, point: int) -> None:
        if point not in (0, len(self.versions) - 1) and point in self._made:
            shutil.rmtree(self._made.pop(point), ignore_errors=True)

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            shutil.rmtree(self.folder / "environments", ignore_errors=True)
            self._made.clear()

    def changed_files(self, before: int, after: int) -> tuple[str, ...]:
        return ()


def _installer(venv: Path) -> list[str]:
    """uv where it is installed: it takes seconds where pip takes minutes."""
    python = str(venv / "bin" / "python")
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", python]
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def version_line(
    text: str, *, extra: Sequence[str], command: Sequence[str], folder: Path, env: dict[str, str]
) -> VersionLine:
    """`PACKAGE==GOOD..BAD`: the final releases in between that the package index has."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--versions: not a range of versions (got {text!r}), {ALLOWED}")
    known = released_versions(match["package"], env)
    return VersionLine(
        package=match["package"],
        versions=versions_between(match["good"], match["bad"], known, option=text),
        extra=tuple(extra),
        command=tuple(command),
        folder=folder,
        env=env,
    )


def versions_between(good: str, bad: str, known: Sequence[str], *, option: str) -> tuple[str, ...]:
    """Releases from good to bad; an end that is a prefix means the first, or the last, release with that prefix."""
    releases = sorted({one for one in known if _RELEASE.fullmatch(one)}, key=_key)
    first = next((one for one in releases if _is_of(one, good)), None)
    last = next((one for one in reversed(releases) if _is_of(one, bad)), None)
    if first is None or last is None:
        missing = good if first is None else bad
        raise ConfigError(f"--versions: no release {missing} (got {option!r}), there are {', '.join(releases[-8:])}")
    if _key(first) >= _key(last):
        raise ConfigError(f"--versions: the good version must be older than the bad one (got {option!r}), {ALLOWED}")
    return tuple(one for one in releases if _key(first) <= _key(one) <= _key(last))


def _key(version: str) -> tuple[int, ...]:
    """Release numbers in their order; zeros at the end do not count."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _is_of(release: str, wanted: str) -> bool:
    return release == wanted or release.startswith(f"{wanted}.")


def released_versions(package: str, env: dict[str, str]) -> tuple[str, ...]:
    """What pip's package index has, by pip itself: its settings say which index that is."""
    with tempfile.TemporaryDirectory(prefix="llm-perf-bisect-") as scratch:
        argv = [*_pip(Path(scratch), env), "index", "versions", package, "--disable-pip-version-check"]
        code, text = run_quick(argv, env=env, timeout_s=INDEX_TIMEOUT_S)
    found = re.search(r"^Available versions:\s*(.+)$", text, re.MULTILINE)
    if code != 0 or found is None:
        lines = text.strip().splitlines()
        raise ConfigError(f"--versions: no releases of {package} were found ({lines[-1] if lines else 'no answer'})")
    return tuple(one.strip() for one in found[1].split(","))


def _pip(scratch: Path, env: dict[str, str]) -> list[str]:
    """A pip to ask: that of this Python, else one in its own environment."""
    code, _ = run_quick([sys.executable, "-m", "pip", "--version"], env=env)
    if code == 0:
        return [sys.executable, "-m", "pip"]
    code, text = run_quick([sys.executable, "-m", "venv", str(scratch / "venv")], env=env, timeout_s=INDEX_TIMEOUT_S)
    if code != 0:
        raise ConfigError(f"--versions: a virtual environment is needed and could not be made: {text.strip()}")
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]
