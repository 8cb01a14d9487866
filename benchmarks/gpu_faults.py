"""What goes wrong on a GPU, provoked: what the run says, what it keeps, and whether it can be resumed.

    python benchmarks/gpu_faults.py FOLDER [--only NAME ...] [--seconds 190] [--tiny]

nsys killed while it captures; a model that does not fit the memory left; a program that hangs; ncu alongside a program
that keeps the GPU busy; a program whose threads mark phases and launch work, under every profiler. Each writes a run
below FOLDER; faults.json says how each ended: exit code, states and reasons of the stages before and after the resume,
and whether anything was left running. It is written after each of them, and one without enough time left is skipped.
--tiny: the smallest model on the CPU, and nothing that needs a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

MODEL = "llama3_1b"
QUICK = ("dataset.prompt_tokens=128", "infer.max_new_tokens=8", "infer.ignore_eos=true")
OFF = ("pipeline.static_analysis.enable=false",)
HOLD = "import torch; x = torch.empty({bytes}, dtype=torch.uint8, device='cuda'); print('held', flush=True); input()"
HANG = "import torch, time; torch.ones(9, device='{device}').sum().item(); time.sleep(1e6)"
NEEDED_S = 30
THREADS = """
import threading, torch, llm_perf_opt as perf
def work(name):
    x = torch.randn(512, 512, device='{device}')
    for _ in range(200):
        with perf.phase(name):
            x = (x @ x).clamp(-1, 1)
            x.sum().item()
work('warm')
threads = [threading.Thread(target=work, args=(f'part_{{i}}',)) for i in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
"""
BUSY = (
    "import torch\nx = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)\nprint('busy', flush=True)\n"
    "while True:\n    x = (x @ x).clamp(-1, 1)\n"
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "llm_perf_opt.cli", *words]


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder.parent / f"{folder.name}.log").open("ab")
    return subprocess.Popen(command(*words), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes], limit_s: float) -> int | str:
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        return f"did not end in {limit_s:.0f} s"


def states(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "manifest.json"
    if not path.is_file():
        return {}
    stages = json.loads(path.read_bytes())["stages"]
    return {stage["name"]: [stage["status"], (stage["reason"] or "")[:400]] for stage in stages}


def left_running() -> list[str]:
    """Profilers and workloads that outlived their run."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if process.info["pid"] != os.getpid() and (
            "llm_perf_opt.runners" in words or "llm_perf_opt.children" in words or "nsys profile" in words
        ):
            found.append(words[:120])
    return found


def helper(source: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def is_capturing(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        # It has ended meanwhile, or is a zombie.
        return False
    return len(words) > 1 and "nsys" in words[0] and "profile" in words


def killed_nsys(root: Path) -> dict[str, Any]:
    run_dir = root / "killed_nsys"
    run = start(
        run_dir, "profile", f"model={MODEL}", *QUICK, *OFF, "pipeline.nsys.enable=true", f"artifacts.runs_dir={run_dir}"
    )
    killed = False
    end_s = time.monotonic() + 120
    while run.poll() is None and time.monotonic() < end_s and not killed:
        for child in psutil.Process(run.pid).children(recursive=True):
            if is_capturing(child):
                time.sleep(6)
                child.send_signal(signal.SIGKILL)
                killed = True
                break
        time.sleep(0.3)
    code = finish(run, 150)
    before = states(run_dir)
    again = finish(start(run_dir, "profile", f"run.resume={run_dir}"), 150)
    return {"killed": killed, "exit": code, "stages": before, "resume_exit": again, "after": states(run_dir)}


def out_of_memory(root: Path) -> dict[str, Any]:
    import torch

    run_dir = root / "out_of_memory"
    free, _ = torch.cuda.mem_get_info()
    hog = helper(HOLD.format(bytes=max(0, free - 3_500_000_000)))
    code = finish(start(run_dir, "profile", "model=llama3_8b", *QUICK, *OFF, f"artifacts.runs_dir={run_dir}"), 150)
    before = states(run_dir)
    hog.kill()
    hog.wait()
    again = finish(start(run_dir, "profile", f"run.resume={run_dir}"), 180)
    return {"exit": code, "stages": before, "resume_exit": again, "after": states(run_dir)}


def hanging_program(root: Path) -> dict[str, Any]:
    run_dir = root / "hang"
    words = ["pipeline.nsys.enable=true", "pipeline.torch_profiler.enable=false", "workload.duration_s=15"]
    device, under_ncu = ("cpu", "false") if MODEL == "llama_tiny" else ("cuda", "true")
    program = ["--", sys.executable, "-c", HANG.format(device=device)]
    code = finish(
        start(run_dir, "run", *words, f"pipeline.ncu.enable={under_ncu}", f"artifacts.runs_dir={run_dir}", *program),
        150,
    )
    return {"exit": code, "stages": states(run_dir)}


def busy_gpu(root: Path) -> dict[str, Any]:
    run_dir = root / "busy_gpu"
    busy = helper(BUSY)
    words = ["pipeline.ncu.enable=true", "pipeline.torch_profiler.enable=false", "pipeline.ncu.max_kernels=2"]
    code = finish(
        start(run_dir, "profile", f"model={MODEL}", *QUICK, *OFF, *words, f"artifacts.runs_dir={run_dir}"), 200
    )
    busy.kill()
    busy.wait()
    return {"exit": code, "stages": states(run_dir)}


def threads_under_profilers(root: Path) -> dict[str, Any]:
    run_dir = root / "threads"
    device, under_ncu = ("cpu", "false") if MODEL == "llama_tiny" else ("cuda", "true")
    words = ["pipeline.nsys.enable=true", f"pipeline.ncu.enable={under_ncu}", "pipeline.ncu.max_kernels=4"]
    program = ["--", sys.executable, "-c", THREADS.format(device=device)]
    code = finish(start(run_dir, "run", *words, f"artifacts.runs_dir={run_dir}", *program), 150)
    return {"exit": code, "stages": states(run_dir)}


def main() -> int:
    global MODEL
    parser = argparse.ArgumentParser(description="Faults on a GPU")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=190.0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        MODEL = "llama_tiny"
    begun_all = time.monotonic()
    root = args.folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}

    def timed(fault: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        begun = time.monotonic()
        return {**fault(root), "seconds": round(time.monotonic() - begun, 1)}

    # A hang waits for its limit, so something else can go wrong meanwhile, but no other nsys: a killed one takes the
    # agent of both with it.
    groups = (
        [(hanging_program,), (killed_nsys,), (threads_under_profilers,)]
        if args.tiny
        else [(hanging_program, out_of_memory), (killed_nsys,), (threads_under_profilers,), (busy_gpu,)]
    )
    for group in groups:
        faults = [fault for fault in group if not args.only or fault.__name__ in args.only]
        if args.seconds - (time.monotonic() - begun_all) < NEEDED_S:
            found.update({fault.__name__: {"passed over": "no time left"} for fault in faults})
            faults = []
        with ThreadPoolExecutor(max_workers=len(group)) as pool:
            done = list(pool.map(timed, faults))
        left = left_running()
        for fault, one in zip(faults, done, strict=True):
            found[fault.__name__] = {**one, "left": left}
            print(fault.__name__, json.dumps(found[fault.__name__])[:900], flush=True)
        (root / "faults.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
