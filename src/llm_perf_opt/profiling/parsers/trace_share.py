"""Decodes pieces of a trace for another process: text comes in shared memory, tasks on the standard input."""

import mmap
import os
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence

from llm_perf_opt.profiling.parsers.trace_events import Piece, PieceDecoder

# One piece is decoded while the next waits.
SLOTS = 2
SLOT_BYTES = 2 << 20
TASK = struct.Struct("<QII")
DETAILED = "detailed"
_FREE, _FULL = b"\0", b"\1"


class Slots:
    """A few pieces of text in a file that two processes have mapped; a byte each says whether it is in use."""

    def __init__(self, handle: int) -> None:
        size = SLOTS * (SLOT_BYTES + 1)
        os.ftruncate(handle, size)
        self._memory = mmap.mmap(handle, size)

    def put(self, text: memoryview) -> int | None:
        """The slot the text went to, or None where it does not fit or all are in use."""
        slot = self._memory.find(_FREE, SLOTS * SLOT_BYTES) - SLOTS * SLOT_BYTES
        if slot < 0 or len(text) > SLOT_BYTES:
            return None
        self._memory[slot * SLOT_BYTES : slot * SLOT_BYTES + len(text)] = text
        self._mark(slot, _FULL)
        return slot

    def get(self, slot: int, size: int) -> memoryview:
        return memoryview(self._memory)[slot * SLOT_BYTES : slot * SLOT_BYTES + size]

    def give_back(self, slot: int) -> None:
        self._mark(slot, _FREE)

    def _mark(self, slot: int, state: bytes) -> None:
        place = SLOTS * SLOT_BYTES + slot
        self._memory[place : place + 1] = state


def decode_tasks(slots: Slots, tasks: Iterator[bytes], *, detailed: bool) -> Iterator[tuple[int, Piece]]:
    """The pieces asked for, with their numbers."""
    decoder = PieceDecoder(detailed=detailed)
    for task in tasks:
        number, slot, size = TASK.unpack(task)
        piece = decoder.decode(slots.get(slot, size))
        slots.give_back(slot)
        yield number, piece


def main(argv: Sequence[str]) -> None:
    """Write the pieces to the standard output until there are no more tasks."""
    handle, *options = argv
    tasks = iter(lambda: sys.stdin.buffer.read(TASK.size), b"")
    for numbered in decode_tasks(Slots(int(handle)), tasks, detailed=DETAILED in options):
        pickle.dump(numbered, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(sys.argv[1:])
