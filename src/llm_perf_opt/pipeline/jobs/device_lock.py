"""One run at a time on a device, among those of this machine that ask for it (`run.exclusive`).

Two profilers on one GPU measure each other, and launchers that start processes on one machine start them all together.
The kernel keeps the locks, so one whose owner was killed is free at once.
"""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

POLL_S = 0.5
CPU = "cpu"


def devices_of(device: str, visible: str | None, gpu_ids: tuple[str, ...]) -> tuple[str, ...]:
    """What a run has to itself: the GPUs it may see, by their ids on this machine, or the processor.

    `visible` is CUDA_VISIBLE_DEVICES, `gpu_ids` the indices of all GPUs.
    """
    seen = gpu_ids if visible is None else tuple(part.strip() for part in visible.split(",") if part.strip())
    if device == CPU or not gpu_ids or not seen:
        return (CPU,)
    if device.startswith("cuda:"):
        number = int(device.removeprefix("cuda:"))
        return seen[number : number + 1] or (CPU,)
    return seen[:1]


@contextmanager
def turn(
    kind: Literal["device", "node"] | None,
    devices: tuple[str, ...],
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Iterator[None]:
    """Wait for this run's turn and keep it while the block runs; those on devices share a node, one `node` does not."""
    if kind is None:
        yield
        return
    wanted = [("node", fcntl.LOCK_EX if kind == "node" else fcntl.LOCK_SH)]
    wanted += [(f"device-{re.sub(r'[^A-Za-z0-9-]', '-', name)}", fcntl.LOCK_EX) for name in sorted(set(devices))]
    held: list[int] = []
    try:
        for name, how in wanted:
            held.append(_take(name, how, say, environ))
        yield
    finally:
        for number in held:
            os.close(number)


def _take(name: str, how: int, say: Callable[[str], None], environ: Mapping[str, str]) -> int:
    folder = Path(environ.get("TMPDIR") or tempfile.gettempdir(), f"llm-perf-turns-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    number = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    has_said = False
    while True:
        try:
            fcntl.flock(number, how | fcntl.LOCK_NB)
            return number
        except BlockingIOError:
            if not has_said:
                say(f"waiting for another run on this machine to leave the {name.replace('-', ' ', 1)} (run.exclusive)")
                has_said = True
            time.sleep(POLL_S)
