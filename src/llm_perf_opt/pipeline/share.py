"""A copy of a run for others: without secrets, names of people and machines, captures and model outputs.

Reports are rendered again from the redacted files, and `shared.json` lists what was removed.
"""

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.manifest import RunManifest, RunWarning, read_manifest, write_json, write_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.units import count_of, format_bytes
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.pipeline.provenance import ENVIRONMENT_FILE
from llm_perf_opt.report.render.html import unpack
from llm_perf_opt.report.write import RENDERERS, TRACE, write_reports
from llm_perf_opt.system.files import read_limited, read_unpacked, write_whole
from llm_perf_opt.system.redact import Redactor

SHARED_FILE = "shared.json"
PAGE = RENDERERS[0][0]
# Roles of files that hold the environment of a whole program, and are large.
CAPTURES = frozenset({"trace", "nsys_report", "nsys_sqlite", "ncu_report"})
# Roles of files that hold prompts and answers.
# That of the index of a gallery: what no role names next to it and below are texts and images of its samples.
GALLERY = "gallery"
TEXTS = frozenset({"predictions", GALLERY})
REMADE = frozenset({*(name for name, _ in RENDERERS), TRACE})
# Larger files are redacted too, but changes in them are not counted.
COUNTED_BYTES = 64 << 20
_HOME = re.compile(rb"/(?:home|Users)/[^/\s\"'\\:;,)\]]+")
_HOSTNAME = re.compile(rb'("hostname":\s*")((?:[^"\\]|\\.)*)')
# An archive of equal files is equal: the earliest time the format has.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class LeftOutFile:
    """A file of the run that the copy does not have."""

    path: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RedactedFile:
    """A file in which something was overwritten; `places` is None where the file is too large to count them."""

    path: str
    places: int | None


@dataclass(frozen=True, kw_only=True)
class SharedDocument:
    """`shared.json`: what the copy of a run is without. Redacted are secrets, host names and home directories."""

    schema_version: Literal[1] = 1
    run_id: str
    left_out: tuple[LeftOutFile, ...]
    redacted: tuple[RedactedFile, ...]

    @property
    def sentence(self) -> str:
        """One line for people."""
        places = sum(file.places or 0 for file in self.redacted)
        size = format_bytes(sum(file.size_bytes for file in self.left_out))
        return (
            f"shared copy: {count_of(len(self.left_out), 'file')} ({size}) left out, {count_of(places, 'place')} "
            f"redacted in {count_of(len(self.redacted), 'file')}; {SHARED_FILE} lists them"
        )


def share_zip(run_dir: Path, target: Path, environ: Mapping[str, str], *, with_captures: bool) -> SharedDocument:
    """Write the copy as an archive."""
    with shared_copy(run_dir, environ, with_captures=with_captures) as (folder, document):
        with tempfile.NamedTemporaryFile(dir=folder.parent, suffix=".zip") as scratch:
            with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in _files(folder):
                    entry = zipfile.ZipInfo(f"{run_dir.resolve().name}/{path.relative_to(folder).as_posix()}", _DATE)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
            scratch.flush()
            write_whole(target, Path(scratch.name).read_bytes())
    return document


def share_page(run_dir: Path, target: Path, environ: Mapping[str, str]) -> SharedDocument:
    """Write the report page of the copy alone."""
    with shared_copy(run_dir, environ, with_captures=False) as (folder, document):
        write_whole(target, (folder / PAGE).read_bytes())
    return document


@contextmanager
def shared_copy(
    run_dir: Path, environ: Mapping[str, str], *, with_captures: bool
) -> Iterator[tuple[Path, SharedDocument]]:
    """The copy in its own folder, for as long as it is needed."""
    manifest = read_manifest(run_dir)
    with tempfile.TemporaryDirectory(prefix="llm-perf-share-") as scratch:
        folder = Path(scratch, "run")
        left_out = _copied(manifest, run_dir.resolve(), folder, with_captures=with_captures)
        redactor = Redactor.of(environ, more=personal_values(manifest, folder))
        redacted = tuple(file for path in _files(folder) if (file := _redacted(path, folder, redactor)) is not None)
        document = SharedDocument(run_id=redactor.text(manifest.run_id), left_out=left_out, redacted=redacted)
        clean = read_manifest(folder)
        stages = tuple(
            replace(stage, files=tuple(file for file in stage.files if _is_here(file.path, folder)))
            for stage in clean.stages
        )
        clean = replace(clean, stages=stages).warn(RunWarning(text=document.sentence))
        write_manifest(folder, clean, redactor)
        write_json(folder / SHARED_FILE, document)
        write_reports(folder)
        # What is made from redacted files holds nothing; if it did, nothing may leave.
        leaks = [path.relative_to(folder).as_posix() for path in _files(folder) if redactor.holds(path)]
        data = Path(scratch, "data.json")
        data.write_bytes(unpack((folder / PAGE).read_bytes()))
        leaks += [PAGE] if redactor.holds(data) else []
        if leaks:
            raise ProfilingError(f"{run_dir}: {', '.join(leaks)} would still hold a secret, so nothing was written")
        yield folder, document


def personal_values(manifest: RunManifest, folder: Path) -> list[str]:
    """The machine's name and the home directories that the run's texts name."""
    host = manifest.environment.get("hostname")
    found = {host} if isinstance(host, str) and host else set[str]()
    for path in _files(folder):
        if path.suffix in (".json", ".yaml", ".txt", ".csv", ".md", ".log") and path.stat().st_size <= COUNTED_BYTES:
            found |= {home.decode("utf-8", "replace") for home in _HOME.findall(path.read_bytes())}
    return sorted(found)


def _copied(manifest: RunManifest, root: Path, folder: Path, *, with_captures: bool) -> tuple[LeftOutFile, ...]:
    """Copy what may be shared; what stays here, and why."""
    roles = {file.path: file.role for stage in manifest.stages for file in stage.files}
    galleries = {file.path.parent for stage in manifest.stages for file in stage.files if file.role == GALLERY}
    left_out = []
    folder.mkdir()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_dir() and not path.is_symlink():
            continue
        role = roles.get(path) or (GALLERY if galleries.intersection(path.parents) else "")
        reason = _reason(path, name, role, with_captures=with_captures)
        if reason is not None:
            left_out.append(LeftOutFile(path=name.as_posix(), size_bytes=path.lstat().st_size, reason=reason))
        elif name.as_posix() not in REMADE:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    if not (folder / MANIFEST_FILE).is_file():
        raise ConfigError(f"{root / MANIFEST_FILE}: not a regular file; the run cannot be shared")
    return tuple(left_out)


def _reason(path: Path, name: Path, role: str, *, with_captures: bool) -> str | None:
    """Why a file is not for others."""
    if path.is_symlink() or not path.is_file():
        return "no regular file"
    if name.parts[0] == "tmp":
        return "scratch"
    if role in TEXTS:
        return "prompts and answers"
    is_capture = role in CAPTURES or path.suffix in (".sqlite", ".nsys-rep", ".qdrep", ".ncu-rep", ".pickle", ".db")
    return "a capture (--with-captures adds it)" if is_capture and not with_captures else None


def _redacted(path: Path, folder: Path, redactor: Redactor) -> RedactedFile | None:
    """Overwrite what must not leave in one file; None where there was nothing."""
    is_large = path.stat().st_size > COUNTED_BYTES
    before = b"" if is_large else _content(path)
    stamp = path.stat().st_mtime_ns, path.stat().st_size
    if path.parent == folder and path.name in (MANIFEST_FILE, ENVIRONMENT_FILE):
        # By its key: a name such as `box` is not a value that could be looked for everywhere.
        path.write_bytes(_HOSTNAME.sub(lambda found: found[1] + b"x" * len(found[2]), path.read_bytes()))
    redactor.file(path)
    name = path.relative_to(folder).as_posix()
    if is_large:
        changed = (path.stat().st_mtime_ns, path.stat().st_size) != stamp
        return RedactedFile(path=name, places=None) if changed else None
    places = changed_places(before, _content(path))
    return RedactedFile(path=name, places=places) if places else None


def changed_places(before: bytes, after: bytes) -> int:
    """How many runs of the character that overwrites a secret are new between two contents of one length."""
    if before == after or len(before) != len(after):
        return int(before != after)
    import numpy as np

    old, new = np.frombuffer(before, np.uint8), np.frombuffer(after, np.uint8)
    crossed = new == ord("x")
    begins = crossed & ~np.concatenate(([False], crossed[:-1]))
    return len(np.unique(np.cumsum(begins)[old != new]))


def _content(path: Path) -> bytes:
    """What a file holds, out of gzip where it is packed so."""
    if path.suffix in (".gz", ".xz"):
        try:
            return read_unpacked(path)
        except (OSError, EOFError, ProfilingError):
            return read_limited(path, COUNTED_BYTES)
    return read_limited(path, COUNTED_BYTES)


def _files(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_here(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and path.is_file()
