"""Child of `optimize`: loads one configuration, and runs passes and output checks on request."""

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from llm_perf_opt.children.start import run_child
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.pipeline.optimize.worker_protocol import SOCKET, Answer, PassSample, WorkerAsk, WorkerReady

if TYPE_CHECKING:
    from llm_perf_opt.workload.journal import Journal
    from llm_perf_opt.workload.session import Session


def main(argv: Sequence[str]) -> int:
    return run_child(_work, argv)


def _work(config: AppConfig, out_dir: Path) -> None:
    from llm_perf_opt.workload.agreement import check_agreement, write_reference
    from llm_perf_opt.workload.device import describe_model
    from llm_perf_opt.workload.session import check_workload, open_journal, open_session, warm_up

    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ[SOCKET])
    start = time.monotonic()
    session = open_session(check_workload(config, out_dir))
    load_s = time.monotonic() - start
    with line, open_journal(session, out_dir, warmup_rounds=1) as journal:
        warm_up(session, rounds=1, synthetic=False)
        about = describe_model(config.model.name, session.model)
        ready = WorkerReady(
            device=session.model.device,
            device_name=about.device_name or session.model.device,
            dtype=session.model.dtype.removeprefix("torch."),
            load_s=load_s - (session.compile_s or 0.0),
            compile_s=session.compile_s,
            notes=tuple(session.model.notes),
        )
        _send(line, Answer(ready=ready))
        with line.makefile("rb") as asked:
            for text in asked:
                ask = msgspec.json.decode(text, type=WorkerAsk)
                if ask.do == "pass":
                    _send(line, Answer(samples=_pass(session, journal, ask.number)))
                elif ask.do == "reference":
                    write_reference(session, Path(ask.path))
                    _send(line, Answer())
                elif ask.do == "check":
                    _send(line, Answer(agreement=check_agreement(session, Path(ask.path))))
                else:
                    return


def _pass(session: "Session", journal: "Journal", number: int) -> tuple[PassSample, ...]:
    """Every planned sample once, as the clean pass of a run does it; a bad sample ends the experiment."""
    from llm_perf_opt.workload.session import measure

    generator = session.generator()
    found = []
    for planned in session.workload.planned:
        result = measure(session, generator, planned, journal, repeat=number)
        if result is None:
            name = planned.sample.sample_id
            raise ProfilingError(f"sample {name} could not be run: {journal.bad.get(name, 'see the log')}")
        request_ms = result.generation.ttft_ms + (result.generation.decode_ms or 0.0)
        found.append(
            PassSample(
                sample_id=result.sample_id,
                ttft_ms=result.generation.ttft_ms,
                tpot_ms=result.tpot_ms,
                tokens=result.all_tokens,
                request_ms=request_ms,
                peak_memory_bytes=result.peak_memory_bytes,
            )
        )
    return tuple(found)


def _send(line: socket.socket, answer: Answer) -> None:
    line.sendall(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
