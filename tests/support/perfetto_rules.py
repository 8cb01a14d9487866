"""The rules a trace in Chrome's format has to obey to be opened by ui.perfetto.dev without a word.

Perfetto's own Python package fetches its trace processor when it is first used; `perfetto_ui` has one from another
package, for a test that may take its time. These rules are for all others.
"""

import math
from collections.abc import Sequence
from typing import Any

PHASES = {"X", "s", "f", "C", "M"}


def broken_rules(events: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong, in words; empty for a sound trace."""
    wrong = [text for event in events for text in _alone(event)]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    wrong += [f"row {row}: slices overlap in part" for row, spans in slices.items() if not _nests(spans)]
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    wrong += [
        f"process {pid} has no name" for pid in {e["pid"] for e in events} if ("process_name", pid, 0) not in named
    ]
    wrong += [f"row {row} has no name" for row in slices if ("thread_name", *row) not in named]
    return wrong + _flows(events, slices)


def _alone(event: dict[str, Any]) -> list[str]:
    if event.get("ph") not in PHASES or not isinstance(event.get("pid"), int) or not isinstance(event.get("tid"), int):
        return [f"an event without phase, process or row: {event}"]
    if event["ph"] == "M":
        return [] if isinstance(event["args"], dict) and event["args"] else [f"a label that says nothing: {event}"]
    numbers = [event["ts"], *([event["dur"]] if event["ph"] == "X" else [])]
    wrong = [f"a time that is none: {event}" for value in numbers if not math.isfinite(value) or value < 0]
    if not isinstance(event.get("name"), str) or not event["name"]:
        wrong.append(f"an event without a name: {event}")
    if event["ph"] == "C" and not all(isinstance(v, int | float) for v in event["args"].values()):
        wrong.append(f"a counter without a number: {event}")
    return wrong


def _nests(spans: list[tuple[float, float]]) -> bool:
    """Whether each lies inside another or alongside it; a hair is left for the decimals of microseconds."""
    stack: list[float] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while stack and stack[-1] <= start + 1e-4:
            stack.pop()
        if stack and end > stack[-1] + 1e-4:
            return False
        stack.append(end)
    return True


def _flows(events: Sequence[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[float, float]]]) -> list[str]:
    """Each arrow has one beginning and one end, later than it, both in a slice."""
    ends: dict[int, dict[str, dict[str, Any]]] = {}
    wrong = []
    for event in events:
        if event["ph"] in ("s", "f"):
            if event["ph"] in ends.setdefault(event["id"], {}):
                wrong.append(f"flow {event['id']} has two ends of one kind")
            ends[event["id"]][event["ph"]] = event
    starts = {row: {start for start, _ in spans} for row, spans in slices.items()}
    for number, pair in ends.items():
        if set(pair) != {"s", "f"} or pair["s"]["ts"] > pair["f"]["ts"]:
            wrong.append(f"flow {number} does not lead forward from a beginning to an end")
        # Ours begin and end where a slice begins.
        wrong += [
            f"flow {number} ends in no slice"
            for e in pair.values()
            if e["ts"] not in starts.get((e["pid"], e["tid"]), ())
        ]
    return wrong
