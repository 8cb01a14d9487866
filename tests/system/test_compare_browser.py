"""The pages of comparisons and of many runs in a real Chromium: silent, whole, and on a small screen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.support.browser import Browser, chromium
from tests.support.fixtures_dir import DATA
from tests.unit.commands.test_compare_command import SLOWER, STEADY, passes_of
from tests.unit.pipeline.test_many_runs import timed_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def opened(browser: Browser, page: Path) -> None:
    """Open a page on a wide and on a small screen: no message, no request, nothing sticks out; all of it on paper."""
    browser.console(), browser.requests()
    for width in (1280, 420):
        browser.resize(width, 900)
        browser.open(page)
        assert browser.console() == []
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth"), width
    assert {url for url in browser.requests() if not url.startswith(("data:", "chrome:"))} == {page.resolve().as_uri()}
    browser.resize(1280, 900)
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    heights = browser.run("return [...document.querySelectorAll('main > section')].map(e => e.offsetHeight)")
    browser.cdp("Emulation.setEmulatedMedia", media="")
    assert heights and 0 not in heights


def test_a_comparison_of_runs(browser: Browser, tmp_path: Path) -> None:
    base, slower = passes_of(tmp_path / "base", STEADY), passes_of(tmp_path / "slower", SLOWER)
    assert main(["compare", str(base), str(slower), "-o", str(tmp_path), "--gate", "tpot_ms<=+5%"]) == 1
    opened(browser, tmp_path / "compare.html")
    assert browser.text("#verdict").startswith("ttft_ms 50.00 ms → 60.00 ms, +20.0 %")
    assert browser.texts("#metrics tbody td:first-child") == ["ttft_ms", "tpot_ms", "e2e_ms", "peak_memory_bytes"]
    assert browser.text("#gates .chip") == "failed"


def test_a_comparison_of_captures_has_both_timelines(browser: Browser, tmp_path: Path) -> None:
    trace = str(DATA / "h200" / "llama.trace.json.gz")
    assert main(["compare", trace, trace, "-o", str(tmp_path)]) == 0
    opened(browser, tmp_path / "compare.html")
    assert browser.run("return document.querySelectorAll('#timelines svg').length") == 2


def test_runs_over_time_and_a_sweep(browser: Browser, tmp_path: Path) -> None:
    for number, tpot_ms in enumerate((10.0, 12.0, 11.0)):
        timed_run(tmp_path / "runs" / str(number), tpot_ms, batch=2**number)
    (tmp_path / "runs" / "1" / "report.html").write_text("<title>report</title>", encoding="utf-8")
    assert main(["runs", str(tmp_path / "runs"), "--html", str(tmp_path / "trend.html")]) == 0
    opened(browser, tmp_path / "trend.html")
    assert browser.run("return document.querySelectorAll('#charts circle').length") == 6
    # A run without a report has no link.
    assert browser.run("return [...document.querySelectorAll('#runs a')].map(a => a.getAttribute('href'))") == [
        "runs/1/report.html"
    ]
    assert main(["sweep", "report", str(tmp_path / "runs")]) == 0
    opened(browser, tmp_path / "runs" / "sweep.html")
    assert browser.run("return document.querySelectorAll('tr.front').length") == 1
    assert browser.run("return document.querySelector('#runs a').getAttribute('href')") == "1/report.html"
    browser.click("#runs a")
    assert browser.run("return document.title") == "report"
