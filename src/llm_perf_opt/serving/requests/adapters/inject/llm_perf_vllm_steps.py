"""Scheduler of vLLM 0.32 that also writes which request was in which step.

`vllm serve MODEL --scheduler-cls llm_perf_vllm_steps.scheduler` uses it.

It runs in the server's own Python, where nothing of llm-perf is installed: it needs the standard library and vLLM
alone. Its folder is on PYTHONPATH, and LLM_PERF_STEPS names the folder for its files, one for each engine process.
Times are those of the monotonic clock, in seconds. Lines of the file:

    {"k":"start","engine":"vllm","version":"0.32.0","pid":7}
    {"k":"add","r":0,"id":"cmpl-x-0-1a2b3c4d","prompt":512,"at":1.0,"arrived":0.9}
    {"k":"step","n":1,"t":[schedule begins, ends, update begins, ends],"w":[[r,tokens,computed before],…],
     "o":[[r,tokens sampled],…]}
    {"k":"finish","r":0,"at":2.0}

A version that is not known, and a diffusion model, get their own scheduler, and a line that says so.
"""

import os
import time
from pathlib import Path
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

KNOWN = ("0.32.",)
FLUSH_S = 0.5
BUFFER_BYTES = 1 << 18


class StepLog:
    """Lines in a file, written out when the engine has nothing to do, and twice a second."""

    def __init__(self, folder: str, version: str) -> None:
        path = Path(folder) / f"steps-{os.getpid()}.jsonl"
        self._file = path.open("w", buffering=BUFFER_BYTES, encoding="ascii")
        self._due = 0.0
        self.write(f'{{"k":"start","engine":"vllm","version":"{version}","pid":{os.getpid()}}}', is_idle=True)

    def write(self, line: str, *, is_idle: bool = False) -> None:
        self._file.write(line + "\n")
        now = time.monotonic()
        if is_idle or now > self._due:
            self._file.flush()
            self._due = now + FLUSH_S


class StepRecorder:
    """Mixed in before a scheduler of vLLM: notes times and tokens around its three calls, and changes nothing."""

    records = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._log = StepLog(os.environ["LLM_PERF_STEPS"], vllm.__version__)
        self._numbers: dict[str, int] = {}
        self._begun: dict[int, tuple[float, float, str]] = {}
        self._seen = 0
        self._steps = 0

    def add_request(self, request: Any) -> None:
        # The request holds the time of day at which the API process took it.
        arrived = time.monotonic() - (time.time() - request.arrival_time)
        number, self._seen = self._seen, self._seen + 1
        self._numbers[request.request_id] = number
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.:") else "?" for c in request.request_id)
        at = time.monotonic()
        super().add_request(request)  # type: ignore[misc]
        prompt = request.num_prompt_tokens
        self._log.write(
            f'{{"k":"add","r":{number},"id":"{name}","prompt":{prompt},"at":{at:.7f},"arrived":{arrived:.7f}}}'
        )

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        scheduled = output.num_scheduled_tokens
        if self.records and scheduled:
            # What was computed before is already counted up by the tokens of this step.
            held, numbers = self.requests, self._numbers  # type: ignore[attr-defined]
            work = ",".join(
                f"[{numbers[name]},{tokens},{held[name].num_computed_tokens - tokens}]"
                for name, tokens in scheduled.items()
            )
            self._begun[id(output)] = (begin, time.monotonic(), work)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        update = time.monotonic()
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        begun = self._begun.pop(id(scheduler_output), None)
        if begun is not None:
            self._steps += 1
            numbers = self._numbers
            made = ",".join(
                f"[{numbers[name]},{len(tokens)}]"
                for name, tokens in zip(
                    model_runner_output.req_ids, model_runner_output.sampled_token_ids, strict=False
                )
                if len(tokens) and name in numbers
            )
            times = f"{begun[0]:.7f},{begun[1]:.7f},{update:.7f},{time.monotonic():.7f}"
            is_idle = not self.running and not self.waiting  # type: ignore[attr-defined]
            line = f'{{"k":"step","n":{self._steps},"t":[{times}],"w":[{begun[2]}],"o":[{made}]}}'
            self._log.write(line, is_idle=is_idle)
        return result

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        names = (request_ids,) if isinstance(request_ids, str) else tuple(request_ids or ())
        result = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        at = time.monotonic()
        for name in names:
            if name in self._numbers:
                self._log.write(f'{{"k":"finish","r":{self._numbers[name]},"at":{at:.7f}}}')
        return result


class RecordingScheduler(StepRecorder, Scheduler):  # type: ignore[misc]
    """The default scheduler, recorded."""


class RecordingAsyncScheduler(StepRecorder, AsyncScheduler):  # type: ignore[misc]
    """The scheduler of asynchronous scheduling, recorded: a plain one would lose its overlap."""


def scheduler(**kwargs: Any) -> Any:
    """The scheduler that vLLM would take, with a record of its steps; without one for what was not tried."""
    config = kwargs["vllm_config"]
    is_async = config.scheduler_config.async_scheduling
    # Diffusion models have schedulers of their own, which vLLM takes where none is given.
    is_diffusion = getattr(config, "diffusion_config", None) is not None
    is_known = vllm.__version__.startswith(KNOWN)
    if is_known and not is_diffusion:
        return (RecordingAsyncScheduler if is_async else RecordingScheduler)(**kwargs)
    why = "a diffusion model" if is_known else f"version {vllm.__version__} is not one the adapter was tried with"
    StepLog(os.environ["LLM_PERF_STEPS"], vllm.__version__).write(f'{{"k":"declined","why":"{why}"}}', is_idle=True)
    if is_diffusion:
        from vllm.v1.core.sched import diffusion_scheduler

        name = "DiffusionAsyncScheduler" if is_async else "DiffusionScheduler"
        return getattr(diffusion_scheduler, name)(**kwargs)
    return (AsyncScheduler if is_async else Scheduler)(**kwargs)
