"""Columns of an export made fit for analysis: broken rows dropped, names coded, GPU work joined to its launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_perf_opt.analysis.timeline.intervals import Ints
from llm_perf_opt.analysis.timeline.timeline import Codes, distinct
from llm_perf_opt.profiling.parsers.nsys_database import LATEST_NS, NsysDatabase, broken


def drop_broken(db: NsysDatabase, columns: dict[str, Any], table: str, notes: list[str]) -> dict[str, Ints]:
    """Leave out rows without a start or an end, or ending before they start, and say how many."""
    missing = np.ma.getmaskarray(columns["start"]) | np.ma.getmaskarray(columns["end"])
    plain = {
        key: np.ma.filled(column, -1) if np.ma.isMaskedArray(column) else column for key, column in columns.items()
    }
    backwards = ~missing & (plain["end"] < plain["start"])
    if missing.any():
        notes.append(f"{int(missing.sum())} row(s) of {table} have no start or no end and are left out")
    if backwards.any():
        notes.append(f"{int(backwards.sum())} row(s) of {table} end before they start and are left out")
    bad = missing | backwards
    kept = {key: column[~bad] for key, column in plain.items()} if bad.any() else plain
    if len(kept["start"]) and max(-int(kept["start"].min()), int(kept["end"].max())) > LATEST_NS:
        raise broken(db.path, f"table {table} holds times that no clock can have")
    return kept


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
    unique, inverse = np.unique(values, return_inverse=True)
    return unique, inverse.astype(np.int32)


class Processes:
    """Process ids under one set of codes."""

    def __init__(self) -> None:
        self._codes: Codes[int] = Codes()

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in the order of their codes."""
        return tuple(self._codes)

    def codes(self, ids: Ints) -> Ints:
        unique, inverse = encode(ids)
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
# Of copies to and from the host the kind of its memory counts: pinned memory is copied several times as fast.
_HOST_MEMORY = 64
_HOST_KINDS = ("Pageable", "Pinned")


def copy_kind(db: NsysDatabase, table: str) -> str:
    """The kind of a copy as SQL, with the memory on the host's side where that is recorded, for `Names.copies`."""
    columns = set(db.columns(table))
    if "copyKind" not in columns:
        return "-1"
    if not {"srcKind", "dstKind"} <= columns:
        return '"copyKind"'
    kind, source, target = (f'TRY_CAST("{name}" AS BIGINT)' for name in ("copyKind", "srcKind", "dstKind"))
    place = f"CASE {kind} WHEN 1 THEN {source} WHEN 2 THEN {target} END"
    return f"{kind} + {_HOST_MEMORY} * (1 + COALESCE({place}, -1))"


class Names:
    """The names of kernels, copies and ranges under one set of codes; kernels come first."""

    def __init__(self, db: NsysDatabase) -> None:
        self._db = db
        self._codes: Codes[str] = Codes()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def strings(self, ids: Ints) -> Ints:
        """Codes of rows whose name is a StringIds id."""
        unique, inverse = encode(ids)
        return self._add(self._db.strings(unique.tolist()), inverse)

    def copies(self, ids: Ints) -> Ints:
        """Codes of copies by kind; early exports lack the table of these. `ids` are as `copy_kind` makes them."""
        known = _COPY_KINDS | self._enumeration("ENUM_CUDA_MEMCPY_OPER")
        memory = self._enumeration("ENUM_CUDA_MEM_KIND")
        unique, inverse = encode(ids)

        def label(number: int) -> str:
            kind, place = number % _HOST_MEMORY, number // _HOST_MEMORY - 1
            text = f"Copy {known[kind]}" if kind in known else f"Copy of kind {kind}"
            return f"{text} ({memory[place]})" if memory.get(place) in _HOST_KINDS else text

        return self._add([label(int(i)) if i >= 0 else f"Copy of kind {int(i)}" for i in unique], inverse)

    def _enumeration(self, table: str) -> dict[int, str]:
        if not self._db.has(table) or not {"id", "label"} <= set(self._db.columns(table)):
            return {}
        return {int(number): str(label) for number, label in self._db.query(f'SELECT id, label FROM "{table}"')}

    def literal(self, ids: Ints, name: str) -> Ints:
        return self._add([name], np.zeros(len(ids), np.int32)) if len(ids) else ids

    def numbered(self, ids: Ints, word: str) -> Ints:
        unique, inverse = encode(ids)
        return self._add([f"{word} {int(i)}" for i in unique], inverse)

    def texts(self, text: Any, ids: Ints) -> Ints:
        """Codes of ranges: their own text, or a registered string."""
        own = np.ma.getdata(text)
        absent = np.ma.getmaskarray(text)
        unique, inverse = encode(ids)
        registered = self._db.strings(unique.tolist()) if absent.any() else ["" for _ in unique]
        out = np.empty(len(ids), np.int64)
        codes = self._codes
        for row in range(len(ids)):
            name = registered[inverse[row]] if absent[row] or own[row] is None else str(own[row])
            out[row] = codes[name]
        return out

    def _add(self, values: Sequence[str], inverse: Ints) -> Ints:
        codes = np.array([self._codes[v] for v in values], np.int32)
        return codes[inverse] if len(values) else np.zeros(0, np.int32)


@dataclass(frozen=True, kw_only=True)
class Links:
    """For each table of GPU work the index of the launching call, and how many calls had an id already taken."""

    calls: tuple[Ints, ...]
    duplicates: int

    @property
    def notes(self) -> list[str]:
        """What to say about ids that are not unique."""
        if not self.duplicates:
            return []
        return [
            f"{self.duplicates} host call(s) share the correlation id of another in the same process; "
            "the first of them is taken as the launch"
        ]


def join_calls(correlation: Ints, process: Ints, work: Sequence[tuple[Ints, Ints]]) -> Links:
    """Find each piece of GPU work's call by correlation id inside its process (a code). The first call wins."""
    processes = sorted({int(p) for column in (process, *(owner for _, owner in work)) for p in distinct(column)})
    found = [np.full(len(ids), -1, np.int32) for ids, _ in work]
    duplicates = 0
    for pid in processes:
        mine = slice(None) if len(processes) == 1 else np.flatnonzero(process == pid)
        keys = correlation[mine]
        index = np.arange(len(correlation), dtype=np.int32)[mine]
        lookup = _Lookup(keys[keys >= 0], index[keys >= 0])
        duplicates += lookup.duplicates
        for out, (ids, owner) in zip(found, work, strict=True):
            rows = slice(None) if len(processes) == 1 else np.flatnonzero(owner == pid)
            out[rows] = lookup.find(ids[rows])
    return Links(calls=tuple(found), duplicates=duplicates)


class _Lookup:
    """Id to index: a plain table where the ids are dense, a sorted list where they are not."""

    def __init__(self, keys: Ints, index: Ints) -> None:
        self._low = int(keys.min()) if len(keys) else 0
        span = (int(keys.max()) - self._low + 1) if len(keys) else 0
        self._dense = span <= 8 * len(keys) + 1024
        if self._dense:
            self._table = np.full(span, -1, np.int32)
            # Written backwards, so that the first of several equal ids stays.
            self._table[keys[::-1] - self._low] = index[::-1]
            self.duplicates = len(keys) - int((self._table >= 0).sum())
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._index = keys[order], index[order]
            self.duplicates = int((self._keys[1:] == self._keys[:-1]).sum())

    def find(self, ids: Ints) -> Ints:
        if self._dense:
            place = ids - self._low
            inside = (place >= 0) & (place < len(self._table))
            if not len(self._table):
                return np.full(len(ids), -1, np.int32)
            return np.where(inside, self._table[np.where(inside, place, 0)], -1)
        place = np.minimum(np.searchsorted(self._keys, ids), len(self._keys) - 1)
        return np.where(self._keys[place] == ids, self._index[place], -1)
