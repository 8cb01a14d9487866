"""The run manifest: everything a report needs, as one JSON file."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.records import RunStatus, StageFile, StageRecord
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.system.files import read_limited, real_path, refuse_absurd_numbers, write_whole
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.terminal import HIDDEN

SCHEMA_VERSION = 1
LARGEST_BYTES = 64 << 20
# What Linux and macOS take at most, in bytes.
LONGEST_PATH, LONGEST_NAME = 4096, 255
# The id of a warning that says how the last start ended: over when the run is resumed.
LAST_START = "last_start"


def left_out(stage: str) -> str:
    """The id of the warning that the earlier result of a stage is not part of the run."""
    return f"left_out.{stage}"


@dataclass(frozen=True, kw_only=True)
class RunWarning:
    """A warning of a run, and by which id a resumed run recognises it; most need none."""

    text: str
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """One run. Paths of files are relative to the run directory, so a run can be moved or zipped.

    `signature` identifies whose run it is (`system/trust.py`); empty in runs that have none. `first_verdict_s` is when
    the first verdict was reported, counted from the start of the run; None where none was. `warning_ids` are those of
    `warnings`, one each; there are none in runs that did not record them.
    """

    run_id: str
    created_at: str
    status: RunStatus
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    user_dir: str = ""
    stages: tuple[StageRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    warning_ids: tuple[str, ...] = ()
    signature: str = ""
    first_verdict_s: float | None = None
    schema_version: int = field(default=SCHEMA_VERSION)

    def stage(self, name: str) -> StageRecord | None:
        return next((s for s in self.stages if s.name == name), None)

    @property
    def warned(self) -> tuple[RunWarning, ...]:
        """The warnings with their ids; those of a run that recorded no ids are not among them."""
        pairs = zip(self.warnings, self.warning_ids, strict=False)
        return tuple(RunWarning(text=text, id=known_as) for text, known_as in pairs)

    def warn(self, *warnings: RunWarning) -> "RunManifest":
        """A copy with these warnings too."""
        unknown = ("",) * (len(self.warnings) - len(self.warning_ids))
        return replace(
            self,
            warnings=(*self.warnings, *(warning.text for warning in warnings)),
            warning_ids=(*self.warning_ids, *unknown, *(warning.id for warning in warnings)),
        )

    def with_stage(self, record: StageRecord) -> "RunManifest":
        """A copy with this stage's record put instead of an older one of the same name, or appended."""
        known = [s.name for s in self.stages]
        if record.name in known:
            stages = tuple(record if s.name == record.name else s for s in self.stages)
        else:
            stages = (*self.stages, record)
        return replace(self, stages=stages)


def write_manifest(run_dir: Path, manifest: RunManifest, redactor: Redactor | None = None) -> Path:
    """Write atomically: a reader or a crash never sees half a file. A redactor takes the secrets out."""
    data = asdict(manifest)
    for stage in data["stages"]:
        for file in stage["files"]:
            file["path"] = _relative(Path(file["path"]), run_dir)
    return write_json(run_dir / MANIFEST_FILE, data if redactor is None else redactor.tree(data))


def read_manifest(run_dir: Path) -> RunManifest:
    """Read a run's manifest; file paths come back absolute."""
    path = run_dir / MANIFEST_FILE
    try:
        data = read_limited(path, LARGEST_BYTES)
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: not found; give the directory of a run (`llm-perf runs` lists them)") from error
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror or error})") from error
    manifest = decode_manifest(data, str(path))
    root = real_path(run_dir)
    stages = tuple(
        replace(s, files=tuple(StageFile(role=f.role, path=root / f.path) for f in s.files)) for s in manifest.stages
    )
    return replace(manifest, stages=stages)


class _Version(msgspec.Struct):
    schema_version: int | None = None


def decode_manifest(data: bytes, path: str) -> RunManifest:
    """A manifest from its bytes, file paths as they are written; `path` is what errors call it."""
    found = _decode_strictly(data)
    return _decode_leniently(data, path) if found is None else found


def _decode_strictly(data: bytes) -> RunManifest | None:
    """A manifest as we write it, in a third of the time; None where anything is odd, or not JSON to the letter."""
    try:
        if msgspec.json.decode(data, type=_Version).schema_version != SCHEMA_VERSION:
            return None
        refuse_absurd_numbers(data)
        return msgspec.json.decode(data, type=RunManifest, dec_hook=_decode)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _decode_leniently(data: bytes, path: str) -> RunManifest:
    """A manifest with numbers that JSON does not have, or the error in words."""
    try:
        raw = json.loads(data)
    except RecursionError as error:
        raise ManifestError(f"{path}: nested too deeply; the run cannot be read") from error
    except ValueError as error:
        raise ManifestError(f"{path}: not valid JSON ({error}); the run cannot be read") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise ManifestError(
            f"{path}: schema_version is {version!r}, this version reads {SCHEMA_VERSION}; "
            "use the llm-perf that wrote it, or a newer one"
        )
    try:
        refuse_absurd_numbers(data)
        return msgspec.convert(raw, RunManifest, dec_hook=_decode)
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from error


def write_json(path: Path, data: Any) -> Path:
    """Write a record, or plain data that may hold records, as JSON through a temporary file and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = strict_json(data, indent=2) + "\n"
    return write_whole(path, text.encode("utf-8", "backslashreplace"))


def strict_json(
    data: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None, ensure_ascii: bool = False
) -> str:
    """A document as JSON that every parser reads: NaN and infinities, which JSON does not have, become null."""

    def text(value: Any) -> str:
        return _shown_as_escapes(
            json.dumps(
                value,
                indent=indent,
                separators=separators,
                ensure_ascii=ensure_ascii,
                default=_plain,
                allow_nan=False,
            )
        )

    try:
        return text(data)
    except ValueError:
        # Rare: only then is everything written and read once more.
        return text(json.loads(json.dumps(data, default=_plain), parse_constant=lambda _: None))


def _shown_as_escapes(text: str) -> str:
    """JSON whose control and bidi characters are escapes: the same values, and safe to print on a terminal."""
    return text if text.isascii() else HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    """What JSON has no type for: a record as its keys without those that are unset, anything else as its text."""
    if not is_dataclass(value):
        return str(value)
    values = ((item.name, getattr(value, item.name)) for item in fields(value))
    return {name: one for name, one in values if one is not msgspec.UNSET}


def _decode(kind: type[Any], value: Any) -> Any:
    """The one type of ours that JSON does not have."""
    if kind is Path and isinstance(value, str):
        path = Path(value)
        # A character has at most four bytes.
        if len(value) <= LONGEST_NAME // 4 and "\0" not in value:
            return path
        longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
        if "\0" in value or longest > LONGEST_NAME or len(os.fsencode(value)) > LONGEST_PATH:
            raise ValueError(f"no file can have this name ({value[:40]!r}, {len(value)} characters)")
        return path
    raise ValueError(f"expected {kind.__name__}, got {value!r}")


def _relative(path: Path, run_dir: Path) -> str:
    """Inside the run: relative to it. Outside (an absolute save_dir): as it is."""
    if not path.is_absolute():
        return path.as_posix()
    root = real_path(run_dir)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
