"""One process's share of a trace: it walks the whole file and decodes the pieces nobody else has taken.

Unpacking and cutting are cheap beside decoding. Also a program: what others run to help decode a long trace.
"""

import fcntl
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.profiling.parsers.trace_chunks import TraceText, read_chunks
from llm_perf_opt.profiling.parsers.trace_events import Piece, PieceDecoder

WITH_SHAPES = "--shapes"
_COUNTER_BYTES = 8


@dataclass(frozen=True)
class Turns:
    """The number of the next piece nobody has taken, in a file that all processes have open."""

    handle: int

    def take(self, number: int) -> bool:
        """Whether this piece is ours. The lock is the process's own and goes with it, whatever ends it."""
        fcntl.lockf(self.handle, fcntl.LOCK_EX)
        try:
            free = number >= int.from_bytes(os.pread(self.handle, _COUNTER_BYTES, 0), "little")
            if free:
                os.pwrite(self.handle, (number + 1).to_bytes(_COUNTER_BYTES, "little"), 0)
        finally:
            fcntl.lockf(self.handle, fcntl.LOCK_UN)
        return free


def decode_share(path: Path, text: TraceText, turns: Turns, *, shapes: bool) -> Iterator[tuple[int, Piece]]:
    """The pieces this process took, with their numbers."""
    decoder = PieceDecoder(shapes=shapes)
    for number, data in enumerate(read_chunks(path, text)):
        if turns.take(number):
            yield number, decoder.decode(data)


def main(argv: Sequence[str]) -> None:
    """Write the share to the standard output."""
    path, counter, *flags = argv
    for numbered in decode_share(Path(path), TraceText(), Turns(int(counter)), shapes=WITH_SHAPES in flags):
        pickle.dump(numbered, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(sys.argv[1:])
