"""The table of causes in docs/report.md, made from the data of the causes.

python scripts/causes_table.py           write it between its two marks
python scripts/causes_table.py --check   exit with 1 if the page has another one
"""

import sys
from pathlib import Path

from llm_perf_opt.diagnosis.cause import Cause, load_causes

PAGE = Path("docs") / "report.md"
BEGIN, END = "<!-- causes: made by scripts/causes_table.py -->", "<!-- end of causes -->"
SCOPES = {
    "steady": "captures",
    "phase": "phases",
    "program": "programs",
    "capture": "start-up",
    "request": "requests",
    "run": "the run",
}


def table() -> str:
    """One row per cause: what it means, where it is judged, and what to do first."""
    head = ("| cause | what it means | judged in | cells | fix |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *(_row(cause) for cause in load_causes())))


def _row(cause: Cause) -> str:
    scopes = ", ".join(SCOPES[scope] for scope in cause.scopes)
    cells = ", ".join(f"`{cell}`" for cell in cause.cells) or "–"
    fix = cause.advice[-1].text.replace("{", "").replace("}", "").replace("|", "\\|")
    return f"| `{cause.id}` | {cause.plain_words} | {scopes} | {cells} | {fix} |"


def page(text: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(argv: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if "--check" in argv:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
