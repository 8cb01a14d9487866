"""A server whose goodput is known for every setting of two flags that interact; a start of it takes no time."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_perf_opt.optimize.server.server_document import StartOutcome
from llm_perf_opt.optimize.server.server_search import SelectedSpace, ServerSearch, StartRequest, select
from llm_perf_opt.optimize.server.space import Configuration, OptionChoice, ServerOption, ServerSpace

TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SEQUENCES = (8, 16, 32, 64, 128, 256, 512, 1024)
# What one start differs from the next.
NOISE = 0.02
SPACE = ServerSpace(
    engine="simulated",
    options=(
        ServerOption(id="tokens", flag="--tokens", default=2048, choices=tuple(OptionChoice(value=v) for v in TOKENS)),
        ServerOption(
            id="sequences", flag="--sequences", default=64, choices=tuple(OptionChoice(value=v) for v in SEQUENCES)
        ),
    ),
)
PRESENT = {"tokens": "2048", "sequences": "64"}


def goodput(configuration: Configuration) -> float:
    """More sequences need more tokens a step; too many of either miss the limits. Best at 8192 and 256: 100."""
    across, along = _apart(configuration, tokens=13, sequences=8)
    return 100 * math.exp(-0.10 * across**2 - 0.035 * along**2)


def few_goodput(configuration: Configuration) -> float:
    """Best at 256 tokens, the fewest, and 16 sequences, between those that are tried first."""
    across, along = _apart(configuration, tokens=8, sequences=4)
    return 100 * math.exp(-0.06 * across**2 - 0.05 * along**2)


def _apart(configuration: Configuration, *, tokens: int, sequences: int) -> tuple[float, float]:
    """How far both flags are from their best powers of two: against each other, and together."""
    values = {**PRESENT, **{one.option: one.value for one in configuration}}
    first, second = math.log2(float(values["tokens"])) - tokens, math.log2(float(values["sequences"])) - sequences
    return first - second, first + second


@dataclass
class SimulatedServer:
    """Answers to starts: the true value of `surface`, times the noise of a start."""

    seed: int
    surface: Callable[[Configuration], float] = goodput
    noise: float = NOISE
    broken: Callable[[Configuration], str | None] = lambda configuration: None
    wrong: Callable[[Configuration], bool] = lambda configuration: False
    asked: list[StartRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def start(self, request: StartRequest) -> StartOutcome:
        self.asked.append(request)
        reason = self.broken(request.configuration)
        value = self.surface(request.configuration) * math.exp(self._random.gauss(0.0, self.noise))
        status = "failed" if reason else "wrong" if self.wrong(request.configuration) else "ok"
        return StartOutcome(
            configuration=request.configuration,
            purpose=request.purpose,
            status=status,  # type: ignore[arg-type]
            reason=reason or ("answers differ" if status == "wrong" else ""),
            metrics={} if reason else {"goodput": value},
            took_s=1.0,
        )


def everything(space: ServerSpace = SPACE, present: dict[str, str] | None = None) -> SelectedSpace:
    return select(space, (), PRESENT if present is None else present, has_gpu=True)


def run_search(
    server: SimulatedServer, selected: SelectedSpace, *, most_starts: int, left_s: float = 1e9
) -> ServerSearch:
    search = ServerSearch(objective="goodput", most_starts=most_starts)
    while (request := search.next(left_s)) is not None:
        search.record(server.start(request))
        if search.selected is None:
            search.choose(selected)
    return search
