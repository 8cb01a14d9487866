"""Rules of the project that a reviewer would otherwise have to remember."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from llm_perf_opt import plugin
from tests.support.fixtures_dir import REPO

SOURCE = REPO / "src" / "llm_perf_opt"
# Each layer may import from itself and from those left of it.
LAYERS = (
    {"errors", "config", "core", "system", "marks", "__init__"},
    {"capture", "model", "diagnosis", "comparison", "optimize", "profiling", "workload", "serving", "report", "sql"},
    {"pipeline", "planning"},
    {"runners", "children", "commands", "mcp_server", "cli", "completion", "testing", "api", "plugin"},
    {"plugins"},
)
# Inside the second layer: pure parts know nothing of what feeds them, and evidence nothing of its judgement.
FEEDERS = {"profiling", "workload", "serving", "report"}
FORBIDDEN = {
    "capture": {"diagnosis", "comparison", "optimize", *FEEDERS},
    "model": {"capture", "diagnosis", "comparison", "optimize", *FEEDERS},
    "diagnosis": {"comparison", "optimize", *FEEDERS},
    "comparison": {"optimize", *FEEDERS},
    "optimize": FEEDERS,
    "report": {"profiling", "workload"},
    "workload": {"profiling", "report", "serving"},
    "serving": {"report"},
    "profiling": {"serving"},
    "pipeline": {"planning"},
    "sql": {"profiling", "workload"},
}


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _part(module: str) -> str:
    part = f"{module}.".split(".")[1]
    return part if (SOURCE / part).is_dir() or (SOURCE / f"{part}.py").is_file() else "__init__"


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def _module_names(path: Path) -> set[str]:
    """The modules of our package that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # What is imported may be a module itself.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "llm_perf_opt"}


def _imports(path: Path) -> set[str]:
    """The parts of our package a module imports."""
    return {_part(name) for name in _module_names(path)}


def _layer(part: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if part in layer)


# The package itself offers plug-ins names of every layer.
@pytest.mark.parametrize("path", _modules()[1:], ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_imports_only_from_layers_to_its_left(path: Path) -> None:
    relative = path.relative_to(SOURCE)
    part = relative.parts[0].removesuffix(".py")
    wrong = {name for name in _imports(path) if _layer(name) > _layer(part) or name in FORBIDDEN.get(part, set())}
    assert wrong == set()


def test_our_plug_ins_import_nothing_but_the_public_surface_and_themselves() -> None:
    homes = {path for path in (SOURCE / "plugins").iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert {home.name for home in homes} >= {"deepseek_ocr", "energy", "memory"}
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}"
        for home in sorted(homes)
        for path in home.rglob("*.py")
        for name in sorted(_module_names(path))
        if name.removeprefix("llm_perf_opt.plugin").removeprefix(".") not in ("", *plugin.__all__)
        and not name.startswith(f"llm_perf_opt.plugins.{home.name}.")
    ]
    assert wrong == []
    assert [
        str(p.relative_to(SOURCE)) for p in _modules() if "plugins" in _imports(p) and "plugins" not in p.parts
    ] == []


def test_the_packages_of_one_layer_do_not_import_in_a_circle() -> None:
    graph = {part: set[str]() for part in LAYERS[1] | LAYERS[2]}
    for path in _modules():
        part = path.relative_to(SOURCE).parts[0]
        if part in graph:
            graph[part] |= (_imports(path) & graph.keys()) - {part}
    try:
        order = set(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
    assert order == graph.keys()


# Parts of the diagnosis that read a capture and know nothing of scopes, causes and findings.
@pytest.mark.parametrize("part", ["gaps", "host"])
def test_evidence_knows_nothing_of_its_judgement(part: str) -> None:
    home = SOURCE / "diagnosis" / part
    names = {name for path in home.glob("*.py") for name in _module_names(path)}
    assert names
    own = {name for name in names if name.startswith("llm_perf_opt.diagnosis.")}
    assert {name for name in own if name.split(".")[2] != part} == set()


# Of these every module is data's neighbour, found by its name: a cause by its toml file, a family by the model's type.
NAMED_BY_DATA = {"diagnosis/causes"}
# Folders for the PYTHONPATH of other programs: no packages.
PUT_INTO_PROGRAMS = {"profiling/inject", "serving/requests/adapters/inject"}


@pytest.mark.parametrize(
    "home", sorted({path.parent for path in _modules()}), ids=lambda home: str(home.relative_to(SOURCE))
)
def test_a_package_names_every_module_and_sub_package_in_its_init(home: Path) -> None:
    if str(home.relative_to(SOURCE)) in NAMED_BY_DATA | PUT_INTO_PROGRAMS | {"."}:
        return
    text = (home / "__init__.py").read_text(encoding="utf-8") if (home / "__init__.py").is_file() else ""
    names = {path.stem for path in home.glob("*.py")} - {"__init__", "sitecustomize"}
    names |= {path.parent.name for path in home.glob("*/__init__.py")}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_only_one_module_starts_programs() -> None:
    users = [
        str(p.relative_to(SOURCE))
        for p in _modules()
        if re.search(r"^\s*(import|from) subprocess", p.read_text(), re.M)
    ]
    # The launcher of sampled programs is its own program, which imports nothing of ours.
    assert users == ["profiling/launch_sampled.py", "system/process.py"]
    assert _imports(SOURCE / "profiling/launch_sampled.py") == set()


def test_only_the_module_for_tests_needs_pytest_and_nothing_needs_that_module() -> None:
    of_pytest = [p for p in _modules() if re.search(r"^\s*(import|from) _?pytest", p.read_text(), re.M)]
    assert [str(p.relative_to(SOURCE)) for p in of_pytest] == ["testing.py"]
    assert [str(p.relative_to(SOURCE)) for p in _modules() if "testing" in _imports(p)] == []


def test_there_is_one_broad_except_and_no_silent_one() -> None:
    broad: list[str] = []
    for path in _modules():
        for node in _nodes(path):
            if not isinstance(node, ast.ExceptHandler):
                continue
            name = node.type.id if isinstance(node.type, ast.Name) else None
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            if silent or node.type is None or name in ("Exception", "BaseException"):
                broad.append(str(path.relative_to(SOURCE)))
    assert broad == ["pipeline/run.py"]


# What is written here is not a document: texts put in quotes, keys of a signature, settings of a child, a request.
JSON_OF_TEXTS = {
    "config/legacy.py",
    "config/load.py",
    "pipeline/bench/profile_window.py",
    "pipeline/bench/vllm_flags.py",
    "pipeline/compose.py",
    "pipeline/jobs/record.py",
    "pipeline/resume.py",
    "planning/subject.py",
    "profiling/injected.py",
    "profiling/vendor/launch.py",
    "profiling/workload_run.py",
    "system/lock.py",
    "system/process.py",
    "system/secrets/known_secrets.py",
    "system/trust.py",
    "workload/models/compiled_nodes.py",
    "workload/outputs.py",
}


def test_every_writer_of_json_writes_what_other_parsers_read() -> None:
    lax = set()
    for path in _modules():
        for node in _nodes(path):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps")):
                continue
            strict = any(k.arg == "allow_nan" and ast.unparse(k.value) == "False" for k in node.keywords)
            if not strict:
                lax.add(str(path.relative_to(SOURCE)))
    # The manifest's writer tries the strict form first, and writes the other only to take the NaN out.
    assert lax - {"core/manifest.py"} == JSON_OF_TEXTS


# A command and what it runs, a function of the API and its command, modules of plug-ins, and a stage and the builder of
# its command, whose names the founding documents give.
SAME_FILE_NAME = {
    "analyze": {"commands", "diagnosis"},
    "compare": {"api", "commands"},
    "document": {"plugins/energy", "plugins/memory"},
    "load": {"api", "config"},
    "names": {"capture/kernels", "core"},
    "ncu": {"profiling/stages", "profiling/vendor"},
    "nsys": {"profiling/stages", "profiling/vendor"},
    "plan": {"commands", "pipeline"},
    "predict": {"api", "commands"},
    "profile": {"api", "commands"},
    "run": {"commands", "diagnosis", "pipeline"},
    "section": {"plugins/energy", "plugins/memory"},
    "stage": {"core", "plugins/energy", "plugins/memory"},
    "sweep": {"commands", "pipeline"},
    "watcher": {"plugins/memory", "workload"},
}


def test_a_module_has_a_name_of_its_own() -> None:
    homes: dict[str, set[str]] = {}
    for path in _modules():
        if path.stem not in ("__init__", "__main__"):
            homes.setdefault(path.stem, set()).add(str(path.parent.relative_to(SOURCE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == SAME_FILE_NAME


# Fields that hold sentences of ours. Those that hold one of a few words (a verdict, a status) are not text.
SENTENCES = {
    "advice",
    "detail",
    "headline",
    "note",
    "notes",
    "reason",
    "remedy",
    "request_title",
    "sentence",
    "summary",
}
SENTENCES |= {"failure", "title", "warnings"}
TEXT_METHODS = {"endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rpartition"}
TEXT_METHODS |= {"split", "startswith"}
# Its `headline` is a list of devices.
MAY_READ_SENTENCES = {"plugins/energy/stage.py"}


def _is_sentence(node: ast.AST, texts: frozenset[str] = frozenset()) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in SENTENCES) or (
        isinstance(node, ast.Name) and node.id in texts
    )


def _is_word(node: ast.AST) -> bool:
    """A text or a constant of ours, also several of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(map(_is_word, node.elts))
    return (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "") or (
        isinstance(node, ast.Name) and node.id.isupper()
    )


def _names_of_sentences(function: ast.AST) -> frozenset[str]:
    """The variables of a function that hold a sentence, or stand for each of several in turn."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            pairs.append((node.target, node.iter))
        elif isinstance(node, ast.Assign):
            pairs += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.NamedExpr):
            pairs.append((node.target, node.value))
    return frozenset(
        target.id
        for target, value in pairs
        if isinstance(target, ast.Name)
        and _is_sentence(value.value if isinstance(value, ast.Subscript | ast.Starred) else value)
    )


def _decides_on_a_sentence(node: ast.expr, texts: frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in TEXT_METHODS and _is_sentence(node.func.value, texts)
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    is_sentence = [_is_sentence(side, texts) for side in sides]
    if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        return any(is_sentence)
    return any(is_sentence) and any(map(_is_word, sides))


def _decisions_on_sentences(tree: ast.AST) -> set[ast.expr]:
    nodes = list(ast.walk(tree))
    found = {node for node in nodes if isinstance(node, ast.expr) and _decides_on_a_sentence(node)}
    for function in nodes:
        if isinstance(function, ast.FunctionDef) and (texts := _names_of_sentences(function)):
            found |= {n for n in ast.walk(function) if isinstance(n, ast.expr) and _decides_on_a_sentence(n, texts)}
    return found


def test_no_decision_depends_on_our_own_text() -> None:
    found = {
        f"{relative}:{node.lineno}: {ast.unparse(node)}"
        for path in _modules()
        if (relative := str(path.relative_to(SOURCE))) not in MAY_READ_SENTENCES
        for node in _decisions_on_sentences(_nodes(path)[0])
    }
    assert found == set()


@pytest.mark.parametrize(
    "body",
    [
        "return run.reason == 'lost'",
        "return [text for text in run.warnings if not text.startswith(over)]",
        "for text in run.notes:\n        if 'lost' in text: return text",
        "last = run.warnings[-1]\n    return last == LOST",
    ],
)
def test_a_decision_on_a_text_is_found_through_a_variable_too(body: str) -> None:
    assert _decisions_on_sentences(ast.parse(f"def chosen(run, over):\n    {body}"))
    assert not _decisions_on_sentences(ast.parse("def said(run):\n    return [text for text in run.warnings if text]"))


EDITED = re.compile(r"(View|Shown\w*|Headline\w*|Finding|FindingRecord|Diagnosis|Claim|Verdict|Tile)$")


def _edits_what_it_is_given(function: ast.FunctionDef) -> bool:
    """Whether a function replaces fields of a finding or a view it takes, and returns one."""
    given = {
        argument.arg: ast.unparse(argument.annotation).strip("\"'")
        for argument in [*function.args.args, *function.args.kwonlyargs]
        if argument.annotation is not None
    }
    returned = "" if function.returns is None else ast.unparse(function.returns)
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("replace", "evolve")
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Name)
        and EDITED.search(kind := given.get(node.args[0].id, "")) is not None
        and kind in returned
        for node in ast.walk(function)
    )


def test_no_function_takes_a_finding_or_a_view_and_returns_an_edited_one() -> None:
    edits = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.name}"
        for path in _modules()
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef) and _edits_what_it_is_given(node)
    ]
    assert edits == []


def test_the_layers_of_the_documentation_are_those_that_are_checked() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    line = text.partition("## Layers")[2].partition("Inside the second layer")[0]
    documented = [
        set(re.findall(r"\w+", part)) for part in re.findall(r"`([^`]*)`", line) if "," in part or part == "plugins"
    ]
    assert documented == [layer - {"__init__"} for layer in LAYERS]
    assert set().union(*LAYERS) >= {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}


# Of the repository as a whole: its documents, rules, schemas, releases and workflows.
OF_THE_REPOSITORY = {
    "action",
    "docs",
    "gpu_drill",
    "guards",
    "marks",
    "nightly",
    "prose",
    "public_names",
    "release",
    "schemas",
    "stability",
}


def test_unit_tests_lie_in_folders_named_as_packages() -> None:
    home = REPO / "tests" / "unit"
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert {path.parent.name for path in home.glob("*/test_*.py")} <= packages
    assert {path.stem.removeprefix("test_") for path in home.glob("test_*.py")} <= OF_THE_REPOSITORY


def test_nothing_is_called_a_helper() -> None:
    names = {p.stem for p in _modules()}
    assert names & {"utils", "util", "helpers", "common", "misc", "manager"} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["profile", "--help"],
        ["profile", "--cfg", "job", "experiment=demo"],
        ["profile", "experiment=demo", "run.dry_run=true"],
        ["doctor"],
        ["predict", "model=llama3_8b", "hardware=h200"],
        ["query", "--schema"],
        ["analyze", "--help"],
        ["compare", "--help"],
        ["bench", "--help"],
        ["optimize", "--help"],
        ["runs", "."],
    ],
    ids=" ".join,
)
def test_a_command_that_runs_no_model_imports_no_torch(args: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from llm_perf_opt.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as error:\n    code = error.code\n"
        "print('\\nLOADED', code, sorted({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] in ("LOADED 0 []", "LOADED None []"), done.stderr


def test_top_level_help_imports_no_hydra_either(tmp_path: Path) -> None:
    code = "import sys; from llm_perf_opt.cli import main; main(['--help']); print('hydra' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


# Names still used for two things: rows of the second reader of torch traces, and a model alongside its architecture.
TWO_MEANINGS = {"KernelRow", "ModuleRow", "OcrModel", "OperatorRow"}


def test_no_name_is_used_for_two_public_classes() -> None:
    places: dict[str, list[str]] = {}
    for path in _modules():
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in TWO_MEANINGS} == {}


# What stays is the world outside: raw configuration, a model's config.json, the environment, rows of a trace.
MOST_DICTS = 18


def test_few_functions_return_a_dict_where_a_record_would_say_what_it_holds() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.name}"
        for path in _modules()
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and re.search(r"\b(dict|Mapping)\[str, (Any|object)\]", ast.unparse(node.returns))
    ]
    assert len(found) <= MOST_DICTS, "\n".join(found)
