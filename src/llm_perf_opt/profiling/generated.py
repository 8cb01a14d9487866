"""The kernels torch.compile wrote for a run: their source, kept with the results and opened from a kernel's row."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from llm_perf_opt.core.documents import GeneratedDocument, GeneratedKernel
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import GENERATED_FILE, INDUCTOR_DIR, SOURCE_NODES_FILE
from llm_perf_opt.core.records import StageFile
from llm_perf_opt.core.sections import Link, Section, SectionTable

FOLDER = "generated"
LARGEST_BYTES = 8 << 20
LINKS_SHOWN = 60
_ENDINGS = {"triton": ".py", "cpp": ".cpp"}
# For a GPU `name = async_compile.triton('name', '''source''', …)`, for a CPU
# `name = async_compile.cpp_pybinding([…], r'''source''')`.
_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<language>triton|cpp)\w*\((?P<before>[^\n]*?)r?'''\n?(?P<source>.*?)'''",
    re.DOTALL | re.MULTILINE,
)
# The comment in front of a kernel, or of the call that runs it.
_OPERATORS = re.compile(r"(?:Source Nodes: \[(?P<nodes>[^\]]*)\], )?Original ATen: \[(?P<operators>[^\]]*)\]")


def collect_generated(run_dir: Path, out_dir: Path) -> tuple[tuple[StageFile, ...], tuple[Section, ...]]:
    """Copy the source of every generated kernel into the stage's directory; nothing where nothing was compiled."""
    cache = run_dir / "tmp" / INDUCTOR_DIR
    kernels: dict[str, GeneratedKernel] = {}
    nodes = read_nodes(cache / SOURCE_NODES_FILE)
    for path in sorted(cache.rglob("*.py")) if cache.is_dir() else ():
        if path.stat().st_size > LARGEST_BYTES:
            continue
        for kernel, source in find_kernels(path.read_text(encoding="utf-8", errors="replace"), nodes):
            if kernel.name in kernels:
                continue
            file = out_dir / FOLDER / f"{kernel.name[:120]}{_ENDINGS[kernel.language]}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
            kernels[kernel.name] = replace(kernel, file=file.relative_to(run_dir).as_posix())
    if not kernels:
        return (), ()
    document = GeneratedDocument(kernels=tuple(kernels.values()))
    path = write_json(out_dir / GENERATED_FILE, document)
    return (StageFile(role="generated_kernels", path=path),), (_section(document),)


def find_kernels(code: str, nodes: Mapping[str, str]) -> Iterator[tuple[GeneratedKernel, str]]:
    """The kernels defined in one file of inductor's cache, and their source; `nodes` are modules by operation."""
    for found in _KERNEL.finditer(code):
        name = found["name"]
        named_above = _told_above(code, found.start())
        kernel = GeneratedKernel(
            name=name,
            language=found["language"],
            operators=_words(named_above["operators"]) if named_above is not None else _words_of(name),
            file="",
            modules=_modules(named_above["nodes"] or "", nodes) if named_above is not None else (),
        )
        yield kernel, found["source"]


def read_nodes(path: Path) -> dict[str, str]:
    """The module of each operation, where all graphs agree on it."""
    found: dict[str, set[str]] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            graph = msgspec.json.decode(line, type=dict[str, str])
        except msgspec.DecodeError:
            # The last line of a stage that was killed.
            continue
        for node, module in graph.items():
            found.setdefault(node, set()).add(module)
    return {node: modules.pop() for node, modules in found.items() if len(modules) == 1}


def _told_above(code: str, start: int) -> re.Match[str] | None:
    """The comment above a kernel's definition that says what is in it."""
    above = itertools.takewhile(lambda line: line.startswith("#"), reversed(code[:start].splitlines()))
    return next((found for line in above if (found := _OPERATORS.search(line))), None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _words_of(name: str) -> tuple[str, ...]:
    """The operators in a kernel's own name."""
    words = re.sub(r"^(triton_\w+?_fused|cpp_fused)_|_\d+$", "", name)
    return (words,) if words else ()


def _modules(names: str, nodes: Mapping[str, str]) -> tuple[str, ...]:
    """One kernel runs for every layer alike, so the number of a layer says nothing."""
    known = (nodes[name] for name in _words(names) if name in nodes)
    return tuple(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module) for module in known))


def _section(document: GeneratedDocument) -> Section:
    """A section with every generated kernel and a link to its source."""
    # Of C++ kernels inductor does not say which operations are in them.
    has_modules = any(kernel.modules for kernel in document.kernels)
    rows = tuple(
        (
            kernel.name,
            kernel.language,
            ", ".join(kernel.operators),
            *([", ".join(kernel.modules) or "not known"] if has_modules else []),
        )
        for kernel in document.kernels
    )
    columns = ("kernel", "language", "made of", *(["modules"] if has_modules else []))
    return Section(
        title="Generated kernels",
        paragraphs=("torch.compile wrote these kernels for the decode step; their source opens below.",),
        tables=(SectionTable(columns=columns, rows=rows),),
        links=tuple(Link(text=kernel.name, target=kernel.file) for kernel in document.kernels[:LINKS_SHOWN]),
    )
