"""What all fuzz tests share: how many cases each makes, made-up JSON, damaged files, and what an answer is."""

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from llm_perf_opt.errors import ProfilingError

CASES = int(os.environ.get("LLM_PERF_FUZZ_CASES", "2000"))
# How much of all cases a test makes, in thousandths; what composes with Hydra or opens a database is slow.
CHEAP, SLOW, SLOWEST = 60, 20, 5
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def cases(share: int) -> settings:
    return settings(
        max_examples=max(10, CASES * share // 1000),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def answers(parse: Callable[[], object]) -> None:
    """The property: it returns, or it raises one of our own errors, whose text is not empty."""
    try:
        parse()
    except ProfilingError as error:
        if not str(error).strip():
            pytest.fail(f"{type(error).__name__} says nothing")


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """A file with some bytes replaced, removed, doubled, or its end cut off."""
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(1, 40))
        kind = draw(st.sampled_from(("replace", "remove", "double", "cut")))
        if kind == "replace":
            data[at : at + size] = draw(st.binary(min_size=0, max_size=size))
        elif kind == "remove":
            del data[at : at + size]
        elif kind == "double":
            data[at:at] = data[at : at + size]
        else:
            del data[len(data) - min(len(data), size * 20) :]
    return bytes(data)
