"""The decoded pieces of a trace; of a long one, several processes decode a share each.

The others are only help: if one of them fails, nothing is lost but time.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from llm_perf_opt.core.process import allowed_environment, running_beside
from llm_perf_opt.profiling.parsers.trace_chunks import TraceText, is_packed, read_chunks
from llm_perf_opt.profiling.parsers.trace_events import Piece, PieceDecoder
from llm_perf_opt.profiling.parsers.trace_share import WITH_SHAPES, Turns, decode_share

MAX_PROCESSES = 4
# Below this the help would arrive when the work is done.
WORTH_SHARING_BYTES = 64 << 20
PACKED_FACTOR = 8
# When we are through, the others have at most a piece each to finish.
PATIENCE_S = 60.0
_SHARE = "llm_perf_opt.profiling.parsers.trace_share"


def processes_for(path: Path) -> int:
    """How many processes are worth their start for this file."""
    cores = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
    factor = PACKED_FACTOR if is_packed(path) else 1
    return min(cores, MAX_PROCESSES) if path.stat().st_size * factor >= WORTH_SHARING_BYTES else 1


def read_pieces(path: Path, text: TraceText, *, shapes: bool, processes: int, careful: bool = False) -> Iterator[Piece]:
    """All pieces in the file's order. Raises msgspec.DecodeError where one cannot be decoded."""
    shared = _read_together(path, text, shapes=shapes, processes=processes) if processes > 1 and not careful else None
    if shared is None:
        decoder = PieceDecoder(shapes=shapes)
        yield from map(decoder.decode, read_chunks(path, text, careful=careful))
        return
    shared.reverse()
    while shared:
        # Given up as they are used: two copies of a long trace would not fit.
        yield shared.pop()


def _read_together(path: Path, text: TraceText, *, shapes: bool, processes: int) -> list[Piece] | None:
    """The pieces in order, or None where the help did not work out."""
    try:
        with ExitStack() as files:
            counter, *outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]
            handle = counter.fileno()
            argv = [sys.executable, "-P", "-m", _SHARE, str(path), str(handle), *([WITH_SHAPES] if shapes else [])]
            env = allowed_environment(os.environ)
            with running_beside(argv, env=env, outputs=outputs, inherited=handle) as did_well:
                found = list(decode_share(path, text, Turns(handle), shapes=shapes))
                if not did_well(PATIENCE_S):
                    return None
            for output in outputs:
                found += _saved(output)
    except OSError:
        # No room for temporary files, or no process to be had.
        return None
    found.sort(key=itemgetter(0))
    # A file that changed meanwhile was not cut alike by all.
    whole = [number for number, _ in found] == list(range(len(found)))
    return [piece for _, piece in found] if whole else None


def _saved(output: BinaryIO) -> Iterator[tuple[int, Piece]]:
    """What another process left."""
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    while output.tell() < size:
        yield pickle.load(output)
