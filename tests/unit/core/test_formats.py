"""Numbers and tables as people read them: one formatter for terminal, markdown and page."""

import pytest

from llm_perf_opt.core.markdown import code, escape, link, plain, table
from llm_perf_opt.core.units import or_dash, si
from llm_perf_opt.system.terminal import number_columns, terminal_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 B"),
        (0.25, "0.25 B"),
        (999.0, "999 B"),
        (1e3, "1 kB"),
        (123456.0, "123.5 kB"),
        (8.03e9, "8.03 GB"),
        (-2.5e12, "-2.5 TB"),
        (4e15, "4 PB"),
    ],
)
def test_a_number_has_the_prefix_that_fits_it(value: float | None, text: str) -> None:
    assert si(value, "B") == text


def test_a_prefix_without_a_unit_leaves_no_space_behind() -> None:
    assert [si(value, count=3) for value in (0.01, 1.0, 1234.0, 1e9)] == ["0.01", "1", "1.23 k", "1 G"]


def test_a_number_that_is_not_there_is_a_dash() -> None:
    assert (or_dash(None, "{:.1f} %"), or_dash(None, "{:.1f} %", dash="–")) == ("—", "–")
    assert or_dash(2_500, "{:,.2f} µs", unit=1e3) == "2.50 µs"
    assert or_dash(0, "{:.1f} %") == "0.0 %"


def test_text_of_others_starts_no_markup() -> None:
    assert plain("a_b*c*\n[x](y) | <b> `q` \\") == "a\\_b\\*c\\* \\[x\\](y) \\| \\<b\\> \\`q\\` \\\\"
    assert escape("a_b | <b>\nc\\") == "a_b \\| &lt;b> c\\\\"
    assert escape("[a](b) ![](c) [d][e] [f]") == "[a]\\(b) ![]\\(c) [d]\\[e] [f]"
    assert code("f(`a`)  | b\n") == "`f('a') \\| b`"
    assert link("[x]", "a b>.csv") == "[\\[x\\]](<a b%3E.csv>)"


def test_a_markdown_table_sets_the_named_columns_right() -> None:
    assert table(("name", "ms"), [("a", "1"), ("b", "22")], right=("ms",)) == [
        "| name | ms |",
        "| --- | ---: |",
        "| a | 1 |",
        "| b | 22 |",
    ]


def test_a_table_on_the_terminal_is_as_wide_as_its_content_and_no_wider() -> None:
    rows = [("gemm[bold]<float, 2>", "1,234.5"), ("copy", "–"), ("漢字", "-2.0")]
    assert number_columns(rows) == [1]
    assert terminal_table(("kernel", "ms"), rows, right=[1]).splitlines() == [
        "kernel                     ms",
        "--------------------  -------",
        "gemm[bold]<float, 2>  1,234.5",
        "copy                        –",
        "漢字                     -2.0",
    ]


def test_a_long_row_is_neither_wrapped_nor_cut() -> None:
    name = "k" * 3000
    assert terminal_table(("name", "n"), [(name, "1")], right=[1], rule=False) == f"name{' ' * 2996}  n\n{name}  1"
