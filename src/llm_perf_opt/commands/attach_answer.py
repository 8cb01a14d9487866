"""What `llm-perf run --attach` does and prints: verdict, where the time goes, waits, GPU, and the next step."""

import os
import shutil
import tempfile
from pathlib import Path

from rich.text import Text

from llm_perf_opt.commands.attach import SHOWN, AttachOptions
from llm_perf_opt.core.documents import HostDocument
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import HOST_SAMPLES_FILE
from llm_perf_opt.core.units import format_bytes, format_percent
from llm_perf_opt.diagnosis.diagnose import diagnosis_of, judge
from llm_perf_opt.diagnosis.diagnosis_document import Coverage, Diagnosis, Program
from llm_perf_opt.diagnosis.facts import HostFacts, Unknown
from llm_perf_opt.diagnosis.host.environment import variable_effects
from llm_perf_opt.diagnosis.host_scope import program_scope
from llm_perf_opt.profiling.attached import AttachedLook, find_target, look_at
from llm_perf_opt.system.process import program_title
from llm_perf_opt.system.terminal import printable, show

NOTHING_KNOWN = Program(framework="other", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=())


def attach(options: AttachOptions) -> bool:
    """Look at the process and print what was seen; False where nothing could be."""
    target = find_target(options.pid)
    show(
        Text(printable(f"process {target.pid}: {program_title(target.command)}, sampled for {options.duration_s:g} s"))
    )
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as scratch:
        out = options.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        look = look_at(
            target, seconds=options.duration_s, rate_hz=options.rate_hz, out=out, gpu=0 if _has_gpu() else None
        )
        diagnosis = None if look.samples is None else _judged(look.samples, look)
        if options.out is not None and look.samples is not None:
            write_json(out / HOST_SAMPLES_FILE, look.samples)
            write_json(out / "diagnosis.json", diagnosis)
    show(*(Text(printable(line)) for line in answer_lines(look, diagnosis)))
    if options.out is not None:
        show(Text(printable(f"files: {options.out}")))
    return look.samples is not None or bool(look.waits)


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def _judged(samples: HostDocument, look: AttachedLook) -> Diagnosis | None:
    unknown = Unknown(reason="a part of a running process was sampled")
    scope = program_scope(HostFacts(samples=samples, source=HOST_SAMPLES_FILE, wall=unknown), place="the time sampled")
    if scope is None:
        return None
    findings = judge([scope], NOTHING_KNOWN)
    return diagnosis_of(findings, [scope], NOTHING_KNOWN, Coverage(recorded=(), missing=(), unrecorded_share=0.0))


def answer_lines(look: AttachedLook, diagnosis: Diagnosis | None) -> list[str]:
    """All that is printed, the answer first."""
    lines = []
    if look.ended:
        lines.append("the process ended while it was sampled")
    if look.why:
        lines.append(f"no host stacks: {look.why}")
    if diagnosis is not None:
        lines.append(diagnosis.verdict.text)
        for rank, claim in enumerate(diagnosis.claims[:SHOWN], 1):
            lines.append(f"  {rank}. {claim.title}")
            lines += [f"     {text}" for text in claim.evidence[1:2]]
        if diagnosis.claims:
            lines.append(f"  fix: {diagnosis.claims[0].remedy}")
    for thread in look.samples.threads[:SHOWN] if look.samples is not None else ():
        share = thread.samples / max(look.samples.samples, 1) if look.samples is not None else 0.0
        lines.append(f"  thread {thread.name}: busy {format_percent(min(share, 1.0))}, most in {thread.owner}")
    lines += _of_process(look)
    lines += _of_gpu(look)
    processors = len(os.sched_getaffinity(0))
    lines += [f"  environment: {text}" for text in variable_effects(look.environment, processors)]
    lines.append("  next: llm-perf run -- PROGRAM … samples a run from its start, with what it imports and loads")
    return lines


def _of_process(look: AttachedLook) -> list[str]:
    lines = []
    if look.cpu_s is not None:
        lines.append(f"  processors: {look.cpu_s / max(look.seconds, 1e-9):.2f} in use on average")
    shares = [f"{name} {format_percent(share)}" for name, share in list(look.waits.items())[:SHOWN]]
    if shares:
        lines.append(f"  main thread, by the kernel: {', '.join(shares)}")
    if look.read_bytes or look.written_bytes:
        lines.append(
            f"  files: {format_bytes(look.read_bytes or 0)} read from and {format_bytes(look.written_bytes or 0)} "
            "written to storage"
        )
    return lines


def _of_gpu(look: AttachedLook) -> list[str]:
    known = [sample.utilisation_pct for sample in look.gpu if sample.utilisation_pct is not None]
    if known:
        mean = sum(known) / len(known)
        return [f"  GPU {look.gpu_device}: busy {mean:.0f} % of the time by the driver (NVML, all processes on it)"]
    return [f"  GPU: not measured ({look.gpu_reason or 'this machine has no NVIDIA GPU'})"]
