"""Sampled stacks of a program become cells of its time ledger, each with the user's function and line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.core.documents import (
    HostCompilation,
    HostDocument,
    HostGarbage,
    HostGil,
    HostGrowth,
    HostMemory,
    HostObserved,
    HostRow,
    HostThread,
    HostThreads,
)
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.cause import cut, load_causes
from llm_perf_opt.diagnosis.diagnose import judge
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Program
from llm_perf_opt.diagnosis.facts import HostFacts, Known, Unknown
from llm_perf_opt.diagnosis.host.environment import variable_effects
from llm_perf_opt.diagnosis.host.owners import IMPORTS, busiest, host_rows, place_of
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack, of_program, read_stacks, without_parent
from llm_perf_opt.diagnosis.host_scope import program_scope
from llm_perf_opt.diagnosis.ledger import is_in
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.profiling.sampled import live_notes
from tests.support.nsys_builder import Export
from tests.support.report_facts import facts as run_facts

LIB = "/usr/lib/python3.11"
SITE = f"{LIB}/site-packages"
MAIN = Frame(function="<module>", file="/home/slow.py", line=30)
PLAIN = Program(framework="other", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=())


def stack(*frames: Frame, samples: int = 1, process: int = 7, thread: str = "MainThread") -> Stack:
    return Stack(processes=(process,), thread=thread, is_main=thread == "MainThread", frames=frames, samples=samples)


def lines(**known: str) -> Callable[[str, int], str]:
    return lambda file, line: known.get(f"L{line}", "") if file.startswith("/home/") else ""


def test_a_record_of_py_spy_is_read_with_its_processes_thread_and_frames() -> None:
    text = (
        'process 5:"python launch.py";process 7:"python -c import a;\nrun("x")";thread (7): MainThread;'
        "<module> (/home/slow.py:30);tidy (/home/slow.py:7) 12\n"
        'process 5:"python launch.py";thread (5): MainThread;wait (subprocess.py:9) 40\n'
    )
    assert read_stacks(text) == (
        Stack(
            processes=(5, 7),
            thread="MainThread",
            is_main=True,
            frames=(MAIN, Frame(function="tidy", file="/home/slow.py", line=7)),
            samples=12,
        ),
        Stack(
            processes=(5,),
            thread="MainThread",
            is_main=True,
            frames=(Frame(function="wait", file="subprocess.py", line=9),),
            samples=40,
        ),
    )


def test_a_record_that_was_cut_off_is_left_out() -> None:
    assert read_stacks('process 5:"p";thread (5): MainThread;tidy (a.py:7)') == ()


def test_the_program_is_the_first_process_that_shows_python() -> None:
    mine = Stack(processes=(5, 7), thread="MainThread", is_main=True, frames=(MAIN,), samples=3)
    child = Stack(processes=(5, 7, 9), thread="MainThread", is_main=True, frames=(MAIN,), samples=9)
    assert of_program((child, mine)) == (7, (child, mine))
    assert of_program(()) == (0, ())


@pytest.mark.parametrize(
    ("leaf", "line", "cell"),
    [
        (Frame(function="tidy", file="/home/slow.py", line=7), "total += ord(c)", "host.work.python"),
        (Frame(function="poll", file="/home/slow.py", line=7), "time.sleep(0.1)", "host.wait.sleep"),
        (Frame(function="update", file="/home/slow.py", line=7), "guard.acquire()", "host.wait.lock"),
        (Frame(function="update", file="/home/slow.py", line=7), "with self.lock:", "host.wait.lock"),
        (Frame(function="fetch", file="/home/slow.py", line=7), "data = client.recv(64)", "host.wait.network"),
        (Frame(function="store", file="/home/slow.py", line=7), "os.fsync(file.fileno())", "host.disk"),
        (Frame(function="sample", file="/home/slow.py", line=7), "np.argsort(logits)", "host.work.operators"),
        (Frame(function="step", file="/home/slow.py", line=7), "gc.collect()", "host.work.gc"),
        (Frame(function="Popen._try_wait", file=f"{LIB}/subprocess.py", line=9), "", "host.wait.process"),
        (Frame(function="Condition.wait", file=f"{LIB}/threading.py", line=9), "", "host.wait.lock"),
        (Frame(function="JSONEncoder.iterencode", file=f"{LIB}/json/encoder.py", line=9), "", "host.work.json"),
        (Frame(function="Logger._log", file=f"{LIB}/logging/__init__.py", line=9), "", "host.work.logging"),
        (Frame(function="sub", file=f"{LIB}/re/__init__.py", line=9), "", "host.work.regex"),
        (Frame(function="fetch", file=f"{SITE}/torch/utils/data/_utils/fetch.py", line=9), "", "host.data_loading"),
        (Frame(function="_shutdown", file=f"{LIB}/threading.py", line=9), "", "host.exit"),
    ],
)
def test_a_stack_belongs_to_the_cell_of_what_its_leaf_does(leaf: Frame, line: str, cell: str) -> None:
    (row,) = host_rows([stack(MAIN, leaf)], lines(L7=line))
    assert row.cell == cell


def test_the_users_function_owns_what_a_library_does_for_it() -> None:
    step = Frame(function="step", file="/home/slow.py", line=12)
    again = Frame(function="step", file="/home/slow.py", line=13)
    dumps = Frame(function="dumps", file=f"{LIB}/json/__init__.py", line=238)
    rows = host_rows(
        [stack(MAIN, step, dumps, samples=30), stack(MAIN, again, samples=4), stack(MAIN, again, dumps, samples=2)],
        lines(L12="json.dumps(state)"),
    )
    assert rows == (
        HostRow(
            cell="host.work.json",
            function="step",
            file="/home/slow.py",
            line=12,
            leaf="dumps() at json/__init__.py:238",
            text="json.dumps(state)",
            samples=32,
        ),
        HostRow(cell="host.work.python", function="step", file="/home/slow.py", line=13, leaf="", text="", samples=4),
    )


def test_a_stack_that_was_cut_off_in_a_generator_gets_the_callers_it_mostly_has() -> None:
    save = Frame(function="save", file="/home/slow.py", line=5)
    dumps = Frame(function="dumps", file=f"{LIB}/json/__init__.py", line=238)
    encode = Frame(function="_iterencode_dict", file=f"{LIB}/json/encoder.py", line=412)
    wait = Frame(function="wait", file=f"{LIB}/threading.py", line=3)
    rows = host_rows(
        [stack(MAIN, save, dumps, encode, samples=4), stack(encode, samples=5), stack(wait, samples=1)], lines()
    )
    assert [(row.function, row.samples) for row in rows] == [("save", 9), ("wait", 1)]


def test_an_import_is_owned_by_the_package_it_loads() -> None:
    frozen = Frame(function="_find_and_load", file="<frozen importlib._bootstrap>", line=1)
    torch = Frame(function="<module>", file=f"{SITE}/torch/__init__.py", line=40)
    numpy = Frame(function="<module>", file=f"{SITE}/numpy/__init__.py", line=40)
    (row,) = host_rows([stack(MAIN, frozen, torch, frozen, numpy)], lines())
    assert (row.cell, row.function, row.file) == ("host.startup.imports", "torch", "")


def test_an_import_of_a_module_of_the_programs_own_is_owned_by_what_the_module_does() -> None:
    frozen = Frame(function="_find_and_load", file="<frozen importlib._bootstrap>", line=1)
    build = Frame(function="build_table", file="/home/tables.py", line=5)
    numpy = Frame(function="sort", file=f"{SITE}/numpy/core.py", line=4)
    table = Frame(function="<module>", file="/home/tables.py", line=9)
    (row,) = host_rows([stack(MAIN, frozen, table, build, numpy)], lines())
    assert (row.cell, row.function, row.line, row.leaf) == ("host.startup.imports", "build_table", 5, "slow.py:30")
    (row,) = host_rows([stack(MAIN, frozen, table, frozen, numpy)], lines())
    assert (row.cell, row.function) == ("host.startup.imports", "numpy")


def test_an_array_written_as_text_is_no_array_operation_however_deep_it_is() -> None:
    step = Frame(function="step", file="/home/slow.py", line=7)
    deep = [Frame(function=name, file=f"{SITE}/torch/_tensor_str.py", line=1) for name in ("_str", "_a", "_b", "_c")]
    operator = Frame(function="sum", file=f"{SITE}/torch/functional.py", line=1)
    (row,) = host_rows([stack(MAIN, step, *deep, operator)], lines())
    assert (row.cell, row.function) == ("host.work.text.arrays", "step")


def test_an_import_of_which_only_the_programs_line_is_known_is_owned_by_the_package_it_names() -> None:
    (row,) = host_rows([stack(MAIN)], lines(L30="from torch.nn import functional as F"))
    assert (row.cell, row.function, row.file) == ("host.startup.imports", "torch", "")


def test_a_comprehension_is_named_by_the_function_around_it() -> None:
    tidy = Frame(function="tidy", file="/home/slow.py", line=7)
    (row,) = host_rows([stack(MAIN, tidy, Frame(function="<listcomp>", file="/home/slow.py", line=7))], lines())
    assert place_of(row.function, row.file, row.line) == "tidy() at slow.py:7"


def test_threads_that_only_wait_are_not_busy() -> None:
    work = Frame(function="decode", file="/home/slow.py", line=7)
    wait = Frame(function="Event.wait", file=f"{LIB}/threading.py", line=9)
    found = busiest([stack(work, samples=5, thread="A"), stack(wait, samples=9, thread="B")], lines())
    assert found == {"7/A": (5, "decode() at slow.py:7")}


def document(*rows: HostRow, cpu_s: float | None = 2.0, gil: HostGil | None = None) -> HostDocument:
    return HostDocument(
        sampler="py-spy",
        rate_hz=100,
        wall_s=2.0,
        samples=sum(row.samples for row in rows),
        cpu_s=cpu_s,
        rows=rows,
        gil=gil,
    )


def row(cell: str, samples: int, function: str = "tidy") -> HostRow:
    return HostRow(cell=cell, function=function, file="/home/slow.py", line=3, leaf="", text="", samples=samples)


CLEAN = Known(value=1000.0, unit="ms", how="clean pass", source="clean.json")


def facts(found: HostDocument) -> HostFacts:
    return HostFacts(samples=found, source="host_samples/host_samples.json", wall=CLEAN)


def test_the_ledger_splits_the_clean_wall_time_as_the_samples_are() -> None:
    scope = program_scope(facts(document(row("host.work.python", 150), row("host.startup.imports", 30))))
    assert scope is not None
    cells = {cell.id: cell.time_ns for cell in scope.ledger.cells}
    assert (scope.wall_ns, scope.clean) == (1_000_000_000, True)
    assert cells == {
        "host.work.python": 750_000_000,
        "host.startup.imports": 150_000_000,
        "host.unsampled": 100_000_000,
    }


def test_the_first_finding_names_function_and_line_and_promises_no_factor() -> None:
    scope = program_scope(facts(document(row("host.work.python", 186), row("host.wait.sleep", 14, "nap"))))
    assert scope is not None
    found = judge([scope], PLAIN)
    assert [(f.rule, f.title, f.max_gain) for f in found] == [
        ("host_python", "Python on the host: 93 % of the program in tidy() at slow.py:3", None),
        ("host_sleep", "Sleep: 7.00 % of the program in nap() at slow.py:3", None),
    ]


def test_findings_are_ordered_by_what_one_change_addresses() -> None:
    # Python in several functions is several things to change, serialisation is one.
    spread = (row("host.work.python", 50, "a"), row("host.work.python", 40, "b"), row("host.work.json", 60, "c"))
    scope = program_scope(facts(document(*spread, row("host.work.json", 20, "d"))))
    assert scope is not None
    assert [f.title for f in judge([scope], PLAIN)] == [
        "Serialisation (JSON, pickle): 40 % of the program, 30 % in c() at slow.py:3",
        "Python on the host: 45 % of the program, 25 % in a() at slow.py:3",
    ]


def test_a_function_that_does_a_little_of_everything_counts_as_a_whole() -> None:
    parts = (row("host.work.operators", 50, "sample"), row("host.work.random", 40, "sample"))
    scope = program_scope(facts(document(row("host.work.sort", 60, "rank"), *parts)))
    assert scope is not None
    assert [f.rule for f in judge([scope], PLAIN)] == ["host_operators", "host_sort", "host_random"]


def test_a_line_that_uses_no_processor_time_is_a_wait() -> None:
    scope = program_scope(facts(document(row("host.work.python", 200), cpu_s=0.1)))
    assert scope is not None and [cell.id for cell in scope.ledger.cells] == ["host.wait.other"]


def test_work_while_other_threads_hold_the_gil_is_a_wait_for_it() -> None:
    gil = HostGil(main_share=0.25, others_share=0.75, holder="heartbeat() at slow.py:9", source="gil.txt")
    scope = program_scope(facts(document(row("host.work.python", 200), gil=gil)))
    assert scope is not None
    assert {cell.id: (cell.time_ns, cell.owner[0]) for cell in scope.ledger.cells} == {
        "host.wait.gil": (750_000_000, "heartbeat() at slow.py:9"),
        "host.work.python": (250_000_000, "tidy() at slow.py:3"),
    }


def test_threads_that_hold_the_gil_for_little_of_the_time_change_nothing() -> None:
    gil = HostGil(main_share=0.4, others_share=0.2, holder="heartbeat() at slow.py:9", source="gil.txt")
    scope = program_scope(facts(document(row("host.work.python", 200), gil=gil)))
    assert scope is not None and [cell.id for cell in scope.ledger.cells] == ["host.work.python"]


def test_without_a_clean_time_the_sampled_pass_is_the_wall_time() -> None:
    host = HostFacts(samples=document(row("host.work.python", 200)), source="s", wall=Unknown(reason="it was ended"))
    scope = program_scope(host)
    assert scope is not None and (scope.wall_ns, scope.clean) == (2_000_000_000, False)


def test_a_few_samples_make_no_scope() -> None:
    found = document(row("host.work.python", 19))
    assert program_scope(facts(found)) is None
    # Of a program that was over after 0.3 s they are most of it.
    assert program_scope(facts(replace(found, wall_s=0.3))) is not None


@pytest.mark.parametrize(("samples", "rules"), [(4, []), (5, ["host_imports"])])
def test_a_share_of_a_few_samples_is_no_finding(samples: int, rules: list[str]) -> None:
    found = document(row("host.startup.imports", samples), row("host.startup.interpreter", 40))
    scope = program_scope(facts(replace(found, wall_s=0.45)))
    assert scope is not None
    assert [f.rule for f in judge([scope], PLAIN) if f.rule == "host_imports"] == rules


def test_every_cell_of_the_patterns_has_a_cause() -> None:
    from llm_perf_opt.diagnosis.host.owners import _refinements, _rules

    claimed = {cell for cause in load_causes() if "program" in cause.scopes for cell in cause.cells}
    cells = {rule.cell for rule in (*_rules(), *_refinements())}
    assert {cell for cell in cells if not any(is_in(cell, one) for one in claimed)} == set()


ARRAY = "arg numpy.ndarray float64 200000 elements (200000,)"
VECTOR = "arg torch.Tensor float32 cpu 8 elements (8,)"


@pytest.mark.parametrize(
    ("names", "cell"),
    [
        (("copy.deepcopy",), "host.work.copy"),
        (("hashlib.sha256().update",), "host.work.hash"),
        (("zlib.compress",), "host.work.compress"),
        (("random.gauss", "loop"), "host.work.random"),
        (("numpy.random.default_rng().normal",), "host.work.random"),
        (("list.sort",), "host.work.sort"),
        (("pandas.DataFrame().iterrows",), "host.work.dataframe"),
        (("for pandas.DataFrame().iterrows()",), "host.work.dataframe"),
        (("datetime.datetime.strptime",), "host.work.parse"),
        (("+= bytes", "loop"), "host.work.text"),
        (("in list",), "host.work.search"),
        (("sqlite3.connect().commit",), "host.work.database"),
        (("PIL.Image.open().resize",), "host.work.image"),
        (("numpy.argsort", ARRAY), "host.work.operators"),
        (("@", ARRAY), "host.work.float64"),
        (("torch.Tensor().sum", VECTOR), "host.work.small_tensors"),
        (("torch.Tensor().item", VECTOR), "host.work.item"),
        (("[] numpy.ndarray()", "loop", ARRAY), "host.work.elements"),
        (("numpy.concatenate", "loop"), "host.work.growing_arrays"),
        (("numpy.zeros",), "host.work.allocation"),
        (("torch.isfinite",), "host.work.checks"),
        (("threading.Event().wait",), "host.wait.lock"),
        (("concurrent.futures.Future().result",), "host.wait.lock"),
        (("subprocess.run",), "host.wait.process"),
        (("requests.get",), "host.wait.network"),
        (("busy wait", "threading.Event().is_set"), "host.work.busy_wait"),
        (("with asyncio.Semaphore()",), "host.wait.task"),
        (("asyncio.Queue().get",), "host.wait.task"),
        (("asyncio.open_connection()[].readline",), "host.wait.network"),
        (("fcntl.flock",), "host.wait.lock.file"),
        (("torch.nn.Module()()", "arg torch.nn.Module float64 5000 parameters"), "host.work.float64"),
        (("torch.Tensor().backward", "arg torch.Tensor float64 cpu 1 elements ()"), "host.work.float64"),
        (("torch.nn.Module()()", VECTOR, "arg torch.nn.Module float32 3200000 parameters"), "host.work.operators"),
        (("tidy",), "host.work.python"),
    ],
)
def test_what_a_line_calls_says_its_cell(names: tuple[str, ...], cell: str) -> None:
    leaf = Frame(function="work", file="/home/slow.py", line=7)
    (row,) = host_rows([stack(MAIN, leaf)], lines(), lambda file, function, line: names)
    assert row.cell == cell


def observed(
    *, garbage_s: float = 0.0, compilations: int = 0, threads: int | None = None, waited_s: float = 0.0, flag: str = ""
) -> HostObserved:
    again = HostCompilation(
        owner="score() at slow.py:9", count=compilations, total_s=0.5, reason="0/1: size", failed=""
    )
    return HostObserved(
        environment={},
        garbage=HostGarbage(
            count=3, total_s=garbage_s, longest_s=0.1, owner="build() at slow.py:5" if garbage_s else ""
        ),
        compilations=(again,) if compilations else (),
        threads=HostThreads(python=1, all=1, torch=threads, processors=2, ran_s=1.0, waited_s=waited_s),
        memory=HostMemory(seconds=(), resident_bytes=(), peak_bytes=0, grew=()),
        flags=(flag,) if flag else (),
    )


@pytest.mark.parametrize(
    ("cell", "seen", "cpu_s", "cells"),
    [
        # Of two seconds of processor time half a second went into pauses.
        ("host.work.python", observed(garbage_s=0.5), 2.0, {"host.work.gc.automatic": 50, "host.work.python": 150}),
        ("host.startup.compile", observed(compilations=6), 2.0, {"host.work.recompile": 200}),
        ("host.startup.compile", observed(compilations=2), 2.0, {"host.startup.compile": 200}),
        ("host.work.operators", observed(threads=1), 2.0, {"host.work.one_thread": 200}),
        ("host.work.operators", observed(threads=2), 2.0, {"host.work.operators": 200}),
        (
            "host.work.operators",
            observed(threads=8, waited_s=1.0),
            2.0,
            {"host.wait.cpu": 100, "host.work.operators": 100},
        ),
        ("host.work.operators", observed(flag="anomaly_mode"), 2.0, {"host.work.checks": 200}),
        ("host.work.operators.generation", observed(flag="no_kv_cache"), 2.0, {"host.work.no_cache": 200}),
        ("host.work.operators", observed(flag="no_kv_cache"), 2.0, {"host.work.operators": 200}),
        # Little processor time is a wait, unless it had to wait for its turn.
        ("host.work.python", observed(), 0.2, {"host.wait.other": 200}),
        ("host.work.python", observed(waited_s=1.5), 0.2, {"host.work.python": 200}),
    ],
)
def test_what_a_look_from_inside_saw_changes_the_cells(
    cell: str, seen: HostObserved, cpu_s: float, cells: dict[str, int]
) -> None:
    found = replace(document(row(cell, 200), cpu_s=cpu_s), observed=seen)
    scope = program_scope(facts(found))
    assert scope is not None
    assert {one.id: one.count for one in scope.ledger.cells} == cells


def test_samples_that_were_missed_for_want_of_a_processor_are_no_part_of_the_program() -> None:
    scope = program_scope(facts(replace(document(row("host.work.python", 100)), fell_behind=True)))
    assert scope is not None and [cell.id for cell in scope.ledger.cells] == ["host.work.python"]


def test_a_forked_child_does_not_show_its_parents_frames() -> None:
    fork = Frame(function="Popen._launch", file=f"{LIB}/multiprocessing/popen_fork.py", line=66)
    work = Frame(function="work", file="/home/slow.py", line=9)
    assert without_parent(stack(MAIN, fork, work)).frames == (work,)
    assert without_parent(stack(MAIN, work)).frames == (MAIN, work)


def test_variables_that_change_the_speed_are_told_with_their_effect() -> None:
    given = {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "8", "NCCL_DEBUG": "WARN"}
    told = variable_effects(given, 8)
    assert [text.partition(":")[0] for text in told] == ["CUDA_LAUNCH_BLOCKING=1", "OMP_NUM_THREADS=1"]
    assert told[1] == "OMP_NUM_THREADS=1: array operations use 1 of 8 processors"
    assert variable_effects({"OMP_NUM_THREADS": "64"}, 8) == (
        "OMP_NUM_THREADS=64: 64 threads share 8 processors and disturb each other",
    )


def test_a_look_from_inside_tells_switches_a_busy_machine_and_memory() -> None:
    seen = replace(
        observed(flag="deterministic", waited_s=3.0),
        memory=HostMemory(
            seconds=(0.0,),
            resident_bytes=(1 << 30,),
            peak_bytes=1 << 30,
            grew=(HostGrowth(owner="load() at slow.py:3", grown_bytes=900 << 20), HostGrowth(owner="b", grown_bytes=9)),
        ),
    )
    told = live_notes(seen, wall_s=4.0)
    assert [text.partition(" ")[0] for text in told] == ["torch.use_deterministic_algorithms", "its", "host"]
    assert told[2].endswith("it grew most by 944 MB in load() at slow.py:3")
    assert live_notes(observed(), wall_s=4.0) == live_notes(None, wall_s=4.0) == ()


@pytest.mark.parametrize(("work", "first"), [(8, "host_imports"), (40, "host_python")])
def test_a_program_that_does_little_but_start_is_told_of_its_start_first(work: int, first: str) -> None:
    scope = program_scope(facts(document(row("host.work.python", work), row("host.startup.imports", 192 - work))))
    assert scope is not None
    assert judge([scope], PLAIN)[0].rule == first


def test_a_wait_for_threads_that_take_turns_in_the_interpreter_is_a_wait_for_it() -> None:
    gil = HostGil(main_share=0.0, others_share=0.95, holder="work() at slow.py:9", source="gil.txt")
    threads = tuple(HostThread(name=f"7/{n}", samples=190, owner="work() at slow.py:9") for n in range(2))
    found = replace(document(row("host.wait.lock", 200), gil=gil), threads=threads)
    scope = program_scope(facts(found))
    assert scope is not None
    assert [(cell.id, cell.owner[0]) for cell in scope.ledger.cells] == [("host.wait.gil", "work() at slow.py:9")]
    alone = program_scope(facts(replace(found, threads=threads[:1])))
    assert alone is not None and [cell.id for cell in alone.ledger.cells] == ["host.wait.lock"]


def test_threads_that_took_turns_while_the_main_thread_waited_count_by_that_time() -> None:
    gil = HostGil(main_share=0.25, others_share=0.61, holder="work() at slow.py:9", source="gil.txt")
    threads = tuple(HostThread(name=f"7/{n}", samples=140, owner="work() at slow.py:9") for n in range(2))
    found = replace(document(row("host.wait.lock", 150), row("host.work.python", 50), gil=gil), threads=threads)
    scope = program_scope(facts(found))
    assert scope is not None and scope.ledger.ns("host.wait.gil") >= 750_000_000


@pytest.mark.parametrize(
    ("samples", "cells"), [(60, {"host.work.python"}), (190, {"host.work.python", "host.wait.cpu"})]
)
def test_threads_wait_for_each_other_only_where_more_work_at_once_than_there_are_processors(
    samples: int, cells: set[str]
) -> None:
    threads = tuple(HostThread(name=f"7/{n}", samples=samples, owner="work() at slow.py:9") for n in range(3))
    found = replace(document(row("host.work.python", 200)), threads=threads, observed=observed(waited_s=2.0))
    scope = program_scope(facts(found))
    assert scope is not None and {cell.id for cell in scope.ledger.cells} == cells


def test_what_loads_from_files_in_a_loop_of_the_caller_is_loaded_again() -> None:
    def names(file: str, function: str, line: int) -> tuple[str, ...]:
        return ("handle", "loop") if (function, line) == ("<module>", 30) else ("torch.load",)

    handle = Frame(function="handle", file="/home/slow.py", line=16)
    make = Frame(function="make_model", file="/home/slow.py", line=7)
    load = Frame(function="load", file=f"{SITE}/torch/serialization.py", line=9)
    init = Frame(function="kaiming_uniform_", file=f"{SITE}/torch/nn/init.py", line=9)
    other = Frame(function="<module>", file="/home/slow.py", line=2)
    again = host_rows([stack(MAIN, handle, load), stack(MAIN, handle, make, init)], lines(), names)
    assert [(row.cell, row.function) for row in again] == [
        ("host.work.reload", "handle"),
        ("host.work.reload", "make_model"),
    ]
    once = host_rows([stack(other, handle, load), stack(MAIN, make, init)], lines(), names)
    assert {row.cell for row in once} == {"host.startup.model"}


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("host.work.gc.automatic", "gc.set_threshold"),
        ("host.work.gc", "call gc.collect() less often"),
        ("host.data_loading.workers", "the workers cannot keep up"),
        ("host.data_loading", "load and prepare batches ahead"),
        ("host.wait.process.start", "starting a process costs milliseconds"),
        ("host.wait.process.pickle", "send less"),
        ("host.exit", "os._exit(0)"),
        ("host.work.operators.generation", "generate() computes"),
        ("host.work.no_cache", "leave out use_cache=False"),
    ],
)
def test_the_fix_is_that_of_the_cell_with_most_of_the_time(cell: str, words: str) -> None:
    scope = program_scope(facts(document(row(cell, 200))))
    assert scope is not None
    (finding,) = judge([scope], PLAIN)
    assert words in finding.remedy


def test_operators_of_a_call_of_generate_have_a_cell_of_their_own() -> None:
    call = Frame(function="GenerationMixin.generate", file=f"{SITE}/transformers/generation/utils.py", line=9)
    leaf = Frame(function="Linear.forward", file=f"{SITE}/torch/nn/modules/linear.py", line=9)
    rows = host_rows([stack(MAIN, call, leaf), stack(MAIN, leaf, samples=2)], lines())
    assert [row.cell for row in rows] == ["host.work.operators", "host.work.operators.generation"]


def test_the_evidence_of_a_wait_names_what_it_waits_for_in_full() -> None:
    told = "meanwhile a child process: augment_and_normalise() at a_module_with_a_long_name.py:10"
    waits = replace(row("host.wait.process", 200), leaf="select() at selectors.py:415", detail=told)
    scope = program_scope(facts(document(waits)))
    assert scope is not None
    (finding,) = judge([scope], PLAIN)
    assert finding.evidence[1] == f"tidy() at slow.py:3 ← {cut(told)}: 1,000 ms"
    assert finding.title == f"Waiting for another process: 100 % of the program in tidy() at slow.py:3; {cut(told)}"
    assert "a_module" in finding.evidence[1]


def _unrecorded(tmp_path: Path) -> CaptureAnalysis:
    """A loop of GEMMs that reads each result and then works on it for 0.4 ms, of which the capture holds nothing."""
    export = Export()
    for i in range(200):
        at = 600_000 * i
        export.call(at, at + 5_000, 2 * i + 1)
        export.kernel("gemm", at + 6_000, at + 190_000, 2 * i + 1)
        export.call(at + 6_000, at + 195_000, 2 * i + 2, "cudaStreamSynchronize")
    return analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])


def test_equal_long_gaps_behind_each_synchronization_are_work_of_the_host(tmp_path: Path) -> None:
    assert [claim.rule for claim in _unrecorded(tmp_path).findings] == ["not_recorded", "hottest_kernel"]


def test_samples_say_what_the_host_did_where_a_capture_recorded_nothing(tmp_path: Path) -> None:
    found = document(row("host.work.operators", 60, "sample"), row("host.work.gpu", 80), row(IMPORTS, 60))
    run = run_facts(host=facts(found))
    captured = _unrecorded(tmp_path)
    made = diagnose_run(run, captured)
    assert [claim.rule for claim in made.claims] == ["host_operators", "hottest_kernel", "host_imports"]
    assert (made.verdict.rule, made.verdict.scope) == ("host_operators", "program")
    # Without a capture of the GPU its lines are named; without samples the capture's own answer is all there is.
    assert diagnose_run(run, None).claims[0].rule == "host_gpu"
    assert diagnose_run(run_facts(), captured).verdict.rule == "not_recorded"


def test_lines_that_use_tensors_on_a_gpu_launch_its_work_and_wait_for_it() -> None:
    def names(file: str, function: str, line: int) -> tuple[str, ...]:
        del file, function
        return ("@", "arg torch.Tensor bfloat16 cuda 4096 elements (1, 4096)") if line == 30 else ()

    into = Frame(function="argsort", file=f"{SITE}/numpy/core/fromnumeric.py", line=9)
    sample = Frame(function="sample", file="/home/slow.py", line=7)
    torch = Frame(function="matmul", file=f"{SITE}/torch/_tensor.py", line=4)
    rows = host_rows((stack(MAIN, torch, samples=5), stack(MAIN, sample, into, samples=4)), lines(), names)
    assert [(one.cell, one.function) for one in rows] == [
        ("host.work.gpu", "<module>"),
        ("host.work.operators", "sample"),
    ]
