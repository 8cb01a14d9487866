"""One run directory, one process that writes to it: a lock with its owner and age, which dies with its owner.

The kernel keeps the lock, so one whose owner was killed is free at once; what such an owner wrote into the file
identifies that it was left. The file also keeps some room on the disk, which is given back when the disk is full, so
that the manifest can still say what happened.
"""

import errno
import fcntl
import json
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import real_path

LOCK_FILE = ".lock"
ROOM_BYTES = 1 << 18
POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a run directory, and since when (seconds of the epoch)."""

    pid: int
    host: str
    since_s: float

    def described(self, now_s: float) -> str:
        minutes = max(0.0, now_s - self.since_s) / 60
        return f"process {self.pid} on {self.host}, {minutes:.0f} min old"


class RunInUse(ConfigError):
    """Another process writes to the run directory."""


@dataclass(frozen=True, kw_only=True)
class RunLock:
    """A held lock. `left_by` is the owner that ended without giving it back, where there was one."""

    path: Path
    number: int
    left_by: Owner | None

    def free_room(self) -> None:
        """Give back the room that was kept."""
        os.ftruncate(self.number, 0)

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.number)


# Those this process holds: a directory is claimed before Hydra starts the job that uses it.
_HELD: dict[Path, RunLock] = {}


def take_lock(run_dir: Path) -> RunLock:
    """Lock a run directory, or raise RunInUse with the owner of the lock."""
    path = real_path(run_dir) / LOCK_FILE
    if path in _HELD:
        return _HELD[path]
    while True:
        try:
            number = _opened(path)
        except OSError as error:
            raise ConfigError(
                f"{run_dir}: cannot be locked, {LOCK_FILE} cannot be written there ({error.strerror}); give a "
                "directory you may write to"
            ) from error
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = _owner(number)
            os.close(number)
            who = "another process" if owner is None else owner.described(time.time())
            raise RunInUse(f"{run_dir}: in use by {who}; wait until it has ended, or end it") from error
        if path.exists() and os.path.samestat(os.fstat(number), path.stat()):
            break
        # Its owner gave it back between the opening and the locking.
        os.close(number)
    lock = RunLock(path=path, number=number, left_by=_owner(number))
    _write(number, Owner(pid=os.getpid(), host=platform.node(), since_s=time.time()))
    _HELD[path] = lock
    return lock


def is_locked(run_dir: Path) -> bool:
    """Whether a process that lives holds the directory."""
    path = real_path(run_dir) / LOCK_FILE
    if not path.exists():
        return False
    number = _opened(path)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def remove_left_lock(run_dir: Path) -> None:
    """Remove the lock file of an owner that was killed; that of one that lives stays."""
    if (run_dir / LOCK_FILE).exists() and not is_locked(run_dir):
        with suppress(RunInUse):
            take_lock(run_dir)
            release_lock(run_dir)


def release_lock(run_dir: Path) -> None:
    """Give back the lock of a directory, where this process holds it."""
    lock = _HELD.pop(real_path(run_dir) / LOCK_FILE, None)
    if lock is not None:
        lock.release()


@contextmanager
def machine_lock(path: Path, waiting: Callable[[], None], *, limit_s: float) -> Iterator[bool]:
    """Hold a lock file that all users of this machine share while the block runs; whether it is held.

    Not held where the file cannot be opened, or when another process kept it for longer than the limit. `waiting` is
    called once if the lock is not free.
    """
    number = _opened_for_all(path)
    is_held = number is not None and _waited_for(number, waiting, limit_s)
    try:
        yield is_held
    finally:
        if number is not None:
            os.close(number)


def _opened_for_all(path: Path) -> int | None:
    # Without O_CREAT first: Linux refuses to create what another user already has in a sticky directory
    # (fs.protected_regular). Another process may create the file between the two.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for wanted in (flags, flags | os.O_CREAT | os.O_EXCL, flags):
        try:
            number = os.open(path, wanted, 0o666)
        except OSError:
            continue
        if wanted & os.O_CREAT:
            os.fchmod(number, 0o666)
        return number
    return None


def _waited_for(number: int, waiting: Callable[[], None], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    has_called = False
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not has_called:
                waiting()
                has_called = True
            if time.monotonic() >= end_s:
                return False
            time.sleep(POLL_S)


@contextmanager
def locked(run_dir: Path, say: Callable[[str], None]) -> Iterator[RunLock]:
    """Hold a run directory for as long as the block runs."""
    lock = take_lock(run_dir)
    if lock.left_by is not None:
        say(f"{run_dir}: its lock was left by {lock.left_by.described(time.time())}, which has ended; it is taken over")
    for scratch in run_dir.glob(".*.tmp"):
        # Of a writer that was killed between writing and renaming; there is no other now.
        scratch.unlink(missing_ok=True)
    try:
        yield lock
    finally:
        del _HELD[lock.path]
        lock.release()


def _opened(path: Path) -> int:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return number


def _owner(number: int) -> Owner | None:
    line = os.pread(number, 4096, 0).split(b"\n")[0]
    try:
        return msgspec.json.decode(line, type=Owner) if line else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _write(number: int, owner: Owner) -> None:
    content: dict[str, Any] = asdict(owner)
    os.ftruncate(number, 0)
    os.pwrite(number, json.dumps(content).encode() + b"\n" * ROOM_BYTES, 0)
