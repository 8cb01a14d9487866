"""The page in a real Chromium: opens silently, sorts, filters, answers to mouse and keyboard, switches phase."""

import base64
import json
import random
import re
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.report.render.html import RAW_DEFLATE
from llm_perf_opt.report.write import write_reports
from tests.support.browser import Browser, chromium
from tests.support.report_runs import HOSTILE, analyze_h200, capture, hostile_run, stage, write_run
from tests.support.trace_builder import event, write_trace

pytestmark = pytest.mark.browser
FIRST = "#kernel-table tbody tr:first-child td:nth-child({})"
RIGHT, ENTER, ESCAPE, SHIFT = "\ue014", "\ue007", "\ue00c", "\ue008"
SETTLED = "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return analyze_h200(tmp_path_factory.mktemp("browser")) / "report.html"


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def browser(one_browser: Browser, page: Path) -> Iterator[Browser]:
    one_browser.resize(1280, 900)
    one_browser.console(), one_browser.requests()
    one_browser.open(page)
    yield one_browser
    assert one_browser.console() == []


def column(browser: Browser, number: int) -> list[str]:
    return browser.texts(f"#kernel-table tbody td:nth-child({number})")


def test_the_page_opens_without_a_message_and_without_a_request(browser: Browser, page: Path) -> None:
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.text("#verdict").startswith("Launch-bound decode")
    # Ready in under 1 s on an idle machine (benchmarks/report.py); a busy one gets three times as long.
    assert browser.run("return window.reportReadyMs") < 3000


@pytest.mark.parametrize("level", [0, 1, 9])
def test_the_script_unpacks_what_was_packed(browser: Browser, level: int) -> None:
    noise = random.Random(level)
    texts = [b"", b"short", 90_000 * b"a", noise.randbytes(70_000)]
    texts.append(b"".join(b"%d, " % noise.randint(0, 10 ** noise.randint(1, 9)) for _ in range(30_000)))
    script = (files("llm_perf_opt.report") / "templates" / "js" / "inflate.js").read_text(encoding="utf-8")
    for text in texts:
        packed = zlib.compress(text, level, wbits=RAW_DEFLATE)
        given = [base64.b64encode(packed).decode(), len(text), base64.b64encode(text).decode()]
        bytes_of = (
            "const b = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), [packed, size, text] = arguments;"
        )
        same = "const found = inflate(b(packed), size); return b(text).every((byte, i) => byte === found[i]);"
        assert browser.run(f"{script}{bytes_of}{same}", *given)


def test_a_column_is_sorted_by_mouse_and_by_keyboard(browser: Browser) -> None:
    assert column(browser, 3)[:2] == ["347.7 µs", "182.0 µs"]
    browser.click('#kernel-table th[data-col="launches"] button')
    launches = [float(text.replace(",", "")) for text in column(browser, 5)]
    assert launches == sorted(launches, reverse=True)
    assert browser.run("return document.querySelector('th[data-col=launches]').ariaSort") == "descending"
    browser.run("document.querySelector('#kernel-table th[data-col=launches] button').focus()")
    browser.press("\ue007")
    assert [float(text.replace(",", "")) for text in column(browser, 5)] == sorted(launches)
    assert browser.run("return document.querySelectorAll('#kernel-table th[aria-sort]').length") == 1


def test_unknown_values_stay_at_the_end_in_both_directions(browser: Browser) -> None:
    for _ in range(2):
        browser.click('#kernel-table th[data-col="roof"] button')
        values = column(browser, 8)
        known = [text for text in values if text != "—"]
        assert known and values == known + ["—"] * (len(values) - len(known))


def test_the_filter_keeps_what_it_names_and_counts_it(browser: Browser) -> None:
    browser.type("#kernel-filter", "nvjet")
    assert all("nvjet" in name for name in column(browser, 1))
    assert browser.text("#kernel-count") == "5 of 39 kernels, times of one decode step"
    browser.run(
        "const s = document.getElementById('kernel-class'); s.value = 'copy'; s.dispatchEvent(new Event('change'))"
    )
    assert column(browser, 1) == []


def test_a_row_opens_to_its_full_name(browser: Browser) -> None:
    browser.click("#kernel-table tbody tr:first-child button")
    assert "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT" in browser.text("#kernel-table tr.full code")


def test_switching_the_phase_changes_waterfall_kernels_and_timeline(browser: Browser) -> None:
    visible = "return [...document.querySelectorAll('.fall-panel')].filter(e => e.offsetParent).map(e => e.dataset.of)"
    assert browser.run(visible) == ["decode"]
    before = browser.text("#timeline-span")
    browser.click('#phase-switch input[value="prefill"]')
    assert browser.run(visible) == ["prefill"]
    assert column(browser, 1)[0] == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
    assert browser.text("#kernel-count") == "27 of 39 kernels, times of one prefill"
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.text("#timeline-span") != before
    browser.click('#phase-switch input[value="all"]')
    assert browser.run(visible) == ["prefill", "decode"]


PREDICTED = "[...document.querySelectorAll('.fall-panel[data-of=decode] tr.predicted')].filter(r => !r.hidden)"
WALL_BAR = "document.querySelector('.fall-panel[data-of=decode] tr.wall .track i').getBoundingClientRect().width"


def test_another_choice_redraws_the_predicted_part_of_the_waterfall(browser: Browser, page: Path) -> None:
    def choose(key: str, place: int) -> None:
        browser.run(
            f"const s = document.getElementById('what-if-{key}'); s.value = '{place}'; "
            "s.dispatchEvent(new Event('change'))"
        )

    assert browser.run(f"return {PREDICTED}.length") == 0
    measured = browser.run(f"return {WALL_BAR}")
    browser.click("#what-if summary")
    browser.run(SETTLED)
    assert browser.run(f"return {PREDICTED}.length") == 2
    own = browser.text("#what-if-said")
    choose("gpu", 1)
    other = browser.text("#what-if-said")
    assert own.startswith("Predicted: ") and other.startswith("Predicted: ")
    assert own != other
    rows = json.loads((page.parent / "static_analysis" / "static.json").read_text())["what_if"]
    size = len(rows["dtypes"]) * len(rows["batches"]) * len(rows["lengths"])
    expected = rows["points"][size]["times"]["decode"]
    shown = browser.run(f"return {PREDICTED}.map(r => r.querySelector('td.num').textContent)")
    assert [round(float(text.split()[1]), 3) for text in shown] == [
        pytest.approx(expected[key], rel=2e-3) for key in ("bound", "mid")
    ]
    # Dashed is predicted, filled is measured.
    style = "getComputedStyle(document.querySelector('{}')).borderTopStyle"
    assert browser.run(f"return {style.format('.track .k-predicted-time')}") == "dashed"
    assert browser.run(f"return {style.format('.track .k-wall')}") == "none"
    # A longer prediction shrinks the measured bars on the same scale, and the link shows the same again.
    choose("batch", 3)
    choose("length", 2)
    assert browser.run(f"return {WALL_BAR}") < 0.9 * measured
    said, address = browser.text("#what-if-said"), browser.run("return location.href")
    browser.open(page)
    assert browser.run(f"return {PREDICTED}.length") == 0
    browser.run(f"location.href = {address!r}; location.reload()")
    browser.run(SETTLED)
    assert browser.text("#what-if-said") == said
    browser.click("#what-if-own")
    assert browser.text("#what-if-said") == own
    browser.click("#what-if summary")
    browser.run(SETTLED)
    assert browser.run(f"return {WALL_BAR}") == pytest.approx(measured, abs=1)
    assert [url for url in browser.requests() if not url.startswith(("data:", "file:"))] == []


def test_points_of_the_roofline_answer_to_mouse_and_keyboard(browser: Browser) -> None:
    browser.run("document.getElementById('roofline').scrollIntoView()")
    browser.hover("#roofline-points .p.phase:not(.not-decode)")
    assert browser.run("return document.getElementById('tip').hidden") is False
    assert browser.text("#tip").startswith("decode (whole phase)")
    browser.run("document.querySelector('#roofline-points .p[tabindex=\"0\"]').focus()")
    first = browser.text("#tip")
    browser.press(RIGHT)
    assert browser.text("#tip") not in ("", first)
    assert browser.run("return document.querySelectorAll('#roofline-points .p[tabindex=\"0\"]').length") == 1


def test_the_timeline_is_drawn_and_names_what_is_under_the_mouse(browser: Browser) -> None:
    browser.run("document.getElementById('timeline-canvas').scrollIntoView({block: 'center'})")
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    painted = browser.run(
        "const c = document.getElementById('timeline-canvas');"
        "const p = c.getContext('2d').getImageData(140, 22, c.width - 150, c.height - 30).data;"
        "const seen = new Set(); for (let i = 0; i < p.length; i += 4) seen.add((p[i] << 16) + (p[i+1] << 8) + p[i+2]);"
        "return seen.size"
    )
    assert painted > 5
    box = browser.run(
        "const b = document.getElementById('timeline-canvas').getBoundingClientRect(); return [b.width, b.height]"
    )
    browser.hover("#timeline-canvas", x=0, y=round(-box[1] / 2 + 32))
    assert browser.text("#tip").startswith("decode")
    browser.click("[data-zoom=in]")
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert "shown of 112.3 ms" in browser.text("#timeline-span")


CELLS = "[...r.cells].map(c => c.textContent.trim().replace(/,/g, ''))"


def test_the_script_formats_numbers_as_the_page_without_it(browser: Browser, page: Path) -> None:
    browser.click('#phase-switch input[value="all"]')
    rows = "[...document.querySelectorAll('#kernel-table tbody tr')].slice(0, 40)"
    shown = browser.run(f"return {rows}.map(r => {CELLS})")
    plain = browser.run(
        "const d = new DOMParser().parseFromString(arguments[0], 'text/html');"
        f"return [...d.querySelectorAll('#kernel-table tbody tr')].map(r => {CELLS})",
        page.read_text(encoding="utf-8"),
    )
    assert shown == plain


def test_a_narrow_screen_does_not_scroll_sideways(browser: Browser) -> None:
    browser.resize(390, 800)
    assert browser.run("return document.documentElement.scrollWidth") <= 390


CONTRAST = """
const lum = (color) => {
  const part = color.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255);
  const [r, g, b] = part.map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
return Math.min(...arguments[0].map(selector => {
  const element = document.querySelector(selector);
  const a = lum(getComputedStyle(element).color);
  const b = lum(getComputedStyle(element.closest('section, .tile, .verdict')).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}))
"""
TEXTS = [
    "#verdict",
    ".tile dt",
    ".tile p",
    ".fall td",
    ".finding .gain",
    ".finding .sub",
    ".finding .small",
    "th",
    ".notes li",
]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_on_its_background(browser: Browser, is_dark: bool) -> None:
    browser.dark(is_dark)
    ratio = browser.run(CONTRAST, TEXTS)
    browser.dark(False)
    assert ratio >= 4.5


def test_times_of_a_step_become_times_of_a_request(browser: Browser) -> None:
    wall = '[data-of="decode"] tr[data-step="wall"] td.num'
    shown = "return document.querySelector(arguments[0]).innerText"
    time = browser.text(FIRST.format(3))
    assert (browser.run(shown, wall), time) == ("15.13 ms", "347.7 µs")
    browser.click('#per-switch input[value="request"]')
    # Six steps: the capture has 24 of them in 4 loops.
    assert (browser.run(shown, wall), browser.text(FIRST.format(3))) == ("90.78 ms", "2.09 ms")
    assert browser.text("#kernel-count").endswith("times of one request (6.00 steps)")


def test_columns_are_chosen_and_the_address_keeps_all_that_was_chosen(browser: Browser, page: Path) -> None:
    heading = (
        "return [...document.querySelectorAll('#kernel-table thead th')].filter(t => !t.hidden).map(t => t.dataset.col)"
    )
    browser.click("details.menu summary")
    browser.click('#kernel-columns input[data-col="grid"]')
    browser.click('#kernel-columns input[data-col="class"]')
    chosen = browser.run(heading)
    assert "grid" in chosen and "class" not in chosen
    browser.click("details.menu summary")
    browser.click('#phase-switch input[value="prefill"]')
    browser.type("#kernel-filter", "nvjet")
    browser.click('#kernel-table th[data-col="launches"] button')
    browser.type("#timeline-search", "gemm")
    browser.click("[data-zoom=in]")
    browser.run("return new Promise(done => setTimeout(done, 400))")
    address, rows, shown = browser.run("return location.href"), column(browser, 1), browser.text("#timeline-span")
    browser.call("url", {"url": "about:blank"})
    browser.call("url", {"url": address})
    browser.run(SETTLED)
    assert browser.run("return document.body.dataset.phase") == "prefill"
    assert (browser.run(heading), column(browser, 1), browser.text("#timeline-span")) == (chosen, rows, shown)
    assert browser.run("return document.getElementById('kernel-filter').value") == "nvjet"
    assert browser.run("return document.getElementById('timeline-search').value") == "gemm"


def test_copy_and_csv_give_what_the_filter_keeps(browser: Browser) -> None:
    browser.run(
        "window.given = [];"
        "URL.createObjectURL = (blob) => { blob.text().then(t => window.given.push(t)); return '#'; };"
        "document.execCommand = () => { window.given.push(document.activeElement.value); return true; };"
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "HTMLAnchorElement.prototype.click = function () {};"
    )
    browser.type("#kernel-filter", "splitK")
    browser.click("#kernel-csv")
    browser.click("#kernel-copy")
    browser.run("return new Promise(done => setTimeout(done, 100))")
    texts = browser.run("return window.given")
    csv, copied = (next(t for t in texts if t.startswith("name" + separator)) for separator in (",", "\t"))
    assert len(csv.splitlines()) == len(copied.splitlines()) == 1 + len(column(browser, 1))
    head, first = csv.splitlines()[0].split(","), csv.splitlines()[1]
    assert head[:3] == ["name", "class", "time [ms]"]
    assert "splitK" in first and abs(float(copied.splitlines()[1].split("\t")[2]) - 0.182) < 0.001


def test_header_and_names_stay_while_the_table_scrolls(browser: Browser) -> None:
    browser.resize(900, 700)
    browser.run("document.querySelector('#kernels').scrollIntoView()")
    places = (
        "const box = document.querySelector('.kernels-box'), b = box.getBoundingClientRect();"
        "box.scrollTo(300, 200);"
        "const head = document.querySelector('#kernel-table thead th:nth-child(3)').getBoundingClientRect();"
        "const name = document.querySelector('#kernel-table tbody tr:nth-child(12) td').getBoundingClientRect();"
        "return [box.scrollLeft, box.scrollTop, head.top - b.top, name.left - b.left]"
    )
    right, down, header, name = browser.run(places)
    assert right > 0 and down > 0 and abs(header) < 3 and abs(name) < 3


def test_a_row_opens_to_everything_ncu_knows_and_no_name_leaves_its_column(browser: Browser) -> None:
    browser.click("#kernel-table tbody tr:first-child .kname")
    known = browser.text("#kernel-table tr.full")
    for word in ("Launch", "Occupancy", "grid", "ncu"):
        assert word.lower() in known.lower(), word
    browser.resize(390, 800)
    overlap = (
        "return [...document.querySelectorAll('#kernel-table tbody tr:not(.full)')].filter(r =>"
        " r.querySelector('.kname').getBoundingClientRect().right > r.cells[1].getBoundingClientRect().left + 1).length"
    )
    assert browser.run(overlap) == 0


def test_a_point_of_the_roofline_leads_to_its_row(browser: Browser) -> None:
    name = browser.run(
        "const dot = document.querySelector('#roofline-points .p[data-kernel]');"
        "dot.dispatchEvent(new MouseEvent('click', {bubbles: true})); return dot.dataset.kernel"
    )
    assert browser.text('.kname[aria-expanded="true"]') == name


def test_the_timeline_searches_sums_a_span_and_walks_by_keys(browser: Browser) -> None:
    browser.type("#timeline-search", "flash")
    found = browser.text("#timeline-found")
    assert found.split()[1] == "found," and found.endswith("on the GPU")
    browser.press(ENTER)
    assert browser.text("#timeline-found").startswith("1 of ")
    browser.press(ESCAPE)
    assert (browser.text("#timeline-found"), browser.run("return document.activeElement.id")) == ("", "timeline-canvas")
    browser.press("a", "s")
    sums = browser.text("#timeline-sums p")
    assert sums.startswith("Selected: 112.3 ms from 0 ms: ") and "GPU busy" in sums and "runtime calls" in sums
    assert "span=0-" in browser.run("return location.hash")
    browser.press("n")
    assert "after its launch began" in browser.text("#tip")
    browser.press(ESCAPE)
    assert browser.run("return document.getElementById('timeline-sums').hidden")
    before = browser.text("#timeline-span")
    browser.press("+")
    browser.run(SETTLED)
    assert browser.text("#timeline-span") != before


def timeline(browser: Browser) -> tuple[int, int]:
    """The canvas in the middle of the screen, and half of its size."""
    browser.run("document.getElementById('timeline-canvas').scrollIntoView({block: 'center'})")
    browser.run(SETTLED)
    box = browser.run(
        "const b = document.getElementById('timeline-canvas').getBoundingClientRect(); return [b.width, b.height]"
    )
    return round(box[0] / 2), round(box[1] / 2)


WINDOW = "return new URLSearchParams(location.hash.split('?')[1]).get('t')"
SPAN = "return new URLSearchParams(location.hash.split('?')[1]).get('span')"
REMEMBERED = "return new Promise(done => setTimeout(done, 400))"


def test_the_timeline_is_moved_zoomed_and_selected_by_mouse(browser: Browser) -> None:
    _, half = timeline(browser)
    browser.drag("#timeline-canvas", start=(0, half - 8), by=200)
    browser.run(REMEMBERED)
    moved = [int(part) for part in browser.run(WINDOW).split("-")]
    browser.drag("#timeline-canvas", start=(0, half - 8), by=-200)
    browser.run(REMEMBERED)
    back = [int(part) for part in browser.run(WINDOW).split("-")]
    assert moved[0] < back[0] and abs((moved[1] - moved[0]) - (back[1] - back[0])) <= 1
    browser.drag("#timeline-canvas", start=(0, half - 8), by=120, key=SHIFT)
    first = browser.run(SPAN)
    assert browser.text("#timeline-sums p").startswith("Selected: ") and first
    browser.click("#timeline-sums button")
    browser.run(REMEMBERED)
    assert browser.run(WINDOW) == first
    browser.click("#timeline-select")
    timeline(browser)
    browser.drag("#timeline-canvas", start=(-100, half - 8), by=50)
    assert browser.run(SPAN) not in (None, first) and browser.run(WINDOW) == first
    before = browser.text("#timeline-span")
    browser.wheel("#timeline-canvas", -300)
    browser.run(SETTLED)
    # The canvas has the focus, so that the wheel is its own.
    browser.run("document.getElementById('timeline-canvas').focus()")
    browser.wheel("#timeline-canvas", -300)
    browser.run(SETTLED)
    assert browser.text("#timeline-span") != before


def test_a_clicked_kernel_has_an_arrow_from_its_launch(browser: Browser) -> None:
    # Inspected in a copy: the page's own canvas is drawn by the GPU where there is one.
    red = (
        "const c = document.getElementById('timeline-canvas'), copy = document.createElement('canvas');"
        "copy.width = c.width; copy.height = c.height;"
        "const pen = copy.getContext('2d', {willReadFrequently: true}); pen.drawImage(c, 0, 0);"
        "const probe = document.createElement('i'); probe.style.color = 'var(--bad)'; document.body.append(probe);"
        "const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number); probe.remove();"
        "const p = pen.getImageData(0, 0, c.width, c.height).data; let count = 0;"
        "for (let i = 0; i < p.length; i += 4) if (p[i] === r && p[i + 1] === g && p[i + 2] === b) count++;"
        "return count"
    )
    timeline(browser)
    browser.type("#timeline-search", "nvjet_sm90_tst_256x8")
    # The first one is too near to the edge to come to the middle.
    browser.press(ENTER, ENTER)
    browser.run(SETTLED)
    assert browser.run(red) > 10
    # The search is over and nothing is chosen; this near the kernel is a fifth of the width, around the middle.
    browser.press(ESCAPE, ESCAPE, *"++++++")
    browser.run(SETTLED)
    assert browser.run(red) == 0
    _, half = timeline(browser)
    for y in range(-half + 50, half - 10, 6):
        browser.drag("#timeline-canvas", start=(0, y), by=0)
        browser.run(SETTLED)
        if browser.run(red) > 10:
            break
    browser.hover("#timeline-canvas", x=1, y=y)
    told = browser.text("#tip")
    assert told.startswith("nvjet_sm90_tst_256x8") and "after its launch began" in told, told


def test_buttons_of_the_timeline_show_a_phase_or_all_of_it(browser: Browser) -> None:
    shown = {}
    for name in browser.texts("#timeline-jumps button"):
        jumps = "[...document.querySelectorAll('#timeline-jumps button')]"
        browser.run(f"{jumps}.find(b => b.textContent === arguments[0]).click()", name)
        browser.run(SETTLED)
        shown[name] = browser.text("#timeline-span")
    browser.click('[data-zoom="all"]')
    browser.run(SETTLED)
    assert list(shown) == ["Prefill", "Decode step"] and len(set(shown.values())) == 2
    assert browser.text("#timeline-span") == "112.3 ms shown of 112.3 ms"


def test_a_small_table_is_sorted_by_its_heading(browser: Browser) -> None:
    rows = "[...document.querySelector('#modules table.sortable').tBodies[0].rows]"
    cells = f"return {rows}.map(r => r.cells[3].textContent)"
    heading = "#modules table.sortable th:nth-child(4) button"
    browser.click(heading)
    shares = [float(text.split()[0]) for text in browser.run(cells) if text != "—" and not text.startswith("<")]
    assert shares == sorted(shares, reverse=True) and len(shares) > 3
    browser.click(heading)
    assert [
        float(text.split()[0]) for text in browser.run(cells) if text != "—" and not text.startswith("<")
    ] == shares[::-1]


def test_the_first_screen_leads_to_the_evidence_and_keeps_what_was_chosen(browser: Browser) -> None:
    browser.click('#phase-switch input[value="prefill"]')
    # The address is written a moment after the timeline moved; a link followed meanwhile must not be lost.
    browser.run("window.scrollTo(0, 0); document.querySelector('.answer a').click()")
    browser.run(REMEMBERED)
    assert browser.run("return location.hash").startswith("#findings?") and "phase=prefill" in browser.run(
        "return location.hash"
    )
    assert abs(browser.run("return document.getElementById('findings').getBoundingClientRect().top")) < 120
    browser.click(".bar nav a[href='#kernels']")
    browser.run(SETTLED)
    assert browser.run("return location.hash").startswith("#kernels?")


def test_a_finding_closes_and_opens(browser: Browser) -> None:
    is_open = "return document.querySelector('.finding').open"
    click = "document.querySelector('.finding summary').click()"
    seen = [browser.run(is_open)]
    for _ in range(2):
        browser.run(click)
        seen.append(browser.run(is_open))
    assert seen == [True, False, True]


def test_a_term_explains_itself_under_the_mouse(browser: Browser) -> None:
    browser.hover("#verdict abbr")
    assert len(browser.text("#tip")) > 20


def test_paper_has_two_pages(browser: Browser) -> None:
    pdf = base64.b64decode(
        browser.cdp("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
    )
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2


def test_paper_cuts_no_text_and_every_column_has_its_heading(browser: Browser) -> None:
    shown = "[...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().width > 0)"
    cut = "e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY === 'hidden'"
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.run(f"return {shown}.filter(e => {cut}).map(e => e.textContent)", ".tile p, .do-first") == []
        heads = browser.run(f"return {shown}.map(e => e.cellIndex)", "#kernel-table thead th")
        cells = browser.run(f"return {shown}.length", "#kernel-table tbody tr:first-child td")
        assert len(heads) == cells > 5
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")


def test_a_long_table_shows_more_on_demand(one_browser: Browser, tmp_path: Path) -> None:
    data = capture(*((f"kernel_{number}", 1, 1_000_000 - number) for number in range(150)))
    write_run(tmp_path, stage("nsys", tmp_path, {"analysis_json": ("analysis.json", data)}))
    write_reports(tmp_path)
    one_browser.resize(1280, 900)
    one_browser.open(tmp_path / "report.html")
    counts = []
    while not one_browser.run("return document.getElementById('kernel-more').hidden"):
        counts.append(len(column(one_browser, 1)))
        one_browser.click("#kernel-more")
    counts.append(len(column(one_browser, 1)))
    assert counts == sorted(counts) and len(counts) > 1 and counts[-1] == 150
    assert one_browser.console() == []


def test_a_kernel_called_script_does_nothing(one_browser: Browser, tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    write_reports(run)
    one_browser.open(run / "report.html")
    assert one_browser.run("return document.title") != "owned"
    one_browser.click("#kernel-table tbody tr:first-child button")
    assert one_browser.text("#kernel-table tr.full code") == HOSTILE
    assert one_browser.console() == []


def test_a_bar_of_the_flame_graph_fills_the_width_when_clicked(one_browser: Browser, tmp_path: Path) -> None:
    """`main` calls `load` for a third of its time and `step` for the rest."""
    frames = [("a.py(1): main", "0.0", "90.0"), ("a.py(2): load", "0.0", "30.0"), ("a.py(3): step", "30.0", "60.0")]
    trace = write_trace(tmp_path / "t.json", [event("python_function", *frame) for frame in frames])
    assert main(["analyze", "-v", str(trace), "-o", str(tmp_path / "run")]) == 0
    one_browser.open(tmp_path / "run" / "report.html")
    shown = "return [...document.querySelectorAll('.flame button')].map(b => [b.hidden, b.style.left, b.style.width])"
    assert one_browser.texts(".flame button") == ["main a.py(1)", "load a.py(2)", "step a.py(3)"]
    whole = [[False, "0%", "100%"], [False, "66.6667%", "33.3333%"], [False, "0%", "66.6667%"]]
    assert one_browser.run(shown) == whole
    one_browser.click(".flame button:nth-child(2)")
    zoomed = one_browser.run(shown)
    assert [bar[0] for bar in zoomed] == [False, False, True]
    assert zoomed[1][1:] == ["0%", "100%"]
    one_browser.click(".flame-all")
    assert [bar[0] for bar in one_browser.run(shown)] == [False, False, False]
    assert one_browser.console() == []
