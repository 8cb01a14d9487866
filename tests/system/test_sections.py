"""A plug-in is equal to a built-in stage: what it declares counts, and its section is on the page, escaped."""

import ast
import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.names import BUILT_IN, ROLE_WRITERS, Role
from llm_perf_opt.core.records import StageRecord, StageTraits
from llm_perf_opt.core.sections import Link, Picture, Section, SectionTable
from llm_perf_opt.core.stage import traits_of
from llm_perf_opt.pipeline.plan import find_entry_points, load_registry
from llm_perf_opt.report.write import write_reports
from tests.support.fixtures_dir import REPO
from tests.support.orchestrator import OFF, llm_perf_here, only_run, statuses, valid_manifest
from tests.support.report_runs import write_run

TIMER = "pipeline.timer.enable=true"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
MARKDOWN = """\
## Stopwatch \\<b\\>

From stage timer.

Timed by hand \\| \\<script\\>alert(2)\\</script\\>

| number | value |
| --- | --- |
| `tpot_ms` | 4.750 ms[^1] |
| `watch_error_ms` | unknown: the watch does not say |

**Steps**

| step | ms | who |
| ---: | ---: | --- |
| 1 | 4.000 | \\<i\\>Ada\\</i\\> |
| 2 | 5.500 | — |

Source: `timer/steps.csv`.

![steps over time](<timer/steps.svg>)

- [all steps](<timer/steps.csv>)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timer")
    done = llm_perf_here("profile", *OFF, TIMER, cwd=folder)
    assert done.code == 0, done.err
    return only_run(folder)


def test_the_manifest_says_what_a_stage_declared_and_fits_the_schema(run: Path) -> None:
    (stage,) = valid_manifest(run)["stages"]
    assert stage["traits"] == {"runs_model": True, "gives_clean_pass": True, "needs_our_model": True}
    assert [section["title"] for section in stage["sections"]] == ["Stopwatch <b>"]
    assert read_manifest(run).stages[0].declared == StageTraits(
        runs_model=True, gives_clean_pass=True, needs_our_model=True
    )


def test_a_plug_in_that_gives_a_clean_pass_gives_the_headline_numbers(run: Path) -> None:
    text = (run / "report.md").read_text()
    assert "| TPOT | 4.750 ms[^1] | time per output token after the first, clean pass |" in text
    assert "[^1]: `timer/steps.csv`: stopwatch, median of 2" in text


def test_a_section_stands_in_the_markdown_with_every_text_escaped(run: Path) -> None:
    text = (run / "report.md").read_text()
    assert text[text.index("## Stopwatch") : text.index("\n## Provenance")] == MARKDOWN


def test_a_section_stands_on_the_page_with_every_text_escaped_and_its_picture_inside(run: Path) -> None:
    page = (run / "report.html").read_text()
    section = page[page.index('<section id="section-timer-1"') : page.index('<section id="provenance"')]
    assert '<a href="#section-timer-1">Stopwatch &lt;b&gt;</a>' in page
    assert re.findall(r"<(script|b|i)\b", section) == []
    assert re.findall(r"<td[^>]*>(.*?)</td>", section, re.DOTALL)[4:] == [
        *("1", "4.000", "&lt;i&gt;Ada&lt;/i&gt;"),
        *("2", "5.500", "—"),
    ]
    (uri,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="steps over time"', section)
    assert base64.b64decode(uri).decode() == SVG
    assert 'all steps: <span class="src">timer/steps.csv</span>' in section


def test_a_plug_in_that_runs_the_model_has_its_files_checked_and_is_skipped_for_another_program(tmp_path: Path) -> None:
    missing = llm_perf_here("profile", *OFF[2:], TIMER, "dataset=synthetic", "model=deepseek_ocr", cwd=tmp_path)
    assert (missing.code, missing.err.partition(" (got")[0]) == (2, "error: model.path: no such folder")
    done = llm_perf_here("profile", *OFF, TIMER, "workload.command=[python3,serve.py]", cwd=tmp_path)
    assert done.code == 0, done.err
    assert statuses(valid_manifest(only_run(tmp_path))) == {"timer": "skipped"}


def test_a_picture_that_is_gone_or_leads_out_of_the_run_becomes_a_reason(tmp_path: Path) -> None:
    outside = tmp_path / "secret.svg"
    outside.write_text(SVG)
    sections = tuple(Section(title=name, picture=Picture(path=f"p/{name}.svg", shows="x")) for name in ("gone", "out"))
    folder = write_run(tmp_path / "run", StageRecord(name="p", status="ok", sections=sections))
    (folder / "p").mkdir()
    (folder / "p" / "out.svg").symlink_to(outside)
    write_reports(folder)
    text = (folder / "report.md").read_text()
    assert re.findall("Picture unknown: (.*)", text) == [
        "p/gone.svg: cannot be read (No such file or directory).",
        "p/out.svg: is not inside the run directory.",
    ]


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "/etc/passwd", "../other/run", "data:text/html,x", "", "file:///etc/passwd"]
)
def test_a_link_leads_into_the_run_or_to_the_web_only(target: str) -> None:
    with pytest.raises(ValueError, match="not a path inside the run directory"):
        Link(text="x", target=target)
    assert Link(text="x", target="https://example.org/a?b").target == "https://example.org/a?b"


def test_a_table_with_a_short_row_and_a_section_without_a_title_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a table of 2 columns has a row of 1: \(1,\)"):
        SectionTable(columns=("a", "b"), rows=((1,),))
    with pytest.raises(ValueError, match="a section needs a title"):
        Section(title=" ")
    with pytest.raises(ValueError, match=r"p/x.exe: not a picture, allowed: .svg, .png, .jpg, .jpeg, .webp"):
        Picture(path="p/x.exe", shows="x")


def test_a_manifest_without_traits_reads_as_the_built_in_stages_declare_today(tmp_path: Path) -> None:
    folder = write_run(tmp_path, *(StageRecord(name=name, status="ok") for name in (*BUILT_IN, "given", "mine")))
    manifest = read_manifest(folder)
    stages = load_registry(find_entry_points(), set(BUILT_IN)).stages
    assert {s.name: s.declared for s in manifest.stages} == {
        **{name: traits_of(stages[name]) for name in BUILT_IN},
        "given": StageTraits(gives_clean_pass=True),
        "mine": StageTraits(),
    }


def test_a_stage_that_declares_no_trait_has_none() -> None:
    class Old:
        name = "old"

    assert traits_of(Old()) == StageTraits()  # type: ignore[arg-type]


def test_what_was_recorded_wins_over_what_the_name_says(tmp_path: Path) -> None:
    record = StageRecord(name="nsys", status="ok", traits=StageTraits())
    manifest = read_manifest(write_run(tmp_path, record))
    write_manifest(tmp_path, replace(manifest, stages=manifest.stages))
    assert read_manifest(tmp_path).stages[0].declared == StageTraits()


def test_every_role_our_stages_write_is_one_of_the_vocabulary() -> None:
    written = set()
    # A plug-in's roles are its own, also one that comes with the package.
    for path in sorted(p for p in (REPO / "src").rglob("*.py") if "plugins" not in p.parts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "StageFile":
                written |= {k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    assert len(written) > 10
    assert written - set(get_args(Role)) == set()
    assert set(ROLE_WRITERS) - set(get_args(Role)) == set()
