"""The kernels torch.compile wrote for a run: their source, kept beside the results and opened from a kernel's row."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.core.documents import GeneratedDocument, GeneratedKernel
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import GENERATED_FILE, INDUCTOR_DIR
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
_OPERATORS = re.compile(r"Original ATen: \[(?P<operators>[^\]]*)\]")


def collect_generated(run_dir: Path, out_dir: Path) -> tuple[tuple[StageFile, ...], tuple[Section, ...]]:
    """Copy the source of every generated kernel into the stage's directory; nothing where nothing was compiled."""
    cache = run_dir / "tmp" / INDUCTOR_DIR
    kernels: dict[str, GeneratedKernel] = {}
    for path in sorted(cache.rglob("*.py")) if cache.is_dir() else ():
        if path.stat().st_size > LARGEST_BYTES:
            continue
        for kernel, source in find_kernels(path.read_text(encoding="utf-8", errors="replace")):
            if kernel.name in kernels:
                continue
            file = out_dir / FOLDER / f"{kernel.name[:120]}{_ENDINGS[kernel.language]}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
            kernels[kernel.name] = GeneratedKernel(
                name=kernel.name,
                language=kernel.language,
                operators=kernel.operators,
                file=file.relative_to(run_dir).as_posix(),
            )
    if not kernels:
        return (), ()
    document = GeneratedDocument(kernels=tuple(kernels.values()))
    path = write_json(out_dir / GENERATED_FILE, document)
    return (StageFile(role="generated_kernels", path=path),), (_section(document),)


def find_kernels(code: str) -> Iterator[tuple[GeneratedKernel, str]]:
    """The kernels defined in one file of inductor's cache, and their source."""
    for found in _KERNEL.finditer(code):
        name = found["name"]
        kernel = GeneratedKernel(
            name=name, language=found["language"], operators=_operators(code, found.start(), name), file=""
        )
        yield kernel, found["source"]


def _operators(code: str, start: int, name: str) -> tuple[str, ...]:
    """The operators a kernel stands for: in the comment above its definition, else in its own name."""
    above = itertools.takewhile(lambda line: line.startswith("#"), reversed(code[:start].splitlines()))
    told = next((found for line in above if (found := _OPERATORS.search(line))), None)
    if told is not None:
        return tuple(dict.fromkeys(word.strip() for word in told["operators"].split(",") if word.strip()))
    words = re.sub(r"^(triton_\w+?_fused|cpp_fused)_|_\d+$", "", name)
    return (words,) if words else ()


def _section(document: GeneratedDocument) -> Section:
    """A section with every generated kernel and a link to its source."""
    rows = tuple((kernel.name, kernel.language, ", ".join(kernel.operators)) for kernel in document.kernels)
    return Section(
        title="Generated kernels",
        paragraphs=("torch.compile wrote these kernels for the decode step; their source opens below.",),
        tables=(SectionTable(columns=("kernel", "language", "made of"), rows=rows),),
        links=tuple(Link(text=kernel.name, target=kernel.file) for kernel in document.kernels[:LINKS_SHOWN]),
    )
