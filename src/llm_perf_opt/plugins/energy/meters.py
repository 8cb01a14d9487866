"""The energy and power counters of this machine, sampled alongside the workload: NVIDIA's driver, RAPL, AMD's library.

A meter that cannot be used says what was searched and what is in the way, so that "nothing" always has a reason.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llm_perf_opt.plugin import ClockSample, StageContext, ToolError, sample_gpus

POWERCAP = Path("/sys/class/powercap")
KFD = Path("/dev/kfd")
# Domains that are not inside another one: a package holds its cores, `psys` holds everything.
RAPL_DOMAINS = ("package", "dram")
MAX_SAMPLES = 2_000_000
ALL = "all"

Kind = Literal["gpu", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One moment of `time.monotonic_ns()`: a counter of joules that only grows, the power, or both."""

    at_ns: int
    energy_j: float | None
    power_w: float | None


@dataclass(kw_only=True)
class Metered:
    """Readings of one device while it was sampled. `details` are the driver's clocks, temperature and throttle reasons.

    `energy_how` and `power_how` say what the two numbers of a reading are; empty: the device has none.
    """

    device: str
    kind: Kind
    energy_how: str = ""
    power_how: str = ""
    readings: list[Reading] = field(default_factory=list)
    details: list[ClockSample] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where meters are searched; tests bring their own."""

    powercap: Path = POWERCAP
    kfd: Path = KFD


@contextmanager
def metering(ctx: StageContext, *, interval_s: float, places: Places | None = None) -> Iterator[list[Metered]]:
    """Sample every meter there is while the block runs; the list is filled when the block has ended."""
    found: list[Metered] = []
    at = places or Places()
    others = [*rapl_counters(at.powercap)[0], *amd_counters(at.kfd, which=_torch_device(ctx))[0]]
    with ExitStack() as stack:
        gpus = stack.enter_context(sample_gpus(ctx, interval_s=interval_s))
        sampled = [stack.enter_context(_sampling(meter, interval_s)) for meter in others]
        yield found
    for gpu in gpus:
        readings = [Reading(at_ns=s.at_ns, energy_j=s.energy_j, power_w=s.power_w) for s in gpu.samples]
        if any(r.energy_j is not None or r.power_w is not None for r in readings):
            found.append(
                Metered(
                    device=gpu.device,
                    kind="gpu",
                    energy_how="the driver's total energy counter" if any(r.energy_j for r in readings) else "",
                    power_how=gpu.power_how,
                    readings=readings,
                    details=gpu.samples,
                )
            )
    found += [one for one in sampled if one.readings]


def looked_for(ctx: StageContext, places: Places | None = None) -> tuple[str, ...]:
    """Every kind of meter, and why it cannot be used here; empty of those that can."""
    at = places or Places()
    missing = []
    with sample_gpus(ctx) as gpus:
        time.sleep(0)
    if not gpus:
        missing.append("NVIDIA's driver (no GPU of this run)")
    missing += [f"NVIDIA's driver ({gpu.reason})" for gpu in gpus if not gpu.samples]
    asked = (rapl_counters(at.powercap), amd_counters(at.kfd, which=_torch_device(ctx)))
    return (*missing, *(why for _, why in asked if why is not None))


def _torch_device(ctx: StageContext) -> str:
    """Where our own model runs, in torch's words, which calls AMD's GPUs cuda too; a program may use all of them."""
    return ALL if ctx.config.workload.command is not None else ctx.config.run.device


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A device that is queried by us: `read` gives joules and watts, either may be None."""

    device: str
    kind: Kind
    energy_how: str
    power_how: str
    read: Callable[[], tuple[float | None, float | None]]


@contextmanager
def _sampling(counter: Counter, interval_s: float) -> Iterator[Metered]:
    found = Metered(
        device=counter.device, kind=counter.kind, energy_how=counter.energy_how, power_how=counter.power_how
    )
    stop = threading.Event()

    def sample() -> None:
        due = time.monotonic()
        while len(found.readings) < MAX_SAMPLES:
            energy_j, power_w = counter.read()
            found.readings.append(Reading(at_ns=time.monotonic_ns(), energy_j=energy_j, power_w=power_w))
            if stop.is_set():
                # Read once more after the end: on a busy machine the last readings may be far from it.
                return
            due = max(due + interval_s, time.monotonic())
            stop.wait(due - time.monotonic())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def rapl_counters(powercap: Path) -> tuple[list[Counter], str | None]:
    """The packages and memories of this machine's CPUs, or why they cannot be read."""
    domains = sorted(path for path in powercap.glob("intel-rapl:*") if (path / "name").is_file())
    named = [(path, (path / "name").read_text(encoding="ascii", errors="replace").strip()) for path in domains]
    wanted = [(path, name) for path, name in named if name.startswith(RAPL_DOMAINS)]
    if not wanted:
        return [], f"RAPL (no {powercap}/intel-rapl:* with a package)"
    try:
        return [_rapl(path, _rapl_name(path, name, named)) for path, name in wanted], None
    except PermissionError as error:
        return [], f"RAPL ({error.filename} may be read by root alone: chmod a+r it, or run as root)"
    except (OSError, ValueError) as error:
        return [], f"RAPL ({powercap}: {error})"


def _rapl_name(path: Path, name: str, named: Sequence[tuple[Path, str]]) -> str:
    """`dram` alone does not say of which package."""
    parent = path.name.rpartition(":")[0]
    return next((f"CPU {other} {name}" for at, other in named if at.name == parent), f"CPU {name}")


def _rapl(path: Path, name: str) -> Counter:
    """Microjoules that start again at `max_energy_range_uj`; a first reading finds out whether it may be read."""
    file = path / "energy_uj"
    limit_uj = int((path / "max_energy_range_uj").read_text())
    state = {"last": int(file.read_text()), "turns": 0}

    def read() -> tuple[float | None, float | None]:
        value = int(file.read_text())
        state["turns"] += value < state["last"]
        state["last"] = value
        return (value + state["turns"] * limit_uj) / 1e6, None

    return Counter(device=name, kind="cpu", energy_how=f"RAPL ({file})", power_how="", read=read)


def amd_counters(kfd: Path, *, which: str = ALL, library: Any = None) -> tuple[list[Counter], str | None]:
    """AMD's GPUs through the library amdsmi, which is part of ROCm, or why they cannot be queried."""
    if which == "cpu":
        return [], "AMD's library (the model runs on the CPU)"
    if library is None and not kfd.exists():
        return [], f"AMD's library (no {kfd}, so no GPU of AMD)"
    try:
        smi = library if library is not None else _amdsmi()
    except ToolError as error:
        return [], f"AMD's library ({error})"
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except smi.AmdSmiException as error:
        return [], f"AMD's library ({error})"
    numbers = range(len(handles)) if which == ALL else [int(which.removeprefix("cuda:")) if ":" in which else 0]
    return [_amd(smi, handles[number], number) for number in numbers if number < len(handles)], None


def _amdsmi() -> Any:
    try:
        import amdsmi
    except (ImportError, OSError, KeyError) as error:
        # The package itself fails in several ways where ROCm's library is not there.
        raise ToolError(
            f"the package amdsmi cannot be imported: {error}; install it with ROCm's amd-smi-lib"
        ) from error
    return amdsmi


def _amd(smi: Any, handle: Any, number: int) -> Counter:
    def energy() -> float | None:
        try:
            reply = smi.amdsmi_get_energy_count(handle)
        except smi.AmdSmiException:
            return None
        # Called `power` until ROCm 6.1; a count in steps of `counter_resolution` microjoules.
        count = reply["energy_accumulator"] if "energy_accumulator" in reply else reply["power"]
        return float(count) * float(reply["counter_resolution"]) / 1e6

    def power() -> float | None:
        try:
            reply = smi.amdsmi_get_power_info(handle)
        except smi.AmdSmiException:
            return None
        # Which of them a GPU fills depends on its generation; the others are "N/A" or 0.
        values = [reply.get(key) for key in ("current_socket_power", "average_socket_power")]
        return next((float(v) for v in values if isinstance(v, int | float) and v), None)

    return Counter(
        device=f"AMD GPU {number}",
        kind="gpu",
        energy_how="amdsmi_get_energy_count" if energy() is not None else "",
        power_how="amdsmi_get_power_info" if power() is not None else "",
        read=lambda: (energy(), power()),
    )
