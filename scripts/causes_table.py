"""The tables of causes in docs/causes.md and docs/causes-host.md, made from the data of the causes.

python scripts/causes_table.py           write them between their two marks
python scripts/causes_table.py --check   exit with 1 if a page has another one
"""

import sys
from pathlib import Path

from llm_perf_opt.diagnosis.cause import Cause, load_causes

# Pages, by whether they are of programs.
PAGES = {False: Path("docs") / "causes.md", True: Path("docs") / "causes-host.md"}
BEGIN, END = "<!-- causes: made by scripts/causes_table.py -->", "<!-- end of causes -->"
SCOPES = {
    "steady": "captures",
    "phase": "phases",
    "program": "programs",
    "capture": "start-up",
    "request": "requests",
    "run": "the run",
}


def table(*, programs: bool) -> str:
    """One row per cause, those of programs or the others: what it means, where it is judged, and its general fix."""
    head = ("| cause | what it means | judged in | fix |", "| --- | --- | --- | --- |")
    rows = (_row(cause) for cause in load_causes() if (set(cause.scopes) == {"program"}) is programs)
    return "\n".join((*head, *rows))


def _row(cause: Cause) -> str:
    scopes = ", ".join(SCOPES[scope] for scope in cause.scopes)
    fix = cause.advice[-1].text.replace("{", "").replace("}", "").replace("|", "\\|")
    return f"| `{cause.id}` | {cause.plain_words} | {scopes} | {fix} |"


def page(text: str, *, programs: bool) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(programs=programs)}\n\n{END}{after}"


def main(argv: list[str]) -> int:
    for programs, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        made = page(text, programs=programs)
        if "--check" in argv and made != text:
            return 1
        path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
