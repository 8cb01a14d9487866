"""Whether a run was started by this user here: `run.resume` runs what a manifest says, so it must not be anyone's.

A key that only the user may read lies in the user's state directory. A manifest carries a mark made with it from what
a resumed run would execute; a manifest from elsewhere, or one that was changed, has another one or none.
"""

import hashlib
import hmac
import json
import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.system.files import read_limited

KEY_BYTES = 32
KEY_FILE = "llm-perf/run.key"


def sign(manifest: RunManifest, environ: Mapping[str, str]) -> str:
    """The mark of a run; empty where no key can be kept, and then resuming it needs `run.trust=true`."""
    key = user_key(environ, make=True)
    return "" if key is None else _mark(key, manifest)


def is_own(manifest: RunManifest, environ: Mapping[str, str]) -> bool:
    """Whether this user started the run with what it says."""
    key = user_key(environ, make=False)
    return key is not None and hmac.compare_digest(_mark(key, manifest).encode(), manifest.signature.encode())


def recorded_command(manifest: RunManifest) -> str:
    """What resuming would run, for a person to read."""
    return f"llm-perf profile {shlex.join(manifest.overrides)}" + (
        f" in {manifest.user_dir}" if manifest.user_dir else ""
    )


def _mark(key: bytes, manifest: RunManifest) -> str:
    content = json.dumps([list(manifest.overrides), manifest.user_dir]).encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def user_key(environ: Mapping[str, str], *, make: bool) -> bytes | None:
    """The key that only this user may read; None where none can be kept."""
    home = environ.get("XDG_STATE_HOME") or (f"{environ['HOME']}/.local/state" if environ.get("HOME") else None)
    if home is None:
        return None
    path = Path(home, KEY_FILE)
    try:
        if make and not path.exists():
            _make(path)
        key = read_limited(path, KEY_BYTES)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _make(path: Path) -> None:
    """Write a new key; of two that do so at once the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(b"")
    scratch.chmod(0o600)
    scratch.write_bytes(secrets.token_bytes(KEY_BYTES))
    try:
        os.link(scratch, path)
    except FileExistsError:
        return
    finally:
        scratch.unlink()
