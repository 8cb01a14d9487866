"""Completion of command lines in bash, zsh and fish: commands, flags, keys of the configuration, choices, runs.

The shell's script asks `llm-perf --complete SHELL LINE`, with the line up to the cursor, and gets one candidate a line.
Keys and their values are read from the schemas in conf/, so that neither Hydra nor torch is imported for a key press.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import EXIT_OK, ConfigError

SHELLS = ("bash", "zsh", "fish")
RUNS_DIR = Path("tmp/runs")
# Where a choice is of the kind of a group that is mounted elsewhere.
MOUNTED = {
    "profiling/torch@pipeline.torch_profiler": "profiling/torch",
    "profiling/nsys@pipeline.nsys": "profiling/nsys",
    "profiling/ncu@pipeline.ncu": "profiling/ncu",
}
# Bash splits words at these too, and completes what is behind the last of them.
BREAKS = "=:@"

BASH = """\
_llm_perf_complete() {
    local IFS=$'\\n'
    COMPREPLY=( $(llm-perf --complete bash "${COMP_LINE:0:$COMP_POINT}" 2>/dev/null) )
    # A key is followed by its value, a folder by what is in it.
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[=./,] ]]; then compopt -o nospace; fi
}
complete -o default -F _llm_perf_complete llm-perf
"""
ZSH = """\
#compdef llm-perf
_llm_perf() {
    local -a whole part
    local line
    while IFS=$'\\t' read -r line _; do
        # A key is followed by its value, a folder by what is in it; a whole word by a space.
        if [[ $line == *[=./,] ]]; then part+=("$line"); else whole+=("$line"); fi
    done < <(llm-perf --complete zsh "${LBUFFER}" 2>/dev/null)
    if (( ${#whole} + ${#part} == 0 )); then _files; return; fi
    compadd -- "${whole[@]}"
    compadd -S '' -- "${part[@]}"
}
compdef _llm_perf llm-perf
"""
FISH = """\
function __llm_perf_complete
    set -l found (llm-perf --complete fish (commandline -cp) 2>/dev/null)
    # Names of files only where a word is one.
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c llm-perf -f -a '(__llm_perf_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Candidate(NamedTuple):
    """What a word may become, and what it means."""

    text: str
    meaning: str = ""


def main(option: str, args: Sequence[str]) -> int:
    """`--complete SHELL LINE`, `--show-completion [SHELL]` or `--install-completion [SHELL]`."""
    if option == "--complete":
        shell, line = (*args, "", "")[:2]
        for candidate in complete(line):
            print(_as_shell_wants(candidate, shell, line))
        return EXIT_OK
    shell = args[0] if args else Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ConfigError(f"{option}: unknown shell (got {shell!r}), allowed: {', '.join(SHELLS)}")
    if option == "--show-completion":
        print(SCRIPTS[shell], end="")
        return EXIT_OK
    for line in install(shell, Path.home()):
        print(line)
    return EXIT_OK


def install(shell: str, home: Path) -> list[str]:
    """Write the script where the shell finds it; what was done, in words."""
    if shell == "fish":
        path = home / ".config/fish/completions/llm-perf.fish"
        _write(path, FISH)
        return [f"written: {path}; new shells complete llm-perf"]
    path = home / f".local/share/llm-perf/completion.{shell}"
    _write(path, SCRIPTS[shell])
    start = home / f".{shell}rc"
    line = f'source "{path}"'
    if shell == "zsh":
        line = f"(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}; {line}"
    text = start.read_text(encoding="utf-8") if start.exists() else ""
    if line in text:
        return [f"written: {path}; {start} reads it already"]
    with start.open("a", encoding="utf-8") as file:
        file.write(f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")
    return [f"written: {path}, and the line that reads it to {start}; new shells complete llm-perf"]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def complete(line: str) -> list[Candidate]:
    """What the last word of a line may become; none where it is a file's name, which the shell knows better."""
    from llm_perf_opt.cli import COMMANDS, OPTIONS

    words = line.split()[1:]
    word = "" if line[-1:].isspace() or not words else words.pop()
    if not words:
        named = [Candidate(name, command.summary) for name, command in COMMANDS.items()]
        return _starting([*named, *(Candidate(name, text) for name, text in OPTIONS.items())], word)
    if words[0] in ("--install-completion", "--show-completion"):
        return _starting([Candidate(shell) for shell in SHELLS], word)
    command = COMMANDS.get(words[0])
    if command is None or "--" in words:
        return []
    if word.startswith("-"):
        return _starting(_flags(command.module, command.function), word)
    if "=" in word:
        return _values(word, command.config)
    found = _starting(_keys(command.config, command.groups), word) if command.config else []
    return found or _starting(_runs(), word)


def _starting(candidates: Sequence[Candidate], word: str) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.text.startswith(word)]


def _flags(module: str, function: str) -> list[Candidate]:
    """The flags a command's own help names."""
    text = StringIO()
    run: Callable[[list[str]], int] = getattr(importlib.import_module(f"llm_perf_opt.{module}"), function)
    with redirect_stdout(text), suppress(SystemExit):
        run(["--help"])
    return [Candidate(flag) for flag in dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][\w-]*", text.getvalue()))]


def _keys(config: str, groups: Sequence[str]) -> list[Candidate]:
    mounted = MOUNTED if config == "config" else {}
    chosen = [Candidate(f"{group}=", "a preset of conf/") for group in (*groups, *mounted)]
    return [*chosen, *(Candidate(f"{known.key}=", known.meaning) for known in known_keys(config))]


class KnownKey(NamedTuple):
    """A key of a configuration, what it means, and the words it takes, where those are few."""

    key: str
    meaning: str
    choices: tuple[str, ...]


def known_keys(config: str) -> list[KnownKey]:
    """Every key of conf/<config>.yaml, by its schema."""
    schema = json.loads((conf_dir() / f"{config}.schema.json").read_text(encoding="utf-8"))
    return [*_known(schema, "")]


def _known(node: Mapping[str, Any], prefix: str) -> Iterator[KnownKey]:
    for name, part in node.get("properties", {}).items():
        if "properties" in part:
            yield from _known(part, f"{prefix}{name}.")
        elif prefix:
            choices = tuple(text for option in part.get("anyOf", [part]) for text in _choices(option))
            yield KnownKey(f"{prefix}{name}", part.get("description", ""), choices)


def _values(word: str, config: str | None) -> list[Candidate]:
    """Values of `key=`; of a list with commas the last one is completed."""
    key, _, value = word.partition("=")
    group = MOUNTED.get(key, key)
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if re.fullmatch(r"[\w/]+", group) else []
    if not names and key == "run.resume":
        names = [run.text for run in _runs()]
    if not names and config is not None:
        names = [text for known in known_keys(config) if known.key == key for text in known.choices]
    before, comma, _ = value.rpartition(",")
    return _starting([Candidate(f"{key}={before}{comma}{name}") for name in names], word)


def _choices(option: Mapping[str, Any]) -> list[str]:
    if option.get("type") == "boolean":
        return ["true", "false"]
    if option.get("type") == "null":
        return ["null"]
    return [str(value) for value in option.get("enum", [option["const"]] if "const" in option else [])]


def _runs() -> list[Candidate]:
    """Runs below where the user is, the newest first."""
    found = [path for path in RUNS_DIR.glob("*") if (path / MANIFEST_FILE).is_file()]
    return [Candidate(str(path)) for path in sorted(found, reverse=True)]


def _as_shell_wants(candidate: Candidate, shell: str, line: str) -> str:
    text = candidate.text
    if shell == "bash":
        word = "" if line[-1:].isspace() else line.split()[-1]
        behind = max(word.rfind(sign) for sign in BREAKS)
        return text[behind + 1 :]
    return f"{text}\t{candidate.meaning}" if shell == "fish" and candidate.meaning else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
