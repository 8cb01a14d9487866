"""The decoded pieces of a trace. Of a long one, other processes decode what this one has no time for.

The others are only help: if one of them fails, nothing is lost but time.

Decodes pieces of a trace for another process: text comes in shared memory, tasks on the standard input. What only the
one that reads the file needs is imported where it is used, so that the others start soon.
"""

import mmap
import os
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Self

from llm_perf_opt.capture.readers.trace_decode import Piece, PieceDecoder
from llm_perf_opt.system.arrays import BLAS_THREADS

if TYPE_CHECKING:
    from llm_perf_opt.capture.readers.trace_text import TraceText

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


MAX_PROCESSES = 4
# Below this the help would arrive when the work is done.
WORTH_SHARING_BYTES = 64 << 20
PACKED_FACTOR = 8
# When we are through, the others have a few pieces left.
PATIENCE_S = 60.0
_PROGRAM = "llm_perf_opt.capture.readers.trace_workers"


def is_long(path: Path) -> bool:
    """Whether a file holds, or unpacks to, so much text that its reading takes seconds."""
    from llm_perf_opt.capture.readers.trace_text import is_packed

    factor = PACKED_FACTOR if is_packed(path) else 1
    return path.stat().st_size * factor >= WORTH_SHARING_BYTES


def processes_for(path: Path, *, cores: int) -> int:
    """How many processes are worth their start for this file."""
    return min(cores, MAX_PROCESSES) if is_long(path) else 1


def read_pieces(
    path: Path, text: "TraceText", *, processes: int, detailed: bool = False, careful: bool = False
) -> Iterator[Piece]:
    """All pieces in the file's order. Raises msgspec.DecodeError where one cannot be decoded."""
    from llm_perf_opt.capture.readers.trace_text import read_chunks

    shared = None
    if processes > 1 and not careful:
        shared = _read_together(path, text, processes=processes, detailed=detailed)
    if shared is None:
        decoder = PieceDecoder(detailed=detailed)
        yield from map(decoder.decode, read_chunks(path, text, careful=careful))
        return
    shared.reverse()
    while shared:
        # Given up as they are used: two copies of a long trace would not fit.
        yield shared.pop()


def _read_together(path: Path, text: "TraceText", *, processes: int, detailed: bool) -> list[Piece] | None:
    """The pieces in order, or None where the help did not work out."""
    from llm_perf_opt.capture.readers.trace_text import read_chunks

    decoder, found = PieceDecoder(detailed=detailed), []
    try:
        with ExitStack() as stack:
            workers = [stack.enter_context(_DecodeWorker(detailed=detailed)) for _ in range(processes - 1)]
            for number, data in enumerate(read_chunks(path, text)):
                if not any(worker.accept(number, data) for worker in workers):
                    found.append((number, decoder.decode(data)))
            for worker in workers:
                if not worker.finish():
                    return None
                found += worker.pieces()
    except OSError:
        # No room for temporary files, no process to be had, or one that ended early.
        return None
    found.sort(key=itemgetter(0))
    return [piece for _, piece in found]


class _DecodeWorker:
    """A process that decodes pieces for us."""

    def __init__(self, *, detailed: bool) -> None:
        self._detailed = detailed
        self._files = ExitStack()

    def __enter__(self) -> Self:
        # Here, for short traces and single cores need no helpers.
        import tempfile

        from llm_perf_opt.system.process import Worker, allowed_environment

        with ExitStack() as files:
            memory = files.enter_context(tempfile.TemporaryFile())
            self._output = files.enter_context(tempfile.TemporaryFile())
            self._slots = Slots(memory.fileno())
            argv = [sys.executable, "-P", "-m", _PROGRAM, str(memory.fileno()), *([DETAILED] if self._detailed else [])]
            env = {BLAS_THREADS: "1", **allowed_environment(os.environ)}
            worker = Worker(argv, env=env, output=self._output, inherited=(memory.fileno(),))
            self._process = files.enter_context(worker)
            self._files = files.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.close()

    def accept(self, number: int, data: memoryview) -> bool:
        """Hand a piece over if there is room for it."""
        slot = self._slots.put(data)
        if slot is None:
            return False
        self._process.send(TASK.pack(number, slot, len(data)))
        return True

    def finish(self) -> bool:
        return self._process.finish(PATIENCE_S)

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """What it decoded, with the pieces' numbers."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(0)
        while self._output.tell() < size:
            yield pickle.load(self._output)
