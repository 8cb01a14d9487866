"""Keeps the environments of other processes out of a capture: nsys runs in a PID namespace of its own.

nsys records the environment of every process it may read, a token exported in any shell of the user among them. In a
namespace of its own it sees the workload alone. Where the system allows no namespace, the report is searched instead.

All nsys of a machine know each other through shared memory and take a session for dead whose process they do not see.
So one in a namespace gets shared memory of its own, in which everything but nsys's own files is the machine's.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.system.process import run_quick

# As root, and as any other user.
_KINDS: tuple[tuple[str, ...], ...] = (
    ("--pid", "--fork", "--mount-proc", "--kill-child"),
    ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"),
)
# The shared memory first. Then: the first process of a namespace takes all others with it when it ends, and the agent
# of nsys ends a moment after nsys.
_FIRST = r"""
shm=$(mktemp -d) || exit
mount --bind /dev/shm "$shm" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm || { rmdir "$shm"; exit 97; }
for file in "$shm"/* "$shm"/.[!.]*; do
  name=${file##*/}
  case $name in NSys-*|quadd-*|sem.nsys*) continue;; esac
  if [ -d "$file" ]; then mkdir "/dev/shm/$name"; elif [ -f "$file" ]; then : > "/dev/shm/$name"; else continue; fi
  mount --bind "$file" "/dev/shm/$name"
done
umount "$shm" && rmdir "$shm"
"$@"
code=$?
for i in 1 2 3 4 5 6 7 8 9 10; do
  grep -qs "^nsys" /proc/[0-9]*/comm || break
  sleep 0.1
done
exit "$code"
"""
# These get their rights from the file system, which a user namespace takes from them.
_SWITCHES_USER = re.compile(r"sudo|su|doas|pkexec")
MPS_CONTROL = Path("/tmp/nvidia-mps/control")
Asks = Callable[..., tuple[int | None, str]]


def isolation(config: AppConfig, scopes: Sequence[str], env: Mapping[str, str], asks: Asks = run_quick) -> list[str]:
    """The words in front of nsys that give it its own namespace; none where that is impossible or would harm.

    `scopes` are what nsys is to sample: of the whole machine it must see the processes.
    """
    unshare = shutil.which("unshare", path=env.get("PATH"))
    if unshare is None or "system-wide" in scopes or config.run.nodes > 1 or _uses_mps(env):
        return []
    kinds = (
        _KINDS[:1] if any(_SWITCHES_USER.fullmatch(PurePath(w).name) for w in config.workload.command or ()) else _KINDS
    )
    for kind in kinds:
        # To mount takes root's rights in the namespace; the program is who it was.
        same = (
            [unshare, "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"] if "--user" in kind else []
        )
        words = [unshare, *kind, "sh", "-c", _FIRST, "sh", *same]
        code, _ = asks([*words, "true"], env=env)
        if code == 0:
            return words
    return []


def _uses_mps(env: Mapping[str, str]) -> bool:
    """Whether programs share a GPU through MPS, whose server knows its clients by their process ids."""
    return "CUDA_MPS_PIPE_DIRECTORY" in env or MPS_CONTROL.exists()
