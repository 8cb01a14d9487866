"""Drawings: axes in round steps of one unit, texts that do not touch, legends that stay on the picture."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from llm_perf_opt.report.draw import (
    LETTER,
    WIDTH,
    Chart,
    ChartPoint,
    LoadPoint,
    ScatterPoint,
    chart_svg,
    draw_chart,
    linear_axis,
    scatter_svg,
    steps_svg,
    trade_svg,
)


@pytest.mark.parametrize(
    ("values", "unit", "labels"),
    [
        ([9.37], "ms", ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms"]),
        ([63_000.0], "ms", ["0 s", "20 s", "40 s", "60 s", "80 s"]),
        ([0.0007], "ms", ["0 ns", "200 ns", "400 ns", "600 ns", "800 ns"]),
        ([123e6, 40e6], "bytes", ["0 MB", "50 MB", "100 MB", "150 MB"]),
        ([1.0, 343.0], "W", ["0 W", "100 W", "200 W", "300 W", "400 W"]),
        ([-0.3, 0.5], "", ["-0.4", "-0.2", "0.0", "0.2", "0.4", "0.6"]),
        ([], "", ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([0.0], "ms", ["0.0 ms", "0.2 ms", "0.4 ms", "0.6 ms", "0.8 ms", "1.0 ms"]),
    ],
)
def test_an_axis_has_round_steps_in_one_unit_and_holds_every_value(
    values: list[float], unit: str, labels: list[str]
) -> None:
    axis = linear_axis(values, unit=unit)
    assert [label for _, label in axis.ticks] == labels
    assert all(0 <= axis.share(value) <= 1 for value in [0.0, *values])


def test_a_tight_axis_ends_where_the_values_do_with_round_labels_between() -> None:
    axis = linear_axis([1.3, 14.9], unit="s", is_tight=True)
    assert (axis.low, axis.high) == (1.3, 14.9)
    assert [label for _, label in axis.ticks] == ["5 s", "10 s"]


def _boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """What each text takes, but those of the legend and turned ones."""
    found = []
    for x, y, anchor, text in re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)"[^>]*>([^<]*)<', svg):
        length = LETTER * len(text)
        left = float(x) - {"start": 0, "middle": length / 2, "end": length}[anchor]
        found.append((left, float(y) - 11, left + length, float(y)))
    return found


CROWDED = [LoadPoint(x=100.0 + i, y_ms=20.0 + i % 3, label=f"{i} concurrent requests") for i in range(40)]
ROOFS = {"bf16 990 TFLOP/s": 9.9e14, "fp16 989 TFLOP/s": 9.89e14, "fp8 1,980 TFLOP/s": 1.98e15}
RUNS = tuple(
    ChartPoint(x=f"a-value-with-a-long-name-{i}", y=i + 0.3, low=None, high=None, group="g", text="t")
    for i in range(30)
)


@pytest.mark.parametrize(
    "svg",
    [
        trade_svg({"TTFT": CROWDED}, x_text="tokens/s", title="t"),
        scatter_svg(
            [ScatterPoint(x=2.0, y=1e12, weight=0.5, group="g", text="t")], roofs=ROOFS, slope=4.8e12, title="t"
        ),
        chart_svg(Chart(title="t", x_label="key", y_unit="ms", points=RUNS)),
        steps_svg({"allocated": [(0, 0), (10**6, 10**9)]}, length_ns=123_456_789, title="t"),
    ],
    ids=["crowded points", "close roofs", "long words", "steps"],
)
def test_no_text_of_a_drawing_touches_another_or_is_cut_off(svg: str) -> None:
    boxes = _boxes(svg)
    assert len(boxes) > 5
    assert all(left >= -0.1 and right <= WIDTH + 0.1 for left, _, right, _ in boxes)
    touching = [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert touching == []


def test_the_name_of_a_point_lies_on_no_line_where_there_is_room() -> None:
    falling = [
        LoadPoint(x=100.0, y_ms=100.0, label="concurrency 1"),
        LoadPoint(x=200.0, y_ms=50.0, label="concurrency 8"),
    ]
    svg = trade_svg({"TTFT": falling}, x_text="tokens per second", title="t")
    (end,) = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">concurrency 8<', svg)
    (line,) = re.findall(r'<polyline points="([^"]+)"', svg)
    (x0, y0), (x1, y1) = ([float(value) for value in point.split(",")] for point in line.split())
    # The line falls to the point from its upper left, where the name goes otherwise.
    assert (x1 > x0, y1 > y0) == (True, True)
    assert float(end[1]) > y1 or end[2] == "start"


def test_every_roof_keeps_its_name() -> None:
    svg = scatter_svg(
        [ScatterPoint(x=2.0, y=1e12, weight=0.5, group="g", text="t")], roofs=ROOFS, slope=4.8e12, title="t"
    )
    assert all(name in svg for name in ROOFS)


def test_a_long_legend_takes_several_rows_and_the_picture_grows() -> None:
    names = [f"a kind of tensor, number {i}" for i in range(12)]
    svg = draw_chart({name: [(0.0, 1.0), (1.0, 2.0)] for name in names}, title="t", x_unit="s", y_unit="bytes")
    places = [(float(x), float(y)) for x, y in re.findall(r'<g transform="translate\(([\d.]+) ([\d.]+)\)"', svg)]
    assert len(places) == 12
    assert all(x + 16 + LETTER * len(name) <= WIDTH for (x, _), name in zip(places, names, strict=True))
    height = float(ET.fromstring(svg).attrib["height"])
    assert len({y for _, y in places}) > 1
    assert max(y for _, y in places) < height
