"""Numbers that nothing measures are refused wherever JSON can write them, and nothing that only looks like one is."""

import pytest

from llm_perf_opt.system.files import refuse_absurd_numbers


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1e300}',
        '{"a":1E+99}',
        '{"a":[{"b":-1e31}]}',
        "[1e-300]",
        "[0.05e-99]",
        "[\n1.25e0040\n]",
        f'{{"a": {"9" * 400}}}',
        "[1e-05, 2, 1e45]",
    ],
)
def test_a_number_that_nothing_measures_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="holds a number that nothing measures"):
        refuse_absurd_numbers(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1e-05, "b": 1e16, "c": 0.0, "d": 1e+29}',
        '{"commit": "c0ffee1e99", "digest": "3e4500"}',
        '{"note": "took, 1e300 ns"}',
        f'{{"signature": "{"9" * 40}"}}',
    ],
)
def test_what_only_looks_like_one_is_kept(text: str) -> None:
    assert refuse_absurd_numbers(text.encode()) == text.encode()
