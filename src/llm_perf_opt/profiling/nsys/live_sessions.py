"""What all nsys of a machine share: the memory by which they know each other, and the locks that guard it.

nsys keeps its sessions in /dev/shm/NSys-VERSION and takes turns at them through a file below TMPDIR. Ours get a TMPDIR
of their own, so without that file some that start together damage the memory, and every later nsys ends with "Agent
launcher failed" (seen with 2022.4, within a few starts in pairs; none of 86 starts once the file is the same one). One
that is killed at the wrong moment leaves the memory locked in the same way.

Captures of one version take turns on a machine: next to another one, nsys loses its agent, or some of its records.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from llm_perf_opt.system.lock import machine_lock

AGENT_FAILED = "Agent launcher failed"
# What nsys says when it does not reach its agent, as on a machine with much else to do.
LOST_AGENT = re.compile(
    rf"{AGENT_FAILED}|Local Endpoint is not available|End of file|Connection (?:reset by peer|to the Agent lost)"
)
SHARED_MEMORY = Path("/dev/shm")
COMMON_TMP = Path("/tmp")
_LOCK_FOLDER = Path("nvidia", "nsight_systems")


# A capture whose agent is lost is tried again; on a machine at seven times its load the second try lost its agent too.
MOST_TRIES = 3


def lost_agent(said: str, *, isolated: bool = False) -> str | None:
    """What nsys printed about the agent it lost, if another try may succeed.

    An isolated nsys has shared memory of its own, so a busy machine is the only reason. Otherwise a killed nsys may
    have left the shared memory locked, and another try helps only if that could be removed.
    """
    found = LOST_AGENT.search(said)
    if found is None or (AGENT_FAILED in said and not isolated and not remove_abandoned()):
        return None
    return found[0]


@contextmanager
def one_capture(
    version: str | None, say: Callable[[str], None], *, limit_s: float, tmp_dir: Path = COMMON_TMP
) -> Iterator[None]:
    """Run the block while no other capture of llm-perf uses this version of nsys on this machine.

    After the limit the capture starts all the same: another user's may run for hours.
    """
    if version is None:
        yield
        return

    def waiting() -> None:
        say("nsys: waiting for another capture on this machine to end")

    with machine_lock(tmp_dir / f"llm-perf-nsys-{version}.lock", waiting, limit_s=limit_s):
        yield


def share_lock(scratch: Path, version: str, tmp_dir: Path = COMMON_TMP) -> None:
    """Let an nsys of this version whose TMPDIR is `scratch` take turns with those that have the common one.

    The memory is the machine's, so the lock is too, regardless of our own TMPDIR.
    """
    name = f"SessionManager-{version}.lock"
    shared, own = tmp_dir / _LOCK_FOLDER, scratch / _LOCK_FOLDER
    try:
        _make_open(shared)
    except OSError:
        # Another user's, or no place to write: they cannot take turns, as two nsys of two users never could there.
        return
    _make_open(own)
    (own / name).symlink_to(shared / name)


def _make_open(folder: Path) -> None:
    """Folders open to every user, as nsys makes them: in others it records no NVTX range, and says nothing."""
    for made in (folder.parent, folder):
        try:
            made.mkdir()
        except FileExistsError:
            continue
        # Everybody may write above it: what is there by now may be a link to a folder of ours.
        number = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(number, 0o777)
        finally:
            os.close(number)


def remove_abandoned(memory: Path = SHARED_MEMORY, processes: Iterable[Any] | None = None) -> bool:
    """Remove our sessions' memory if no nsys runs that could be using it; whether there was any."""
    names = {process.info["name"] for process in processes or psutil.process_iter(["name"])}
    if any(name and name.startswith("nsys") for name in names):
        return False
    removed = False
    for path in memory.glob("NSys-*"):
        # Another run may be doing the same.
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.getuid():
                path.unlink()
                removed = True
    return removed
