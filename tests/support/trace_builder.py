"""Builds small torch profiler traces in the layouts torch writes them in."""

import gzip
import json
from pathlib import Path
from typing import Any

HOST = {"pid": 10, "tid": 10}


def event(cat: str, name: str, ts: str, dur: str, *, pid: int = 10, tid: int = 10, **args: Any) -> str:
    """One complete event; times are text, so that every digit is the test's own."""
    fields = json.dumps({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid})[:-1]
    return f'{fields}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'


def write_trace(path: Path, events: list[str], *, pretty: bool = False, after: str = '"traceName": "t"') -> Path:
    """A whole trace, gzipped by the path's ending; `pretty` breaks lines as torch does."""
    comma = ",\n  " if pretty else ","
    head = (
        '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}], "traceEvents": ['
    )
    text = head + comma.join(events) + "]" + (f", {after}" if after else "") + "}"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def _dims(*shapes: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(shapes)}


def step(base_us: int = 0) -> list[str]:
    """An annotated step: linear → addmm → one launch; a copy; a wait."""
    return [
        event("user_annotation", "decode", f"{base_us}.000", "100.000"),
        event("cpu_op", "aten::linear", f"{base_us + 10}.000", "40.000", **_dims([1, 8], [8, 8])),
        event("cpu_op", "aten::addmm", f"{base_us + 15}.500", "30.250", **_dims([8], [1, 8])),
        event("cuda_runtime", "cudaLaunchKernel", f"{base_us + 20}.000", "5.000", correlation=base_us + 1),
        event("kernel", "gemm", f"{base_us + 30}.125", "20.500", pid=0, tid=7, correlation=base_us + 1, device=0),
        event("cpu_op", "aten::copy_", f"{base_us + 55}.000", "10.000"),
        event("cuda_runtime", "cudaMemcpyAsync", f"{base_us + 56}.000", "2.000", correlation=base_us + 2),
        event(
            "gpu_memcpy", "Memcpy DtoH", f"{base_us + 60}.000", "1.000", pid=0, tid=7, correlation=base_us + 2, bytes=64
        ),
        event("cuda_runtime", "cudaStreamSynchronize", f"{base_us + 59}.000", "11.000", correlation=base_us + 3),
    ]
