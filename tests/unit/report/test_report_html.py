"""The one-file page: nothing fetched, data intact, the same numbers as the markdown."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llm_perf_opt.core.units import digits, format_bytes, format_factor, format_ms, format_ms_in_column, format_percent
from llm_perf_opt.report.render import html
from llm_perf_opt.report.view.timeline_view import pack
from tests.support.report_runs import analyze_h200

# One worker makes the report these tests look at.
pytestmark = pytest.mark.xdist_group("report_html")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (analyze_h200(tmp_path_factory.mktemp("html")) / "report.html").read_text(encoding="utf-8")


class _Links(HTMLParser):
    """Collects what a browser would fetch, and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.unlabelled: list[str] = []
        self.labels: set[str] = set()
        self.inputs: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.targets += [v for k, v in attrs if k in ("src", "href") and v]
        if tag in ("script", "img", "iframe", "link", "source", "video", "audio"):
            self.fetched += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]
        if values.get("id"):
            self.ids.append(values["id"] or "")
        if tag == "label" and values.get("for"):
            self.labels.add(values["for"] or "")
        if tag in ("input", "select") and values.get("type") != "radio":
            self.inputs.append(values.get("id") or "")


def test_the_page_fetches_nothing_and_is_small(page: str) -> None:
    links = _Links()
    links.feed(page)
    assert links.fetched == []
    assert not re.search(r"@import|url\((?!data:)|(src|href)=.https?:", page)
    assert len(page.encode()) < 400_000
    assert "Content-Security-Policy" in page


def test_a_page_that_is_moved_alone_has_no_dead_link(page: str) -> None:
    links = _Links()
    links.feed(page)
    assert len(links.targets) > 10
    assert [target for target in links.targets if not target.startswith(("#", "data:", "https:"))] == []
    assert {target[1:] for target in links.targets if target.startswith("#")} <= set(links.ids)


def test_ids_are_unique_and_every_input_has_a_label(page: str) -> None:
    links = _Links()
    links.feed(page)
    assert len(links.ids) == len(set(links.ids))
    assert set(links.inputs) <= links.labels


def test_the_page_is_whole_without_its_script(page: str) -> None:
    shown = re.sub("</?abbr[^>]*>", "", page.split('<script type="application/octet-stream"')[0])
    for text in (
        "Launch-bound decode",
        "15.13 ms",
        "1.949 ms",
        "0.555 ms",
        "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT",
    ):
        assert text in shown
    assert shown.count("<circle") == 14
    assert shown.count('class="p phase') == 2


def test_both_schemes_print_and_colour_safe_classes_are_styled(page: str) -> None:
    for text in ("prefers-color-scheme: dark", "@media print", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"):
        assert text in page


def test_data_for_the_script_cannot_end_it_or_turn_text_around() -> None:
    names = {"name": "</script><!-- \u2028", "kernel": 400 * "at::native::", "turned": "\u202e", "half": "\udc80"}
    packed = html.pack(names)
    assert "<" not in packed.text and len(packed.text) < packed.size_bytes / 10
    data = html.unpack(f'<script id="data" data-bytes="1">{packed.text}</script>'.encode())
    assert len(data) == packed.size_bytes and b"\\u202e" in data
    assert json.loads(data) == names


def test_the_data_holds_every_kernel_and_event(page: str) -> None:
    data = json.loads(html.unpack(page.encode()))
    kernels = [dict(zip(data["kernels"]["fields"], row, strict=True)) for row in data["kernels"]["rows"]]
    # Of the steady state: the kernels that only filled the weights with numbers are none of it.
    assert len(kernels) == 39
    assert kernels[0]["name"] == "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"
    assert set(data["kernels"]["totals"]) == {"all", "prefill", "decode"}
    assert data["kernels"]["units"] == {
        "mean": "us", "min": "us", "max": "us", "stddev": "us", "per_prefill": "count", "per_step": "count",
        "roof": "%", "dram": "B/s", "flops": "FLOP/s", "occupancy": "%", "floor": "us", "registers": "count",
        "shared": "B",
    }  # fmt: skip
    counts = {track["label"]: track["count"] for track in data["timeline"]["tracks"] if track["kind"] != "range"}
    assert next(n for name, n in counts.items() if name.startswith("CPU")) == 3500
    assert sum(n for name, n in counts.items() if name.startswith("GPU")) == 3498


def unpack(text: str) -> list[tuple[int, int, int, int]]:
    """What the page's script does."""
    numbers, value, shift = [], 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value, shift = 0, 0
    events, at = [], 0
    for delta, length, name, kind in zip(*[iter(numbers)] * 4, strict=True):
        at += delta
        events.append((at, at + length, name, kind))
    return events


def test_packed_events_come_back_as_they_were() -> None:
    events = [(0, 5, 0, 1), (5, 5, 300, 0), (1_000_000, 1_000_127, 2, 8), (9_000_000_000, 9_000_000_128, 1, 0)]
    assert unpack(pack(reversed(events))) == events
    assert pack([]) == ""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_ms(15.13), "15.13 ms"),
        (format_ms(0.5886), "0.589 ms"),
        (format_ms(0.0675), "67.5 µs"),
        (format_ms(0.0000085), "8.50 ns"),
        (format_ms(12345.6), "12.35 s"),
        (format_ms(0), "0 ms"),
        (format_bytes(2471628800), "2.47 GB"),
        (format_bytes(512), "512.0 B"),
        (format_percent(0.0345), "3.45 %"),
        (format_percent(1.0), "100.0 %"),
        (format_percent(0.00002), "< 0.01 %"),
        (format_factor(7.76), "7.8×"),
        (format_factor(1.128), "1.13×"),
        (format_factor(234.5), "234.5×"),
        (format_factor(5236.3), "5,236×"),
        (format_ms_in_column(9260.146), "9,260.146 ms"),
        (format_ms_in_column(-0.0467), "-0.047 ms"),
        (format_ms_in_column(0.0002), "< 0.001 ms"),
        (format_ms_in_column(0.0), "0 ms"),
        (digits(1234567.0), "1,234,567"),
        (digits(-0.01234), "-0.0123"),
    ],
)
def test_numbers_are_shown_with_a_few_digits_and_a_unit(shown: str, expected: str) -> None:
    assert shown == expected


def test_the_page_is_written_for_every_run(tmp_path: Path) -> None:
    out = analyze_h200(tmp_path, ncu=False, context=False)
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "<h2" in html and ">Roofline<" not in html
    assert "pipeline." not in html
    assert "The capture names neither its model nor a time without a profiler" in html
