"""Captures of other profilers, damaged and with values of another type: a result, or an error of ours in words."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.capture.readers.ascend import read_ascend_trace
from llm_perf_opt.capture.readers.memory_snapshot import read_memory_snapshot
from llm_perf_opt.capture.readers.rocpd import read_rocpd
from llm_perf_opt.diagnosis.host.stacks import of_program, read_stacks
from tests.fuzz.made_up import CHEAP, SLOW, answers, cases, damaged, retyped, retyped_columns
from tests.support.rocpd_builder import Rocpd
from tests.unit.capture.test_ascend import ascend_trace
from tests.unit.capture.test_memory_snapshot import small_snapshot


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


@cases(CHEAP)
@given(draw=st.data())
def test_a_trace_of_torch_npu_with_values_of_another_type(folder: Path, draw: st.DataObject) -> None:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(draw.draw(retyped(ascend_trace()))))
    answers(lambda: read_ascend_trace(path))


@cases(CHEAP)
@given(draw=st.data())
def test_a_memory_snapshot_with_values_of_another_type(folder: Path, draw: st.DataObject) -> None:
    path = folder / "typed.pickle"
    path.write_bytes(pickle.dumps(draw.draw(retyped(small_snapshot()))))
    answers(lambda: read_memory_snapshot(path))


@cases(CHEAP)
@given(data=damaged(pickle.dumps(small_snapshot())))
def test_a_damaged_memory_snapshot(folder: Path, data: bytes) -> None:
    path = folder / "damaged.pickle"
    path.write_bytes(data)
    answers(lambda: read_memory_snapshot(path))


STACKS = b"""thread (0x7F): process 12:"python a.py";main (a.py:3);tidy (a.py:9) 41
process 12:"python a.py";thread (0x7E);read (b.py:1) 2
"""


@cases(CHEAP)
@given(data=damaged(STACKS) | damaged(STACKS + "a;b 4²".encode()) | damaged(STACKS + b"a;b " + b"9" * 5000))
def test_stacks_of_py_spy(data: bytes) -> None:
    answers(lambda: of_program(read_stacks(data.decode("utf-8", "replace"))))


@pytest.fixture(scope="module")
def rocpd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = Rocpd()
    rows.marker("prefill", 0, 100)
    rows.call("hipLaunchKernel", 5, 8, 3)
    rows.kernel("gemm", 20, 50, 3)
    rows.copy("MEMORY_COPY_HOST_TO_DEVICE", 60, 70, 4, 64)
    return rows.write(tmp_path_factory.mktemp("rocpd") / "whole.db")


@cases(SLOW)
@given(draw=st.data())
def test_a_database_of_rocprofv3_with_values_of_another_type_in_any_column(
    folder: Path, rocpd: Path, draw: st.DataObject
) -> None:
    path = folder / "typed.db"
    shutil.copy(rocpd, path)
    draw.draw(retyped_columns(path))
    answers(lambda: read_rocpd(path))


@cases(SLOW)
@given(draw=st.data())
def test_a_damaged_database_of_rocprofv3(folder: Path, rocpd: Path, draw: st.DataObject) -> None:
    path = folder / "damaged.db"
    path.write_bytes(draw.draw(damaged(rocpd.read_bytes())))
    answers(lambda: read_rocpd(path))
