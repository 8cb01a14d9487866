"""Command lines: Hydra's flags and overrides distinguished, so that both may be in any order."""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.legacy import notice, translate
from llm_perf_opt.errors import ConfigError, did_you_mean
from llm_perf_opt.system.json_output import JSON

# Flags whose value is the next word. `--info` may have one; without it means `all`, which is written out, or argparse
# would take the first override for its value.
_WITH_VALUE = {
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
}
# It unpickles a file, and a pickle may run anything; nothing else of ours ever reads one.
_RERUN = "--experimental-rerun"
_INFO = {"--info", "-i"}
_INFO_VALUES = {"all", "config", "defaults", "defaults-tree", "plugins", "searchpath"}
OPEN = "--open"
_NAME, _DIR = ("--config-name", "-cn"), ("--config-dir", "-cd")
_BARE_COMMAS = re.compile(r"""^([\w.+~@/-]+=)([^\[\]{}()'"]*,[^\[\]{}()'"]*)$""")
_OTHER_LETTERS = re.compile(r"""^([\w.+~@/-]+=)([^\[\]{}()'",]*[^\x00-\x7f\udc80-\udcff][^\[\]{}()'",]*)$""")
_LONG_FLAGS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir", _RERUN),
)
# Keys that hold names of the user's own choosing, which Hydra would refuse as unknown.
_FREE_MAPS = ("workload.phases", "server.env", "server.profile_body")
# Files that were entries of their own; now they only set switches on top of the one entry.
_OLD_ENTRY = re.compile(r"runner/(?P<name>[\w.-]+)")

# What the system says of a place that cannot be written to, whoever tries; a full disk is none of them.
_BAD_PLACES = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL),
    *(errno.ELOOP, errno.ENAMETOOLONG),
}


@contextmanager
def written_by(option: str, path: Path) -> Iterator[None]:
    """A place where nothing can be written is bad input of the option that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _BAD_PLACES:
            raise
        raise ConfigError(
            f"{option}: {path} cannot be written ({error.strerror}), allowed: a place in a directory you may write to"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """`implied` are the overrides a command stands for; what the user gave comes after them and wins.

    `opens`: the report is shown when the run has ended. `as_json`: its result is printed as JSON.
    """

    flags: tuple[str, ...]
    implied: tuple[str, ...]
    overrides: tuple[str, ...]
    notice: str | None
    opens: bool = False
    as_json: bool = False

    @property
    def config_name(self) -> str | None:
        return _value(self.flags, _NAME)

    @property
    def config_dir(self) -> Path | None:
        given = _value(self.flags, _DIR)
        return None if given is None else Path(given)


def parse_arguments(argv: Sequence[str], *, implied: Sequence[str] = ()) -> Arguments:
    """Sort the words of a command line, translate old keys, and keep bare commas outside a sweep."""
    flags, given = _sorted([word for word in argv if word not in (OPEN, JSON)])
    if any(flag.partition("=")[0] == _RERUN for flag in flags):
        raise ConfigError(f"{_RERUN}: refused, it runs what a pickled file holds, allowed: run.resume=<run dir>")
    _refuse_unknown(flags, given)
    entry = _OLD_ENTRY.fullmatch((_value(flags, _NAME) or "").removesuffix(".yaml"))
    changed: tuple[tuple[str, str], ...] = ()
    if entry is not None:
        flags = _without(flags, _NAME)
        given = [f"runner={entry['name']}", *given]
        changed = ((f"--config-name runner/{entry['name']}", f"runner={entry['name']}"),)
    translated = translate(given)
    opened = [_open_map(override) for override in translated.overrides]
    is_sweep = bool({"-m", "--multirun"} & set(flags))
    return Arguments(
        flags=tuple(flags),
        # Hydra refuses a group chosen twice.
        implied=tuple(o for o in implied if o.partition("=")[0] not in {g.partition("=")[0] for g in given}),
        overrides=tuple(map(_quote_letters, opened))
        if is_sweep
        else tuple(_quote_letters(_quote_commas(override)) for override in opened),
        notice=notice((*changed, *translated.changed)),
        opens=OPEN in argv,
        as_json=JSON in argv,
    )


def _sorted(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags with their values, and overrides. A bare `--`, as task runners pass it on, means nothing."""
    flags: list[str] = []
    overrides: list[str] = []
    words = [word for word in argv if word != "--"]
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flags.append(word)
        following = words[position] if position < len(words) else None
        if following is not None and (word in _WITH_VALUE or (word in _INFO and following in _INFO_VALUES)):
            flags.append(following)
            position += 1
        elif word in _INFO:
            flags.append("all")
    return flags, overrides


def _value(flags: Sequence[str], names: Sequence[str]) -> str | None:
    for number, flag in enumerate(flags):
        name, sign, value = flag.partition("=")
        if name in names:
            return value if sign else next(iter(flags[number + 1 : number + 2]), None)
    return None


def _without(flags: Sequence[str], names: Sequence[str]) -> list[str]:
    out: list[str] = []
    skip = False
    for flag in flags:
        if skip:
            skip = False
        elif flag.partition("=")[0] in names:
            skip = "=" not in flag
        else:
            out.append(flag)
    return out


def _refuse_unknown(flags: Sequence[str], given: Sequence[str]) -> None:
    """A flag Hydra does not have, or an abbreviation of one, which argparse would accept.

    Settings are not flags: `--experiment demo` is meant as `experiment=demo`.
    """
    for flag in flags:
        name, sign, value = flag.partition("=")
        if not name.startswith("--") or name in _LONG_FLAGS:
            continue
        near = did_you_mean(name, (*_LONG_FLAGS, OPEN, JSON), cutoff=0.8)
        if not near or name.startswith("--experiment"):
            value = value if sign else next((word for word in given if "=" not in word), "…")
            near = f"; settings have no dashes: {name.removeprefix('--').replace('-', '_')}={value}"
        raise ConfigError(f"{name}: no such flag{near}")


def _open_map(override: str) -> str:
    """`workload.phases={step: "run*"}`, or one name of it: added where Hydra would only change what is there."""
    key = override.partition("=")[0]
    is_free = any(key == name or key.startswith(f"{name}.") for name in _FREE_MAPS)
    return f"++{override}" if is_free else override


def _quote_letters(override: str) -> str:
    """Let `hydra.run.dir=läufe/1` mean what it says: outside quotes Hydra knows no letters but a to z."""
    return _OTHER_LETTERS.sub(r'\1"\2"', override)


def _quote_commas(override: str) -> str:
    """Let `pipeline.nsys.trace=cuda,nvtx` mean what it says: outside a sweep a bare comma is part of the value."""
    return _BARE_COMMAS.sub(r'\1"\2"', override)
