"""Lines an engine wrote about its steps, as records. Lines that are cut or not ours are counted, never guessed."""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from llm_perf_opt.serving.requests.request_records import EngineRequest, EngineStep, StepTrace, StepWork

# Engines put words before and after the id that the client sent; ours has no dash and ends with a number.
_CLIENT_ID = re.compile(r"(llmperf\.[0-9a-z]+\.[0-9a-z]+\.\d+)(?![0-9.])")

# Requests in steps: an hour of 50 steps a second with 16 requests each, in some hundred megabytes.
MOST_ENTRIES = 3_000_000


class _Line(msgspec.Struct):
    """Any line; which keys it has depends on `k`."""

    k: Literal["start", "add", "step", "finish", "declined"]
    engine: str = ""
    version: str = ""
    why: str = ""
    r: int = -1
    id: str = ""
    prompt: int = 0
    at: float = 0.0
    arrived: float = 0.0
    n: int = 0
    t: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    w: list[tuple[int, int, int]] = []
    o: list[tuple[int, int]] = []


_decode = msgspec.json.Decoder(_Line).decode


class Declined(Exception):
    """The engine ran without a record of its steps; the text says why."""


def client_id(engine_id: str) -> str | None:
    """The id our client sent, out of the one the engine made of it."""
    found = _CLIENT_ID.search(engine_id)
    return None if found is None else found.group(1)


def read_steps(lines: Iterable[bytes], *, most: int = MOST_ENTRIES) -> StepTrace:
    """Read what one engine process wrote, up to `most` requests in steps; raise Declined where it declined to write."""
    engine = version = ""
    requests: list[EngineRequest] = []
    steps: list[EngineStep] = []
    broken = held = 0
    notes: list[str] = []
    for text in lines:
        try:
            line = _decode(text)
        except msgspec.MsgspecError:
            broken += 1
            continue
        if line.k == "start":
            engine, version = line.engine, line.version
        elif line.k == "declined":
            raise Declined(line.why)
        elif line.k == "add":
            requests.append(_request(line))
        elif line.k == "step":
            steps.append(_step(line))
            held += len(line.w)
            if held > most:
                notes.append(f"the record of steps is longer than {most:,} entries: what came later was left out")
                break
    notes += [f"{broken} lines of the record of steps could not be read"] if broken else []
    ordered = tuple(sorted(steps, key=lambda step: step.update_s))
    return StepTrace(engine=engine, version=version, requests=tuple(requests), steps=ordered, notes=tuple(notes))


def _request(line: _Line) -> EngineRequest:
    return EngineRequest(
        number=line.r,
        client_id=client_id(line.id),
        prompt_tokens=line.prompt,
        arrived_s=min(line.arrived, line.at),
        added_s=line.at,
    )


def _step(line: _Line) -> EngineStep:
    begin, scheduled, update, done = line.t
    sampled = dict(line.o)
    work = tuple(
        StepWork(request=request, tokens=tokens, computed=computed, sampled=sampled.get(request, 0))
        for request, tokens, computed in line.w
    )
    return EngineStep(number=line.n, begin_s=begin, scheduled_s=scheduled, update_s=update, done_s=done, work=work)
