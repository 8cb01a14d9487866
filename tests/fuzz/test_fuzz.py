"""Made-up and damaged input for every parser and for the configuration: a result, or an error of ours in words.

`LLM_PERF_FUZZ_CASES` is how many cases all tests here make together: 2,000 with the suite, 100,000 with `make fuzz`.
"""

import csv
import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from llm_perf_opt.capture.readers.kinds import kind_of
from llm_perf_opt.capture.readers.ncu_csv import parse_ncu_csv
from llm_perf_opt.capture.readers.ncu_log import parse_ncu_log
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.nsys_stats import parse_stats
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.config.arguments import parse_arguments
from llm_perf_opt.config.load import load_config
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.families.known import read_text_model
from llm_perf_opt.model.static.config_json import read_config_json
from llm_perf_opt.pipeline.compose import COMPOSITION_ERRORS, compose_config, explain_composition_error
from llm_perf_opt.pipeline.plan import find_entry_points, load_registry
from llm_perf_opt.pipeline.provenance import recorded_inputs
from llm_perf_opt.profiling.nsys.scrub import scrub_export
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.terminal import printable
from llm_perf_opt.workload.models.snapshot import read_config
from tests.fuzz.made_up import CHEAP, JSON, SLOW, SLOWEST, answers, cases, damaged, retyped, retyped_columns
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


TRACE = (
    '{"schemaVersion": 1, "traceEvents": ['
    + ",".join(
        (
            event("cpu_op", "aten::mm", "1.5", "2"),
            event("cuda_runtime", "cudaLaunchKernel", "2", "1", correlation=1),
            event("kernel", "gemm", "3", "1", device=0, correlation=1),
        )
    )
    + "]}"
).encode()
NCU = (
    b'"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    b'"0","1","f","S","m","ns","1,000"\n'
)
STATS = (
    b"Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    b"50.0,1000,2,500,500,1,999,2.5,gemm\n"
)
NAMES = ("a.json", "a.csv", "a.sqlite", "a.json.gz", "a.txt", "a.ncu-rep")
SECTIONS = ("run", "workload", "dataset", "model", "infer", "hardware", "pipeline")


@cases(CHEAP)
@given(data=damaged(TRACE) | JSON.map(lambda value: json.dumps({"traceEvents": value}).encode()))
def test_a_torch_trace(folder: Path, data: bytes) -> None:
    path = folder / "t.json"
    path.write_bytes(data)
    answers(lambda: read_torch_trace(path, processes=1))


@cases(CHEAP)
@given(data=damaged(NCU) | damaged((DATA / "ncu_decode_kern_sum.csv").read_bytes()))
def test_a_page_of_ncu(data: bytes) -> None:
    answers(lambda: parse_ncu_csv(data.decode("utf-8", "replace"), source="x.csv"))


@cases(CHEAP)
@given(data=damaged(STATS) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_summary_of_nsys(data: bytes) -> None:
    answers(lambda: parse_stats(data.decode("utf-8", "replace"), source="x.csv"))


@cases(CHEAP)
@given(text=st.text(max_size=400), code=st.none() | st.integers(-20, 300), has_report=st.booleans())
def test_a_log_of_ncu(text: str, code: int | None, has_report: bool) -> None:
    answers(lambda: parse_ncu_log(f"==PROF== {text}\n==ERROR== {text}", exit_code=code, has_report=has_report))


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small export of nsys, whole."""
    made = Export()
    made.range("decode", 0, 100)
    made.kernel("gemm", 10, 20, 1)
    return made.write(tmp_path_factory.mktemp("export") / "whole.sqlite").read_bytes()


@cases(SLOW)
@given(draw=st.data())
def test_an_export_of_nsys(folder: Path, export: bytes, draw: st.DataObject) -> None:
    path = folder / "x.sqlite"
    path.write_bytes(draw.draw(damaged(export)))
    answers(lambda: read_nsys_sqlite(path))
    answers(lambda: scrub_export(path))


@pytest.fixture(scope="module")
def full_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with a row in every table that is read."""
    made = Export()
    made.range("decode", 0, 100)
    made.registered_range("prefill", 100, 200)
    made.call(5, 6, 1)
    made.kernel("gemm", 10, 20, 1)
    made.copy(30, 40, 2)
    made.graph(50, 60, 3)
    made.system_call("poll", 61, 70)
    made.pause("buffer flush", 71, 72)
    path = made.write(tmp_path_factory.mktemp("export") / "full.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS ThreadNames (nameId, priority, globalTid)")
        database.execute("INSERT INTO ThreadNames VALUES (1, 20, 16777217)")
        for kinds in ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND"):
            database.execute(f"CREATE TABLE IF NOT EXISTS {kinds} (id, name, label)")
            database.execute(f"INSERT INTO {kinds} VALUES (1, 'HTOD', 'Host-to-Device')")
        database.execute("CREATE TABLE IF NOT EXISTS ProcessStreams (globalPid, filenameId, contentId)")
        database.execute("INSERT INTO ProcessStreams VALUES (16777216, 1, 2)")
    return path


@cases(SLOW)
@given(draw=st.data())
def test_an_export_of_nsys_with_values_of_another_type_in_any_column(
    folder: Path, full_export: Path, draw: st.DataObject
) -> None:
    path = folder / "typed.sqlite"
    shutil.copy(full_export, path)
    draw.draw(retyped_columns(path))
    answers(lambda: read_nsys_sqlite(path))
    answers(lambda: scrub_export(path))
    answers(lambda: read_nsys_sqlite(path))


CELL = st.sampled_from(("", "nan", "n/a", "inf", "-1", "1,000", "1e999", "0x10", "9" * 30, "\x00")) | st.text(
    max_size=6
)


@st.composite
def ragged(draw: st.DrawFn, original: str) -> str:
    """A CSV file some of whose cells hold something else, and some of whose rows are longer or shorter."""
    rows = list(csv.reader(io.StringIO(original)))
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.sampled_from(rows))
        kind = draw(st.sampled_from(("cell", "longer", "shorter", "double")))
        if kind == "cell" and row:
            row[draw(st.integers(0, len(row) - 1))] = draw(CELL)
        elif kind == "longer":
            row.append(draw(CELL))
        elif kind == "shorter" and row:
            row.pop(draw(st.integers(0, len(row) - 1)))
        else:
            rows.insert(draw(st.integers(0, len(rows))), list(row))
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


NCU_RAW = (
    '"ID","Process ID","Kernel Name","Block Size","gpu__time_duration.sum"\n"","","","","us"\n'
    '"0","1","f","(1, 1, 1)","1,000.5"\n"1","1","g","(2, 1, 1)","3"\n'
)


@cases(CHEAP)
@given(text=ragged(NCU_RAW) | ragged(NCU.decode()) | ragged((DATA / "ncu_decode_kern_sum.csv").read_text()))
def test_a_page_of_ncu_with_rows_of_another_length(text: str) -> None:
    answers(lambda: parse_ncu_csv(text, source="x.csv"))


@cases(CHEAP)
@given(text=ragged(STATS.decode()))
def test_a_summary_of_nsys_with_rows_of_another_length(text: str) -> None:
    answers(lambda: parse_stats(text, source="x.csv"))


@cases(CHEAP)
@given(draw=st.data())
def test_a_torch_trace_with_values_of_another_type(folder: Path, draw: st.DataObject) -> None:
    path = folder / "typed.json"
    path.write_text(json.dumps(draw.draw(retyped(json.loads(TRACE)))))
    answers(lambda: read_torch_trace(path, processes=1))


@cases(CHEAP)
@given(
    name=st.sampled_from(("a.json", "a.csv", "a.sqlite", "a.json.gz", "a.txt", "a.ncu-rep")),
    data=st.binary(max_size=300),
)
def test_the_kind_of_a_file(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    answers(lambda: kind_of(folder / name))


@cases(CHEAP)
@given(value=JSON, data=st.none() | st.binary(max_size=200))
def test_a_manifest_and_its_inputs(folder: Path, value: Any, data: bytes | None) -> None:
    whole = {"schema_version": 1, "run_id": value, "stages": value, "config": value, "environment": {}}
    (folder / "manifest.json").write_bytes(data if data is not None else json.dumps(whole).encode())
    (folder / "inputs.yaml").write_bytes(data if data is not None else json.dumps({"samples": value}).encode())
    answers(lambda: read_manifest(folder))
    answers(lambda: recorded_inputs(folder))


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "head_dim")


@cases(CHEAP)
@given(
    family=st.sampled_from(("llama", "qwen3", "qwen3_moe", "deepseek_v2", "gpt2", "")),
    sizes=st.dictionaries(st.sampled_from(SIZES), JSON | st.integers(1, 9000), max_size=6),
    data=st.none() | st.binary(max_size=80),
)
def test_the_configuration_of_a_model(folder: Path, family: str, sizes: dict[str, Any], data: bytes | None) -> None:
    content = json.dumps({"model_type": family, **sizes}).encode() if data is None else data
    (folder / "config.json").write_bytes(content)
    answers(lambda: read_config(folder))
    answers(lambda: read_text_model(read_config_json(folder / "config.json"), where="config.json"))


@cases(CHEAP)
@given(text=st.text(max_size=300), values=st.lists(st.text(max_size=30), max_size=3))
def test_what_is_printed_and_written(text: str, values: list[str]) -> None:
    redactor = Redactor.of({f"K{n}_TOKEN": value for n, value in enumerate(values)})
    clean = redactor.text(text)
    assert redactor.text(clean) == clean
    assert not any(value in clean for value in redactor.values if len(value) > len("(redacted)"))
    assert not set(printable(text)) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def test_all_tests_together_make_as_many_cases_as_documented() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    shares = {"CHEAP": CHEAP, "SLOW": SLOW, "SLOWEST": SLOWEST}
    assert sum(share * text.count(f"@cases({name})") for name, share in shares.items()) in range(980, 1020)


@pytest.fixture(scope="module")
def composed() -> str:
    """The configuration of a small run, as JSON."""
    whole = compose_config(["experiment=ocr_tiny"])
    ours = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    return json.dumps(OmegaConf.to_container(ours, resolve=True))


@cases(SLOW)
@given(key=st.sampled_from(SECTIONS), value=JSON, draw=st.data())
def test_a_typed_configuration(composed: str, key: str, value: Any, draw: st.DataObject) -> None:
    raw = json.loads(composed)
    if draw.draw(st.booleans()):
        raw[key][draw.draw(st.sampled_from(sorted(raw[key])))] = value
    else:
        raw[key] = value
    points = find_entry_points()
    registry = load_registry(points, set(points))
    try:
        cfg = OmegaConf.create(raw)
    except COMPOSITION_ERRORS:
        return
    answers(
        lambda: load_config(cfg, user_dir=Path("/"), stage_classes=registry.config_classes, known_stages=registry.known)
    )


@cases(SLOWEST)
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=25), max_size=3))
def test_a_command_line(words: list[str]) -> None:
    given_words = [*words, *(f"run.repeats={word}" for word in words[:1]), *(f"{word}=1" for word in words[1:2])]

    def read() -> object:
        overrides = parse_arguments(given_words).overrides
        return explain_composition_error(ValueError("made up"), overrides, user_dir=Path("/"))

    result: list[object] = []
    answers(lambda: result.append(read()))
    assert all(isinstance(found, ConfigError) and str(found).strip() for found in result)
