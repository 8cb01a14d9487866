"""Memory snapshots of torch: figures that can be worked out by hand, and pickles that must not be run."""

import json
import pickle
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.allocations import BEFORE, OutOfMemoryRow, OwnerRow
from llm_perf_opt.capture.readers.kinds import SNAPSHOT, kind_of
from llm_perf_opt.capture.readers.memory_snapshot import read_memory_snapshot
from llm_perf_opt.cli import main
from llm_perf_opt.errors import ParseError

Rows = list[dict[str, Any]]
MIB = 1 << 20


def _frames(line: int) -> Rows:
    """As torch writes them, the innermost first: C++ without a file, the library, the user's own code."""
    return [
        {"name": "c10::alloc", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 134},
        {"name": "step", "filename": "/srv/me/train.py", "line": line},
        {"name": "<module>", "filename": "/srv/me/main.py", "line": 1},
    ]


def _event(action: str, addr: int, size: int, at: int, frames: Rows | None = None) -> dict[str, Any]:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": 1_000_000 + at,
        "frames": frames or [],
    }


def _block(addr: int, size: int, state: str = "active_allocated", frames: Rows | None = None) -> dict[str, Any]:
    return {"address": addr, "size": size, "requested_size": size - 12, "state": state, "frames": frames or []}


def small_snapshot() -> dict[str, Any]:
    """0x10 is from before and stays, 0x20 from before and freed; 0x30 and 0x40 are live together: the peak."""
    events = [
        _event("free_requested", 0x20, 100, 0),
        _event("free_completed", 0x20, 100, 1),
        _event("segment_alloc", 0x1000, 2 * MIB, 2),
        _event("alloc", 0x30, 1000, 3, _frames(7)),
        _event("alloc", 0x40, 3000, 4, _frames(9)),
        _event("oom", 0, 9000, 5, _frames(11)),
        _event("free_requested", 0x40, 3000, 6),
        _event("free_completed", 0x40, 3000, 7),
        _event("alloc", 0x50, 500, 8, _frames(7)),
        _event("snapshot", 0, 0, 9),
    ]
    blocks = [_block(0x10, 512), _block(0x30, 1012), _block(0x50, 512)]
    blocks += [_block(0x60, 3000, "inactive"), _block(0x70, 1000, "inactive")]
    segments = [{"device": 0, "address": 0x1000, "total_size": 3 * MIB, "stream": 0, "blocks": blocks}]
    return {"segments": segments, "device_traces": [events, []], "allocator_settings": {"max_split_size": -1}}


def _write(path: Path, data: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_peak_and_what_was_live_at_it_follow_from_the_events(tmp_path: Path, protocol: int) -> None:
    found = read_memory_snapshot(_write(tmp_path / "a.pickle", small_snapshot(), protocol))
    (device,) = found.devices
    assert found.notes == ("device 0: 2 blocks allocated before the recording began",)
    assert (device.device, device.events, device.length_ns) == (0, 10, 9_000)
    assert (device.allocations, device.frees, device.segment_allocations, device.segment_frees) == (3, 2, 1, 0)
    # 500 from before at 0x10 and 100 at 0x20; the peak is 500 + 1000 + 3000.
    assert (device.first_allocated_bytes, device.last_allocated_bytes) == (600, 2000)
    assert (device.peak_allocated_bytes, device.peak_at_ns, device.peak_event) == (4500, 4_000, 5)
    assert (device.last_reserved_bytes, device.peak_reserved_bytes) == (3 * MIB, 3 * MIB)
    assert device.reserved_at_peak_bytes == 3 * MIB
    assert (device.free_bytes, device.largest_free_bytes, device.fragmentation) == (4000, 3000, 0.25)
    assert device.rounding_bytes == 36
    leaf = "forward (modules/linear.py:134)"
    assert device.owners == (
        OwnerRow(owner="step (me/train.py:9)", leaf=leaf, blocks=1, size_bytes=3000, largest_bytes=3000),
        OwnerRow(owner="step (me/train.py:7)", leaf=leaf, blocks=1, size_bytes=1000, largest_bytes=1000),
        OwnerRow(owner=BEFORE, leaf=BEFORE, blocks=1, size_bytes=500, largest_bytes=500),
    )
    assert device.ran_out == (
        OutOfMemoryRow(at_ns=5_000, requested_bytes=9000, allocated_bytes=4500, owner="step (me/train.py:11)"),
    )
    assert device.points[0] == (0, 600, MIB) and (4_000, 4500, 3 * MIB) in device.points


def test_without_events_the_blocks_of_the_snapshot_are_the_peak(tmp_path: Path) -> None:
    segments = [{"device": 1, "total_size": 4096, "blocks": [{"size": 1024, "state": "active_allocated"}]}]
    found = read_memory_snapshot(_write(tmp_path / "a.pickle", segments))
    (device,) = found.devices
    assert (device.device, device.peak_allocated_bytes, device.length_ns) == (1, 1024, None)
    assert (device.fragmentation, device.owners[0].size_bytes) == (None, 1024)
    assert found.notes[-1].startswith(
        "no allocation was recorded, so there is no history and no owner; call torch.cuda"
    )


def test_the_curve_of_many_events_is_thinned_and_keeps_its_peak(tmp_path: Path) -> None:
    events: Rows = []
    for at in range(5_000):
        size = 10_000 if at == 3_333 else 10
        events += [_event("alloc", at, size, 2 * at, _frames(1)), _event("free_requested", at, size, 2 * at + 1)]
    found = read_memory_snapshot(_write(tmp_path / "a.pickle", {"segments": [], "device_traces": [events]}))
    (device,) = found.devices
    assert (device.peak_allocated_bytes, device.peak_at_ns) == (10_000, 6_666_000)
    assert len(device.points) <= 600 and max(held for _, held, _ in device.points) == 10_000


class _Runs:
    """What an attacker puts into a pickle."""

    def __init__(self, call: Callable[..., object], *args: object) -> None:
        self._made = (call, args)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._made


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    hostile = {"segments": [], "device_traces": [_Runs(Path.touch, mark), _Runs(exec, f"open({str(mark)!r}, 'w')")]}
    with pytest.raises(ParseError, match=r"would build objects or run code when opened \(instruction \w*GLOBAL\)"):
        read_memory_snapshot(_write(tmp_path / "a.pickle", hostile, protocol))
    assert not mark.exists()


HOSTILE = {
    "persistent": b"\x80\x04Pobject\n.",
    "extension": b"\x80\x02\x82\x01.",
    "instance": b"\x80\x02(ios\nsystem\n.",
    "build": b"\x80\x04}}b.",
    "buffer": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "out of band": b"\x80\x05\x97.",
    "huge text": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"a.",
    "huge number": b"\x80\x04I" + b"9" * 5000 + b"\n.",
    "deep": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "cut": pickle.dumps({"segments": []})[:-4],
    "empty stack": b"\x80\x04.",
    "no key": b"\x80\x04]]]s.",
    "text": b"hello",
    "no snapshot": pickle.dumps({"weights": [1.0, 2.0]}),
    "number": pickle.dumps(3),
    "segments of numbers": pickle.dumps({"segments": [1, 2]}),
    "size of text": pickle.dumps({"segments": [{"device": 0, "total_size": "1", "blocks": []}]}),
    "size beyond": pickle.dumps({"segments": [{"device": 0, "total_size": 1 << 70, "blocks": []}]}),
    "event beyond": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 63}]]}
    ),
    "trace of text": pickle.dumps({"segments": [], "device_traces": ["abc"]}),
    "frames of text": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [7]}]]}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_that_is_no_snapshot_is_one_error_in_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(HOSTILE[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ParseError, match=r"a\.pickle: "):
        read_memory_snapshot(path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 400_000 or sys.platform == "darwin"


def test_a_few_bytes_that_ask_for_much_memory_get_none(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, content in (
        ("memo", b"\x80\x04]r\xff\xff\xff\x7f."),
        ("frame", b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"]."),
    ):
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(content)
        assert read_memory_snapshot(path).devices == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000 or sys.platform == "darwin"


def test_lists_that_hold_one_another_many_times_over_end_with_an_error(tmp_path: Path) -> None:
    block = {"size": 1, "state": "active_allocated"}
    segment = {"device": 0, "total_size": 1, "blocks": [block] * 3_000}
    with pytest.raises(ParseError, match="more rows than bytes"):
        read_memory_snapshot(_write(tmp_path / "a.pickle", {"segments": [segment] * 3_000, "device_traces": []}))


def test_analyze_reads_a_snapshot_whatever_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "dump", small_snapshot())
    assert kind_of(path) == kind_of(_write(tmp_path / "a.pkl", 3)) == SNAPSHOT
    assert main(["analyze", "-v", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Memory of device 0\nPeak allocated 4.50 kB at 4.00 µs of 9.00 µs, with 3.15 MB reserved")
    assert "step (me/train.py:9)" in said and "fragmentation 25.0 %" in said
    assert "Out of memory: step (me/train.py:11) asked for 9.00 kB with 4.50 kB allocated." in said


def test_json_and_the_run_directory_hold_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = _write(tmp_path / "a.pickle", small_snapshot()), tmp_path / "out"
    assert main(["analyze", str(path), "--json", "-o", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["snapshots"][0]["devices"][0]["peak_allocated_bytes"] == 4500
    assert json.loads((out / "memory_snapshot" / "memory_snapshot.json").read_text()) == found
    for page in ("report.md", "report.html"):
        assert "Memory of device 0" in (out / page).read_text()
    assert (out / "memory_snapshot" / "memory-0-0.svg").read_text().startswith("<svg")


def test_a_snapshot_and_a_capture_are_two_stories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    trace.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert main(["analyze", str(_write(tmp_path / "a.pickle", small_snapshot())), str(trace)]) == 2
    assert "memory snapshots contain no kernel times" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "a.pickle"), str(tmp_path / "a.pickle")]) == 2
    assert "a.pickle: a memory snapshot, which holds no times of kernels" in capsys.readouterr().err


def test_blocks_from_before_whose_stack_nobody_recorded_are_called_so(tmp_path: Path) -> None:
    events = [_event("alloc", 1, 10, 0, _frames(1)), _event("free_requested", 2, 90, 1)]
    found = read_memory_snapshot(_write(tmp_path / "a.pickle", {"segments": [], "device_traces": [events]}))
    assert [(row.owner, row.size_bytes) for row in found.devices[0].owners] == [
        (BEFORE, 90),
        ("step (me/train.py:1)", 10),
    ]


def test_a_page_of_a_snapshot_holds_no_token_of_its_frames(tmp_path: Path) -> None:
    token = "hf_" + "aB3dE5gH7jK9" * 3
    data = small_snapshot()
    frames = [{"name": "load", "filename": f"/srv/{token}/train.py", "line": 1}]
    for segment in data["segments"]:
        for block in segment["blocks"]:
            block["frames"] = frames
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    assert main(["analyze", "-v", str(path), "-o", str(tmp_path / "run")]) == 0
    written = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(written) > 3
    assert [file.name for file in written if token in file.read_text("utf-8", "replace")] == []
