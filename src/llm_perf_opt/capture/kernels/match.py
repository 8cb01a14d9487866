"""Kernel names across tools: nsys and ncu demangle the same kernel differently, and ncu differs between versions.

nsys prints `void at::native::foo<(int)4, c10::BFloat16>(int, T2)`; ncu 2025.1 `void foo<4, BFloat16>(int, T2)`, ncu
2025.3 `void at::foo<4, c10::BFloat16>(int, T2)`. A name is therefore compared after dropping what any of them may drop:
namespaces, the casts in front of template values, and spaces.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

# ncu 2025.1 cuts a namespace together with the character behind it: `at::native::<unnamed>::` leaves `unnamed>::`, and
# `const::[lambda()` leaves `lambda()`.
_UNNAMED = r"(?:<unnamed>|unnamed>|\(anonymous namespace\))::"
_CAST = r"\((?:const )?[A-Za-z_][\w:<> ]*\)(?=-?\d)"
_TOKEN = re.compile(
    rf"(?P<unnamed>{_UNNAMED})|(?P<cast>{_CAST})|(?P<scope>\w+::)|(?P<lambda>\[(?=lambda))|"
    r"(?P<space>\s+)|(?P<word>\w+)|(?P<other>.)"
)
_BOOL = {"true": "1", "false": "0"}


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """Which ncu names were found among the nsys names. `rate` is None when there was nothing to match."""

    pairs: Mapping[str, tuple[str, ...]]
    unmatched: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        total = len(self.pairs) + len(self.unmatched)
        return len(self.pairs) / total if total else None

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Names that fit more than one nsys name; their times are added."""
        return tuple(name for name, found in self.pairs.items() if len(found) > 1)


@lru_cache(maxsize=1 << 16)
def normalise(name: str) -> str:
    """A form of the name that is equal for every tool that prints this kernel."""
    out: list[str] = []
    for match in _TOKEN.finditer(name):
        if match["word"]:
            out.append(_BOOL.get(match["word"], match["word"]))
        elif match["other"]:
            out.append(match["other"])
        elif match["space"] and out and out[-1][-1:].isalnum():
            # Kept between words only: `unsigned int` stays two words, `char *` and `char*` become one form.
            out.append(" ")
    text = "".join(out)
    return re.sub(r" (?=\W)", "", text).strip()


def base_name(name: str) -> str:
    """The function's own name: no return type, namespace, template or parameter list."""
    depth, start, end = 0, 0, len(name)
    for index, char in enumerate(name):
        if char in "<(" and depth == 0 and index > start and not _opens_scope(name, index):
            end = index
            break
        if char in "<([":
            depth += 1
        elif char in ">)]":
            depth -= 1
        elif depth == 0 and (char == " " or name.startswith("::", index - 1)):
            start = index + 1
    found = name[start:end].strip()
    if re.fullmatch(r"\w+", found):
        return found
    # Names ncu has cut do not balance their brackets.
    first = re.search(r"(\w+)\s*[<(]", name)
    return first[1] if first else name


def _opens_scope(name: str, index: int) -> bool:
    """Whether the bracket at index belongs to the return type or to a scope, since a name follows its end."""
    depth = 0
    for position in range(index, len(name)):
        depth += (name[position] in "<(") - (name[position] in ">)")
        if depth == 0:
            return name[position + 1 : position + 3] == "::"
    return False


def tolerant_regex(name: str) -> str:
    """A regex for the whole name of this kernel, however ncu demangles it; without anchors and without colons.

    Every namespace and cast is optional and every space may be missing. Colons are written `\\x3a` because ncu splits
    the argument of `--kernel-id` at colons.
    """
    parts: list[str] = []
    for match in _TOKEN.finditer(name):
        if match["unnamed"]:
            parts.append(r"(<?unnamed>\x3a\x3a|\(anonymous namespace\)\x3a\x3a)?")
        elif match["cast"]:
            parts.append(f"({_escape(match['cast'])})?")
        elif match["scope"]:
            parts.append(f"({_escape(match['scope'])})?")
        elif match["space"]:
            parts.append(" ?")
        elif match["lambda"]:
            parts.append(r"\[?")
        elif match["word"]:
            parts.append(_word(match["word"]))
        else:
            parts.append(_escape(match["other"]) + (" ?" if match["other"] == ">" else ""))
    return "".join(parts)


def match_kernels(ncu_names: Iterable[str], nsys_names: Sequence[str]) -> MatchResult:
    """Find each ncu name among the nsys names by their normal form."""
    index: dict[str, list[str]] = {}
    for name in nsys_names:
        index.setdefault(normalise(name), []).append(name)
    pairs: dict[str, tuple[str, ...]] = {}
    unmatched: list[str] = []
    for name in dict.fromkeys(ncu_names):
        found = index.get(normalise(name))
        if found:
            pairs[name] = tuple(found)
        else:
            unmatched.append(name)
    return MatchResult(pairs=pairs, unmatched=tuple(unmatched))


def _word(word: str) -> str:
    if word in ("0", "1"):
        return f"({word}|{'true' if word == '1' else 'false'})"
    return word


def _escape(text: str) -> str:
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text).replace(":", r"\x3a")
