"""What nsys says while it imports and exports reports: why it failed, and errors it continues after."""

import re

WORDS = 300
_NON_FATAL = re.compile(
    r"Importation succeeded with non-fatal errors|Errors occurred while processing the raw events", re.I
)
# Newer versions put the words into one line with the place in nsys's own sources they come from.
_DETAIL = re.compile(r'(?:Cannot find string|Event requestor)[^"\\\n]*')
# What nsys says when a program named ranges by strings it registered and nsys did not get: importing stops there, and
# with the ranges all kinds of events behind that place can be lost.
_LOST_STRINGS = re.compile(r"Cannot find string for an exterior index")
_FAILED = re.compile(r"\bERROR\b|[Ee]rror:|Can't parse|what:|[Ee]xception|newer version|not supported", re.M)
_PROGRESS = re.compile(r"\[[= ]*\d+% *\]")
# nsys names the files it was built from; they say nothing to a reader.
_BUILT_FROM = re.compile(r"/(?:build|dvs)/\S+?\.(?:cpp|cc|h)(?:[:(]\d+[)\]]?)?:? ?")


def import_notes(said: str) -> list[str]:
    """A note where nsys imported a capture with errors it calls non-fatal: events may be missing."""
    if not _NON_FATAL.search(said):
        return []
    details = list(dict.fromkeys(_plain(line) for line in _DETAIL.findall(said)))[:2]
    why = f" ({'; '.join(details)})" if details else ""
    return [f"nsys imported the capture with non-fatal errors{why}: some events may be missing"]


def lost_strings(said: str) -> bool:
    """Whether importing stopped at a range whose name is not known: a capture without ranges would be whole."""
    return bool(_NON_FATAL.search(said) and _LOST_STRINGS.search(said))


def failure_words(said: str) -> str:
    """The lines that say why nsys failed, as one."""
    lines = [_plain(line) for line in said.splitlines() if line.strip() and not _PROGRESS.search(line)]
    telling = [line for line in lines if _FAILED.search(line)] or lines[-1:]
    return "; ".join(line[:WORDS] for line in dict.fromkeys((*telling[:1], *telling[-1:]))) or "it printed nothing"


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", _BUILT_FROM.sub("", line)).strip()
