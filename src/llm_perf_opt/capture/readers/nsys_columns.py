"""Columns of an export made fit for analysis: broken rows dropped, names coded, GPU work joined to its launch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.readers.nsys_database import LATEST_NS, NsysDatabase, broken
from llm_perf_opt.capture.timeline import Codes, distinct, grouped
from llm_perf_opt.core.units import count_of

# Ids below this are looked up in a plain table.
DENSE_IDS = 1 << 20


@dataclass(kw_only=True)
class LeftOut:
    """How many rows of a table could not be used."""

    missing: int = 0
    backwards: int = 0

    def notes(self, table: str) -> list[str]:
        """What to say about them."""
        why = (("without a start or an end", self.missing), ("with an end before the start", self.backwards))
        return [f"left out: {count_of(count, 'row')} of {table} {words}" for words, count in why if count]


def read_events(
    db: NsysDatabase,
    table: str,
    columns: Mapping[str, str],
    left_out: LeftOut,
    *,
    keep: Callable[[dict[str, Ints], Ints], Flags] | None = None,
) -> Iterator[dict[str, Ints]]:
    """Columns of a table of events, some rows at a time, NULL as -1; columns the table lacks are missing.

    Rows without a start or an end, or ending before they start, are left out and counted. Before that `keep` chooses
    among the rows by their columns, which it may change, and lengths; a length is -1 where it is not known.
    """
    there = {key: name for key, name in columns.items() if name in db.columns(table)}
    for rows in db.rows(table, list(there.values())):
        found = dict(zip(there, rows.values, strict=True))
        missing = _either(*(rows.null[list(there).index(key)] for key in ("start", "end")))
        if keep is not None:
            length = found["end"] - found["start"]
            if missing is not None:
                length[missing] = -1
            kept = keep(found, length)
            if not bool(kept.all()):
                index = np.flatnonzero(kept)
                found = {key: column[index] for key, column in found.items()}
                missing = None if missing is None else missing[kept]
        bad = found["end"] < found["start"]
        if missing is not None:
            left_out.missing += int(missing.sum())
            left_out.backwards += int((bad & ~missing).sum())
            bad |= missing
        else:
            left_out.backwards += int(bad.sum())
        if bool(bad.any()):
            found = {key: column[~bad] for key, column in found.items()}
        check_times(db, table, found["start"], found["end"])
        yield found


def check_times(db: NsysDatabase, table: str, start: Ints, end: Ints) -> None:
    """Refuse times whose differences a 64-bit number may not hold."""
    if len(start) and max(-int(start.min()), int(end.max())) > LATEST_NS:
        raise broken(db.path, f"table {table} holds times that no clock can have")


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other


def joined(parts: Sequence[dict[str, Ints]]) -> dict[str, Ints]:
    """Columns read in parts, which are given up as they are joined; none where there are no parts."""
    return {key: np.concatenate([part.pop(key) for part in parts]) for key in tuple(parts[0])} if parts else {}


def narrow(numbers: Ints) -> Ints:
    """The numbers in 32 bits where all of them fit."""
    limit = 2**31
    fits = not len(numbers) or (int(numbers.min()) >= -limit and int(numbers.max()) < limit)
    return numbers.astype(np.int32) if fits else numbers


def one_for_all(column: Ints) -> Ints:
    """A column, read-only and of one number in memory where all of its numbers are that one."""
    alike = len(column) > 1 and bool((column == column[0]).all())
    return np.broadcast_to(column[:1].copy(), column.shape) if alike else column


class Ids:
    """Codes for the ids of a long column, in the order they are met."""

    def __init__(self) -> None:
        self._codes: Codes[int] = Codes()
        self._dense = np.full(0, -1, np.int32)

    def __iter__(self) -> Iterator[int]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def codes(self, ids: Ints) -> Ints:
        if not len(ids):
            return np.zeros(0, np.int32)
        low, high = int(ids.min()), int(ids.max())
        if low == high:
            return np.full(len(ids), self._codes[low], np.int32)
        if low < 0 or high >= DENSE_IDS:
            unique, inverse = grouped(ids)
            return np.array([self._codes[i] for i in unique.tolist()], np.int32)[inverse]
        if high >= len(self._dense):
            more = np.full(high + 1 - len(self._dense), -1, np.int32)
            self._dense = np.concatenate((self._dense, more))
        found = self._dense[ids]
        if int(found.min()) < 0:
            for new in distinct(ids[found < 0]).tolist():
                self._dense[new] = self._codes[new]
            found = self._dense[ids]
        return found

    def in_order(self, codes: Ints) -> tuple[Ints, Ints]:
        """The ids that codes stand for, in order, and for each code the index of its id."""
        used = distinct(codes)
        ids = np.array(list(self._codes), np.int64)[used] if len(used) else np.zeros(0, np.int64)
        order = np.argsort(ids)
        place = np.zeros(len(self._codes), np.int32)
        place[used[order]] = np.arange(len(used), dtype=np.int32)
        return ids[order], place[codes] if len(codes) else np.zeros(0, np.int32)


def encode(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values in order, and for each row the index of its value."""
    if len(values) and bool((values == values[0]).all()):
        return values[:1].copy(), np.zeros(len(values), np.int32)
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low < 4 * len(values) + 1024:
        seen = np.zeros(high - low + 1, np.bool_)
        seen[values - low] = True
        unique = np.flatnonzero(seen) + low
        place = np.cumsum(seen, dtype=np.int32) - 1
        return unique, place[values - low]
    found, inverse = grouped(values)
    return found, inverse.astype(np.int32)


class Processes:
    """Process ids under one set of codes."""

    def __init__(self) -> None:
        self._codes: Codes[int] = Codes()

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in the order of their codes."""
        return tuple(self._codes)

    def codes(self, unique: Ints, inverse: Ints) -> Ints:
        table = np.array([self._codes[int(i)] for i in unique], np.int32)
        return table[inverse] if len(unique) else np.zeros(0, np.int32)


# As CUPTI counts them and nsys calls them.
_COPY_KINDS = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
# Pages of unified memory, which the driver moves by itself: no call launches these.
MIGRATIONS = {11: "Host-to-Device", 12: "Device-to-Host", 13: "Device-to-Device"}
# Of copies to and from the host the kind of its memory counts: pinned memory is copied several times as fast.
_HOST_MEMORY = 64
_HOST_KINDS = ("Pageable", "Pinned")
_TO_DEVICE, _TO_HOST = 1, 2


def copy_kinds(columns: Mapping[str, Ints]) -> Ints:
    """The kinds of copies with the memory on the host's side where that is recorded, for `Names.copies`."""
    kind = columns["name"]
    if not {"source", "target"} <= columns.keys():
        return kind
    memory = np.where(kind == _TO_DEVICE, columns["source"], np.where(kind == _TO_HOST, columns["target"], -1))
    return np.where(kind >= 0, kind + _HOST_MEMORY * (1 + memory), -1)


def migrated(kinds: Ints) -> Flags:
    """Which kinds, as `copy_kinds` makes them, are page migrations."""
    found: Flags = np.isin(kinds % _HOST_MEMORY, list(MIGRATIONS)) & (kinds >= 0)
    return found


class Names:
    """The names of kernels, copies and ranges under one set of codes; kernels come first."""

    def __init__(self, db: NsysDatabase) -> None:
        self._db = db
        self._codes: Codes[str] = Codes()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def strings(self, unique: Ints, inverse: Ints) -> Ints:
        """Codes of rows whose names are StringIds ids: each row's index among the ids in use."""
        return self._add(self._db.strings(unique.tolist()), inverse)

    def copies(self, unique: Ints, inverse: Ints) -> Ints:
        """Codes of copies by kind; early exports lack the table of these. The kinds are as `copy_kinds` makes them."""
        known = _COPY_KINDS | self._enumeration("ENUM_CUDA_MEMCPY_OPER")
        memory = self._enumeration("ENUM_CUDA_MEM_KIND")

        def label(number: int) -> str:
            kind, place = number % _HOST_MEMORY, number // _HOST_MEMORY - 1
            if kind in MIGRATIONS:
                return f"Page migration {MIGRATIONS[kind]}"
            text = f"Copy {known[kind]}" if kind in known else f"Copy of kind {kind}"
            return f"{text} ({memory[place]})" if memory.get(place) in _HOST_KINDS else text

        return self._add([label(i) if i >= 0 else f"Copy of kind {i}" for i in unique.tolist()], inverse)

    def _enumeration(self, table: str) -> dict[int, str]:
        if not self._db.has(table) or not {"id", "label"} <= set(self._db.columns(table)):
            return {}
        rows = self._db.query(f'SELECT id, label FROM "{table}"')
        return {number: str(label) for number, label in rows if isinstance(number, int)}

    def literal(self, inverse: Ints, name: str) -> Ints:
        return self._add([name], np.zeros(len(inverse), np.int32)) if len(inverse) else inverse

    def graphs(self, unique: Ints, inverse: Ints) -> Ints:
        return self._add([f"CUDA graph {i}" for i in unique.tolist()], inverse)

    def texts(self, texts: Sequence[str | None], ids: Ints) -> Ints:
        """Codes of ranges: their own text, or a registered string."""
        unique, inverse = encode(ids)
        registered = self._db.strings(unique.tolist()) if None in texts else ["" for _ in unique]
        codes = self._codes
        named = (registered[place] if text is None else text for text, place in zip(texts, inverse, strict=True))
        return np.fromiter((codes[name] for name in named), np.int64, len(ids))

    def _add(self, values: Sequence[str], inverse: Ints) -> Ints:
        codes = np.array([self._codes[v] for v in values], np.int32)
        return codes[inverse] if len(values) else np.zeros(0, np.int32)
