"""Run directories in object stores and on other hosts (`artifacts.sync`), through fsspec: s3://, gs://, sftp://, file://.

A run's place in a store is claimed before it starts, by a file no other run has written: a store that cannot be written
to is found out then, and two runs of one name get two places. The manifest is sent last, so that a listing sees whole
runs. Who may write there is the store's business: credentials come from its own files and variables, never from a URL.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import MANIFEST_FILE, SYNC_FILE
from llm_perf_opt.errors import ConfigError, ManifestError, ProfilingError
from llm_perf_opt.pipeline.catalogue import INDEX_FILE, LEVELS
from llm_perf_opt.pipeline.jobs.record import JOBS_FILE
from llm_perf_opt.pipeline.run import guarded
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.system.lock import LOCK_FILE
from llm_perf_opt.system.secrets.secret_shapes import without_shapes

T = TypeVar("T")
# Object stores have no folders, and making one may make a bucket.
HAS_FOLDERS = ("file", "local", "sftp", "ssh", "smb", "hdfs", "webhdfs")
# s3fs asks five times; a server that takes calls and never answers is given up after three minutes, not half an hour.
S3_OPTIONS = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 15, "retries": {"max_attempts": 1}}}
DOCUMENT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SyncDocument:
    """`sync.json`: where a run was sent. `synced_at`: when that was last completed; null: not yet."""

    schema_version: Literal[1] = 1
    store: str
    url: str
    host: str
    synced_at: str | None = None
    files: int = 0
    size_bytes: int = 0


def is_url(text: str) -> bool:
    return "://" in text


def check_url(url: str, key: str) -> None:
    """Raise ConfigError for what is not an address of a store, or holds a secret."""
    parts = urlsplit(url)
    if not parts.scheme or not is_url(url) or "::" in url:
        raise ConfigError(
            f"{key}: not an address of a store (got {without_shapes(url)!r}), allowed: s3://bucket/folder"
        )
    if parts.password or parts.query or without_shapes(url) != url:
        raise ConfigError(
            f"{key}: holds a password or a signature (got {without_shapes(url)!r}), which would be recorded; allowed: "
            "the plain address, and credentials where the store's own tools look for them (AWS_PROFILE, ~/.aws, ~/.ssh)"
        )


def claim(url: str, run_dir: Path) -> SyncDocument:
    """The place of a run in a store: the one it has, else one that no other run has."""
    check_url(url, "artifacts.sync")
    known = _read_document(run_dir)
    if known is not None and known.store == url:
        return known
    is_job = (run_dir.parent / JOBS_FILE).exists()
    name = f"{run_dir.parent.name}/{run_dir.name}" if is_job else run_dir.name

    def work() -> SyncDocument:
        store = _Store.open(url)
        for number in count(1):
            place = name if number == 1 else f"{name}-{number}"
            if store.system.exists(store.path(place)):
                # Another run's, or nothing of ours at all: what is at a run's place is made what the run holds.
                continue
            document = SyncDocument(store=url, url=f"{url.rstrip('/')}/{place}", host=platform.node())
            try:
                store.write(f"{place}/{SYNC_FILE}", msgspec.json.encode(document), is_new=True)
            except FileExistsError:
                continue
            return document
        raise AssertionError

    found = _told(work, lambda text: ConfigError(f"artifacts.sync: {url} cannot be written to ({text})"))
    write_json(run_dir / SYNC_FILE, found)
    return found


def upload(run_dir: Path, document: SyncDocument) -> SyncDocument:
    """Make what is at a run's place what the run directory holds."""
    files = [path for path in _files(run_dir) if path.name != SYNC_FILE and path != run_dir / MANIFEST_FILE]
    size_bytes = sum(path.stat().st_size for path in (*files, run_dir / MANIFEST_FILE))
    done = replace(
        document,
        synced_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files=1 + len(files),
        size_bytes=size_bytes,
    )

    def work() -> None:
        store = _Store.open(document.url)
        names = [path.relative_to(run_dir).as_posix() for path in files]
        store.send(dict(zip(names, files, strict=True)))
        store.remove_others({*names, MANIFEST_FILE, SYNC_FILE})
        store.write(SYNC_FILE, msgspec.json.encode(done))
        store.send({MANIFEST_FILE: run_dir / MANIFEST_FILE})

    again = f"the run is complete in {run_dir}; copy it, or let `llm-perf profile run.resume={run_dir}` send it again"
    _told(work, lambda text: ProfilingError(f"artifacts.sync: {document.url} was not written ({text}); {again}"))
    write_json(run_dir / SYNC_FILE, done)
    return done


def _read_document(run_dir: Path) -> SyncDocument | None:
    try:
        return msgspec.json.decode(read_limited(run_dir / SYNC_FILE, DOCUMENT_BYTES), type=SyncDocument)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise ManifestError(
            f"{run_dir / SYNC_FILE}: cannot be read ({error}); remove it to send the run again"
        ) from error


def _files(run_dir: Path) -> Iterator[Path]:
    """What of a run is sent: its regular files, without its lock, scratch files and links."""
    for path in sorted(run_dir.rglob("*")):
        is_scratch = path.name == LOCK_FILE or (path.name.startswith(".") and path.suffix == ".tmp")
        if path.is_file() and not path.is_symlink() and not is_scratch:
            yield path


def _told(work: Callable[[], T], error: Callable[[str], ProfilingError]) -> T:
    """What `work` returns; a store's own errors, whichever package they are of, in one line of ours."""
    found = guarded(work)
    if isinstance(found, ProfilingError):
        raise found
    if isinstance(found, Exception):
        text = " ".join(str(found).split()) or "no reason was given"
        raise error(without_shapes(f"{type(found).__name__}: {text}")) from found
    return found


@dataclass(frozen=True, kw_only=True)
class _Store:
    """One folder of a store."""

    system: Any
    root: str
    has_folders: bool

    @classmethod
    def open(cls, url: str) -> "_Store":
        scheme = urlsplit(url).scheme
        try:
            import fsspec

            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise ConfigError(
                f"{url}: needs a package that is not installed ({error}); pip install 'llm-perf-opt[storage]' brings "
                "fsspec and what s3:// needs"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{url}: {error}; allowed: such as s3://bucket/folder or sftp://host/folder") from error
        options = S3_OPTIONS if scheme in ("s3", "s3a") else {}
        system, root = fsspec.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **options)
        return cls(system=system, root=root.rstrip("/"), has_folders=scheme in HAS_FOLDERS)

    def path(self, name: str) -> str:
        return self.root if name == "." else f"{self.root}/{name}"

    def write(self, name: str, data: bytes, *, is_new: bool = False) -> None:
        """Write a small file; with `is_new` raise FileExistsError where there is one."""
        path = self.path(name)
        if self.has_folders:
            self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.system.pipe_file(path, data, mode="create" if is_new else "overwrite")

    def send(self, files: dict[str, Path]) -> None:
        if not files:
            return
        targets = [self.path(name) for name in files]
        for folder in sorted({target.rpartition("/")[0] for target in targets}) if self.has_folders else ():
            self.system.makedirs(folder, exist_ok=True)
        self.system.put([str(path) for path in files.values()], targets)

    def remove_others(self, names: set[str]) -> None:
        """Remove what an earlier state of the run left there."""
        wanted = {self.path(name) for name in names}
        found = self.system.find(self.root)
        left = [path for path in found if path.startswith(f"{self.root}/") and path not in wanted]
        if left:
            self.system.rm(left)

    def stamps(self) -> dict[str, str]:
        """The runs of the folder and of the sweeps in it, each with what differs whenever its manifest does."""
        found = {}
        for path, info in self.system.find(self.root, maxdepth=LEVELS + 1, detail=True).items():
            place, _, name = path.removeprefix(self.root).lstrip("/").rpartition("/")
            if name == MANIFEST_FILE:
                tag = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified")
                found[place or "."] = f"{tag}-{info.get('size')}"
        return found


@dataclass(frozen=True, kw_only=True)
class StoreFolder:
    """A folder of runs in a store, for `pipeline/catalogue.py`."""

    url: str
    store: _Store

    @classmethod
    def open(cls, url: str) -> "StoreFolder":
        check_url(url, "the runs' folder")
        return cls(url=url.rstrip("/"), store=_read(url, lambda: _Store.open(url)))

    def stamps(self) -> dict[str, str]:
        if not _read(self.url, lambda: self.store.system.exists(self.store.root)):
            raise ConfigError(f"{self.url}: nothing is there; give the folder that runs were sent to (artifacts.sync)")
        return _read(self.url, self.store.stamps)

    def manifests(self, places: Iterable[str]) -> Iterator[tuple[str, bytes | Exception]]:
        paths = {self.store.path(f"{place}/{MANIFEST_FILE}".removeprefix("./")): place for place in places}
        if not paths:
            return
        found = _read(self.url, lambda: self.store.system.cat([*paths], on_error="return"))
        for path, place in paths.items():
            data = found[path]
            is_read = isinstance(data, bytes)
            yield place, data if is_read else ManifestError(f"{self.path_of(place)}: cannot be read ({data})")

    def path_of(self, place: str) -> str:
        return self.url if place == "." else f"{self.url}/{place}"

    def index(self, scratch: Path) -> Path | None:
        path = self.store.path(INDEX_FILE)
        if not _read(self.url, lambda: self.store.system.exists(path)):
            return None
        local = scratch / INDEX_FILE
        local.write_bytes(_read(self.url, lambda: self.store.system.cat_file(path)))
        return local

    def save_index(self, data: bytes) -> None:
        found = guarded(lambda: self.store.write(INDEX_FILE, data))
        if isinstance(found, Exception):
            raise OSError(f"{self.url}: the index was not written ({found})") from found


def _read(url: str, work: Callable[[], T]) -> T:
    return _told(work, lambda text: ConfigError(f"{url}: cannot be read ({text})"))
