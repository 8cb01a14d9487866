"""Thirty questions a person would ask of captures and runs, and how to know the answer without the package.

The truth is read out of the files with nothing but `json` and `sqlite3`, planted in a capture made here, or computed by
hand.
"""

import gzip
import json
import lzma
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.mcp_server.limits import as_data
from tests.support.fixtures_dir import DATA
from tests.support.report_runs import clean, stage, write_run
from tests.support.trace_builder import event, write_trace
from tests.unit.commands.test_compare_command import SLOWER, STEADY, passes_of, run_of

LLAMA, NODES, SERVED = "llama.sqlite", "graphs_node.sqlite", "served.sqlite"
EAGER, TRANSPOSES, HEALTHY = "graph_eager.trace.json.gz", "transposes.json.gz", "healthy_gemm.json.gz"
SCATTER, MISALIGNED, CHAIN = "scatter_contention.json.gz", "misaligned_gemm.json.gz", "elementwise_chain.json.gz"
PLANTED, STEPS = "made_up.json", 10
# A step of 1 ms, of which 0.6 ms are a GEMM and 0.15 ms a copy of 3 MB.
GEMM_US, COPY_US, COPY_BYTES = 600, 150, 3_000_000


@dataclass(frozen=True, kw_only=True)
class Question:
    """One call, where its answer is in the reply, and the truth. `within` is a relative error."""

    text: str
    tool: str
    arguments: Mapping[str, Any]
    answer: Callable[[Any], Any]
    truth: Callable[[Path], Any]
    within: float = 1e-9


def lay_out(folder: Path) -> None:
    """Captures and runs the questions are about."""
    for name in (LLAMA, NODES, SERVED):
        (folder / name).write_bytes(lzma.decompress((DATA / "h200" / f"{name}.xz").read_bytes()))
    shutil.copy(DATA / "h200" / EAGER, folder / EAGER)
    for name in (TRANSPOSES, HEALTHY, SCATTER, MISALIGNED, CHAIN):
        shutil.copy(DATA / "planted" / name, folder / name)
    write_trace(folder / PLANTED, [text for step in range(STEPS) for text in planted_step(step)])
    passes_of(folder / "base", STEADY)
    passes_of(folder / "slower", SLOWER)
    run_of(folder / "once", (10.0, 10.1))
    run_of(folder / "other", (10.0, 10.1), config={"model": {"name": "large"}, "infer": {"max_new_tokens": 64}})
    numbers = clean(ttft_ms=41.5, tpot_ms=9.25)
    write_run(folder / "known", stage("torch_profiler", folder / "known", metrics=numbers), run_id="known", day=28)


def planted_step(step: int) -> list[str]:
    at, number = 1000 * (step + 1), 10 * (step + 1)
    return [
        event("user_annotation", "made_up_step", f"{at}.000", "990.000"),
        event("cpu_op", "aten::mm", f"{at + 1}.000", "20.000"),
        event("cuda_runtime", "cudaLaunchKernel", f"{at + 2}.000", "5.000", correlation=number),
        event("kernel", "made_up_gemm", f"{at + 10}.000", f"{GEMM_US}.000", pid=0, tid=7, correlation=number, device=0),
        event("cuda_runtime", "cudaMemcpyAsync", f"{at + 30}.000", "5.000", correlation=number + 1),
        event(
            "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", f"{at + 620}.000", f"{COPY_US}.000",
            pid=0, tid=7, correlation=number + 1, device=0, bytes=COPY_BYTES,
        ),
    ]  # fmt: skip


def of_sqlite(name: str, sql: str) -> Callable[[Path], Any]:
    """The truth out of an export of nsys, in its own tables."""

    def read(folder: Path) -> Any:
        with closing(sqlite3.connect(f"file:{folder / name}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchone()[0]

    return read


def of_trace(name: str, count: Callable[[list[Any]], Any]) -> Callable[[Path], Any]:
    """The truth out of the events of a trace."""
    return lambda folder: count(json.loads(gzip.decompress((folder / name).read_bytes()))["traceEvents"])


def total_ns(events: list[Any], cat: str, word: str = "") -> int:
    return sum(round(e["dur"] * 1000) for e in events if e.get("cat") == cat and word in e["name"])


def cell(reply: Any) -> Any:
    """The only value of a result."""
    ((value,),) = reply["rows"]
    return value


def told(text: str) -> Callable[[Path], Any]:
    """A truth that is planted or known."""
    return lambda folder: as_data(text)


def known(value: Any) -> Callable[[Path], Any]:
    return lambda folder: value


def asked(text: str, source: str, sql: str, truth: Callable[[Path], Any], within: float = 1e-9) -> Question:
    """A question for a figure."""
    arguments = {"source": source, "sql": sql}
    return Question(text=text, tool="query", arguments=arguments, answer=cell, truth=truth, within=within)


def caused(text: str, source: str, rule: str) -> Question:
    """A question for the first cause."""
    return Question(
        text=text,
        tool="findings",
        arguments={"source": source},
        answer=lambda reply: reply["rows"][0]["rule"],
        truth=known(rule),
    )


def abstained(text: str, tool: str, **arguments: Any) -> Question:
    """A question the evidence does not answer."""
    return Question(
        text=text, tool=tool, arguments=arguments, answer=lambda reply: reply["status"], truth=known("abstained")
    )


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
NAMED = f"{KERNELS} k JOIN StringIds s ON s.id = k.demangledName"
QUESTIONS = (
    asked(
        "How many kernels ran in the Llama capture?", LLAMA, "SELECT count(*) FROM kernels",
        of_sqlite(LLAMA, f"SELECT count(*) FROM {KERNELS}"),
    ),
    asked(
        "How long did its kernels take in total?", LLAMA, "SELECT sum(duration_ns) FROM kernels",
        of_sqlite(LLAMA, f"SELECT sum(end - start) FROM {KERNELS}"),
    ),
    asked(
        "How long was its longest kernel?", LLAMA, "SELECT max(duration_ns) FROM kernels",
        of_sqlite(LLAMA, f"SELECT max(end - start) FROM {KERNELS}"),
    ),
    asked(
        "How many different kernels are there?", LLAMA, "SELECT count(DISTINCT name) FROM kernels",
        of_sqlite(LLAMA, f"SELECT count(DISTINCT demangledName) FROM {KERNELS}"),
    ),
    asked(
        "How much kernel time do elementwise kernels take by their names?", LLAMA,
        "SELECT sum(duration_ns) FROM kernels WHERE name LIKE '%elementwise%'",
        of_sqlite(LLAMA, f"SELECT sum(k.end - k.start) FROM {NAMED} WHERE s.value LIKE '%elementwise%'"),
    ),
    asked(
        "How many bytes were copied to the device?", LLAMA,
        "SELECT sum(size_bytes) FROM copies WHERE name LIKE '%Host-to-Device%'",
        of_sqlite(LLAMA, "SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 1"),
    ),
    asked(
        "When did the last kernel end, counted from the first one's start?", NODES,
        "SELECT max(end_ns) - min(start_ns) FROM kernels",
        of_sqlite(NODES, f"SELECT max(end) - min(start) FROM {KERNELS}"),
    ),
    asked(
        "How many kernels came out of graphs?", NODES, "SELECT count(*) FROM kernels WHERE graph IS NOT NULL",
        of_sqlite(NODES, f"SELECT count(*) FROM {KERNELS} WHERE graphNodeId IS NOT NULL"),
    ),
    Question(
        text="How fast can an H200 decode one sequence with a Llama of 1B parameters?", tool="predict",
        arguments={"model": "llama3_1b", "hardware": "h200", "workload": {"prompt": 16}},
        answer=lambda reply: reply["rows"][0]["decode_bound_ms"],
        # Every weight is read once, at 2 bytes and 4.8 TB/s; the cache of 16 tokens adds 0.02 %.
        truth=known(1_235_814_400 * 2 / 4.8e12 * 1e3), within=1e-3,
    ),
    asked(
        "How often does the kernel run that a served model runs most often?", SERVED,
        "SELECT max(n) FROM (SELECT count(*) AS n FROM kernels GROUP BY name)",
        of_sqlite(SERVED, f"SELECT max(n) FROM (SELECT count(*) n FROM {KERNELS} GROUP BY demangledName)"),
    ),
    asked(
        "How many operators does one eager step call?", EAGER, "SELECT count(*) FROM operators",
        of_trace(EAGER, lambda events: sum(e.get("cat") == "cpu_op" for e in events)),
    ),
    asked(
        "How often is aten::linear called?", EAGER, "SELECT count(*) FROM operators WHERE name = 'aten::linear'",
        of_trace(EAGER, lambda events: sum(e["name"] == "aten::linear" for e in events)),
    ),
    asked(
        "How long do its kernels take?", EAGER, "SELECT sum(duration_ns) FROM kernels",
        of_trace(EAGER, lambda events: total_ns(events, "kernel")), 1e-4,
    ),
    asked(
        "How long do the GEMM kernels of the transposed model take?", TRANSPOSES,
        "SELECT sum(duration_ns) FROM kernels WHERE name LIKE '%nvjet%'",
        of_trace(TRANSPOSES, lambda events: total_ns(events, "kernel", "nvjet")), 1e-6,
    ),
    asked(
        "How many kernels run in ten planted steps?", PLANTED, "SELECT count(*) FROM kernels", known(STEPS),
    ),
    asked(
        "How long does the planted GEMM take?", PLANTED,
        "SELECT median(duration_ns) FROM kernels WHERE name = 'made_up_gemm'", known(GEMM_US * 1000),
    ),
    asked(
        "How many bytes do the planted copies move?", PLANTED, "SELECT sum(size_bytes) FROM copies",
        known(STEPS * COPY_BYTES),
    ),
    asked(
        "What part of the planted capture are kernels, in percent?", PLANTED,
        "SELECT 100.0 * sum(share) FROM ledger WHERE scope = 'capture' AND cell LIKE 'gpu.compute%'",
        # From the start of the first kernel to the end of the last copy.
        known(100.0 * STEPS * GEMM_US / (1000 * (STEPS - 1) + 610 + COPY_US)),
    ),
    Question(
        text="How long is the planted capture?", tool="analyze", arguments={"source": PLANTED, "scope": "capture"},
        answer=lambda reply: reply["result"]["wall_ms"], truth=known((1000 * (STEPS - 1) + 610 + COPY_US) / 1000),
    ),
    Question(
        text="On which GPU was it recorded?", tool="analyze", arguments={"source": PLANTED},
        answer=lambda reply: reply["result"]["gpu"], truth=told("NVIDIA H200"),
    ),
    caused("Why is the eager step slow?", EAGER, "launch_bound"),
    caused("Why are the GEMMs slow?", MISALIGNED, "misaligned_gemm"),
    caused("What takes the time of the transposed model?", TRANSPOSES, "layout_copies"),
    caused("What takes the time of the chain?", CHAIN, "unfused_elementwise"),
    Question(
        text="Is anything wrong with the large GEMMs?", tool="analyze", arguments={"source": HEALTHY},
        answer=lambda reply: reply["result"]["verdict_kind"], truth=known("healthy"),
    ),
    Question(
        text="How long does a token of the known run take?", tool="analyze", arguments={"source": "known"},
        answer=lambda reply: reply["result"]["numbers"][as_data("tpot_ms")], truth=known(9.25),
    ),
    Question(
        text="Which run is the newest?", tool="list_runs", arguments={},
        answer=lambda reply: reply["rows"][0]["path"], truth=told("known"),
    ),
    Question(
        text="How much slower is the candidate?", tool="compare", arguments={"base": "base", "candidate": "slower"},
        answer=lambda reply: (reply["status"], reply["result"]["verdict"], round(reply["rows"][0]["ratio"], 3)),
        truth=known(("ok", "worse", 1.2)),
    ),
    abstained("Did the two runs of different work differ?", "compare", base="once", candidate="other"),
    abstained("How many operators does nsys list?", "query", source=LLAMA, sql="SELECT count(*) FROM operators"),
)  # fmt: skip
