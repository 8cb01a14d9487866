"""Ranges that differ only by numbers, ids, sizes or steps are one range: `ProfilerStep#7` and `ProfilerStep#8`.

A program that numbers its ranges writes as many names as instances. What varies is taken out of a name, and names that
become the same are one; a name that stands alone keeps its numbers. Numbers that stand by themselves always vary;
those that are part of a word (`conv1`, `fp16`) only where they are too many or too long to be a name.
"""

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np

from llm_perf_opt.analysis.timeline.timeline import Timeline, distinct
from llm_perf_opt.core.names import MODULE_PREFIX

VARIABLE = "N"
# More names than this that differ only in a number inside a word are numbered, not named.
FEW_NAMES = 8
LONG_NUMBER = 3
# What torch's autograd appends to an operator's name.
_AUTOGRAD = re.compile(r", (?:seq|op_id|sizes|input_op_ids|stashed_seq|fwd_thread_id) = .*$", re.DOTALL)
_HEX = re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-f-]*[0-9])(?=[0-9a-f-]*[a-f])[0-9a-f]{6,}(?:-[0-9a-f]{4,})*\b")
_NUMBERS = re.compile(r"(?<![A-Za-z0-9])\d+(?:\.\d+)*(?![A-Za-z0-9])")
_LIST = re.compile(r"\[[\s,\[\]()N]*\]|\((?=[^)]*,)[\s,\[\]()N]*\)")
_DIGITS = re.compile(r"\d+")


def merge_range_names(timeline: Timeline) -> Timeline:
    """The timeline with one name for ranges that are one."""
    codes = [int(code) for code in distinct(timeline.ranges.name)]
    if len(codes) < 2:
        return timeline
    merged = merged_names([timeline.names[code] for code in codes])
    if all(timeline.names[code] == name for code, name in zip(codes, merged, strict=True)):
        return timeline
    names = list(dict.fromkeys((*timeline.names, *merged)))
    place = {name: code for code, name in enumerate(names)}
    recode = np.arange(len(timeline.names), dtype=np.int64)
    recode[codes] = [place[name] for name in merged]
    ranges = replace(timeline.ranges, name=recode[timeline.ranges.name])
    return replace(timeline, names=tuple(names), ranges=ranges)


def merged_names(names: list[str]) -> list[str]:
    """For each name the one it is counted under."""
    plain = [name if name.startswith(MODULE_PREFIX) else _without_numbers(name) for name in names]
    families: dict[str, set[str]] = defaultdict(set)
    for name in plain:
        families[_DIGITS.sub(VARIABLE, name)].add(name)
    numbered = {family for family, members in families.items() if _is_numbered(members)}
    found = [
        family if not name.startswith(MODULE_PREFIX) and (family := _DIGITS.sub(VARIABLE, name)) in numbered else name
        for name in plain
    ]
    alone: dict[str, set[str]] = defaultdict(set)
    for name, family in zip(names, found, strict=True):
        alone[family].add(name)
    return [
        name if len(alone[family]) == 1 and not _AUTOGRAD.search(name) else family
        for name, family in zip(names, found, strict=True)
    ]


def _without_numbers(name: str) -> str:
    """What stays of a name when numbers, ids and lists of sizes are taken out."""
    name = _AUTOGRAD.sub("", name)
    name = _NUMBERS.sub(VARIABLE, _HEX.sub(VARIABLE, name))
    return _LIST.sub(f"[{VARIABLE}]", name)


def _is_numbered(members: set[str]) -> bool:
    """Whether names that differ in numbers inside words are too many, or their numbers too long, to be names."""
    if len(members) < 2:
        return False
    columns = zip(*(_DIGITS.findall(name) for name in sorted(members)), strict=True)
    longest = max((max(map(len, column)) for column in columns if len(set(column)) > 1), default=0)
    return len(members) > FEW_NAMES or longest >= LONG_NUMBER
