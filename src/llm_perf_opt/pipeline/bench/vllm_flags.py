"""Arguments of `vllm bench serve` as settings of `llm-perf bench`: `--request-rate 4` is `load.rate=4`."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from llm_perf_opt.errors import ConfigError

# Formats by the name of vLLM's data sets; None: synthetic prompts.
DATASETS: Mapping[str, str | None] = {
    "random": None,
    "sharegpt": "sharegpt",
    "custom": "jsonl",
    "timed_trace": "mooncake",
    "mooncake": "mooncake",
    "otel": "otel",
    "jsonl": "jsonl",
}
BACKENDS = {"openai": "completions", "vllm": "completions", "openai-chat": "chat"}
ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
# Always so here; the second ones have a value. Tokens are counted by the server, every latency is printed.
WITHOUT_EFFECT = ("--save-result", "--save-detailed", "--disable-tqdm", "--trust-remote-code")
VALUE_WITHOUT_EFFECT = ("--tokenizer", "--tokenizer-mode", "--percentile-metrics")
PERCENTILES = ("50", "90", "99")
# Keys that say by themselves what load is sent.
LOAD_KEYS = frozenset({"load.rate", "load.concurrency", "load.search", "load.arrival"})
# Longer than any load that was counted in requests.
SHORTEST_LIMIT_S = 3600.0


def translate_flags(argv: Sequence[str]) -> list[str]:
    """The command line as overrides; what are none already stays as it is, every problem is reported at once."""
    words, problems = _Words(list(argv)), list[str]()
    found: dict[str, str] = {}
    rest: list[str] = []
    while (word := words.next()) is not None:
        if word.startswith(("http://", "https://")):
            found["server.url"] = json.dumps(word)
        elif word.startswith("server.url=http"):
            found["server.url"] = json.dumps(word.partition("=")[2])
        elif not word.startswith("--") or word == "--":
            rest.append(word)
        else:
            name, is_joined, value = word.partition("=")
            try:
                _flag(name, value if is_joined else None, words, found)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError(problems)
    return [*_overrides(found, rest), *rest]


class _Words:
    def __init__(self, words: list[str]) -> None:
        self._words = words

    def next(self) -> str | None:
        return self._words.pop(0) if self._words else None

    def value(self) -> str:
        if not self._words or self._words[0].startswith("--"):
            raise ValueError("needs a value")
        return self._words.pop(0)

    def values(self) -> list[str]:
        """As many as look like `ttft:200`."""
        found = []
        while self._words and ":" in self._words[0] and "=" not in self._words[0] and "//" not in self._words[0]:
            found.append(self._words.pop(0))
        return found


def _flag(name: str, joined: str | None, words: _Words, found: dict[str, str]) -> None:
    if name in WITHOUT_EFFECT:
        return
    if name in VALUE_WITHOUT_EFFECT:
        _ = joined if joined is not None else words.value()
        return
    if name == "--ignore-eos":
        found.update({"load.ignore_eos": "true", "server.ignore_eos": "true"})
        return
    if name == "--goodput":
        _goodput([joined] if joined is not None else words.values(), found)
        return
    setter = FLAGS.get(name)
    if setter is None:
        near = get_close_matches(name, [*FLAGS, "--goodput", "--ignore-eos"], n=1)
        hint = f"nearest: {near[0]}, " if near else ""
        raise ValueError(f"no argument of this command, {hint}allowed: key=value, {', '.join(FLAGS)}")
    setter(joined if joined is not None else words.value(), found)


def _goodput(pairs: Sequence[str], found: dict[str, str]) -> None:
    if not pairs:
        raise ValueError("needs limits, allowed: ttft:200 tpot:30 e2el:5000 (milliseconds)")
    for pair in pairs:
        metric, _, limit = pair.partition(":")
        if metric not in ("ttft", "tpot", "e2el"):
            raise ValueError(f"unknown limit {pair!r}, allowed: ttft:MS tpot:MS e2el:MS")
        found[f"load.slo.{metric}_ms"] = limit


def _key(*keys: str, quoted: bool = False) -> Callable[[str, dict[str, str]], None]:
    def put(value: str, found: dict[str, str]) -> None:
        found.update(dict.fromkeys(keys, json.dumps(value) if quoted else value))

    return put


def _choice(key: str, choices: Mapping[str, str | None]) -> Callable[[str, dict[str, str]], None]:
    def put(value: str, found: dict[str, str]) -> None:
        if value not in choices:
            raise ValueError(f"not supported (got {value!r}), allowed: {', '.join(choices)}")
        chosen = choices[value]
        if chosen is not None:
            found[key] = chosen

    return put


def _burstiness(value: str, found: dict[str, str]) -> None:
    if value == "inf":
        found["load.arrival"] = "constant"
    elif value not in ("1", "1.0"):
        found.update({"load.arrival": "gamma", "load.burstiness": value})


def _only(*allowed: str) -> Callable[[str, dict[str, str]], None]:
    def check(value: str, found: dict[str, str]) -> None:
        if any(part not in allowed for part in value.split(",")):
            raise ValueError(f"not supported (got {value!r}), allowed: {', '.join(allowed)}")

    return check


FLAGS: Mapping[str, Callable[[str, dict[str, str]], None]] = {
    "--base-url": _key("server.url", quoted=True),
    "--host": _key("host"),
    "--port": _key("port"),
    "--model": _key("server.model", quoted=True),
    "--backend": _choice("load.api", BACKENDS),
    "--endpoint": _choice("load.api", ENDPOINTS),
    "--request-rate": _key("load.rate"),
    "--max-concurrency": _key("load.max_concurrency"),
    "--concurrency": _key("load.concurrency"),
    "--num-prompts": _key("load.requests"),
    "--num-warmups": _key("load.warmup_requests"),
    "--burstiness": _burstiness,
    "--random-input-len": _key("dataset.prompt_tokens"),
    "--input-len": _key("dataset.prompt_tokens"),
    "--random-output-len": _key("load.output_tokens"),
    "--output-len": _key("load.output_tokens"),
    "--random-prefix-len": _key("traffic.shared_prefix_tokens"),
    "--dataset-name": _choice("traffic.format", DATASETS),
    "--dataset-path": _key("traffic.path", quoted=True),
    "--seed": _key("load.seed", "dataset.seed"),
    "--temperature": _key("load.temperature"),
    "--ready-check-timeout-sec": _key("server.ready_timeout_s"),
    "--metric-percentiles": _only(*PERCENTILES),
    "--random-range-ratio": _only("0", "0.0"),
}


def _overrides(found: dict[str, str], rest: Sequence[str]) -> list[str]:
    """What the arguments mean together; keys the user also gave as overrides are left to those."""
    host, port = found.pop("host", None), found.pop("port", None)
    if host is not None or port is not None:
        name = host or "127.0.0.1"
        address = f"http://[{name}]:{port or 8000}" if ":" in name else f"http://{name}:{port or 8000}"
        found.setdefault("server.url", json.dumps(address))
    given = {word.partition("=")[0] for word in rest}
    _closed_loop(found, has_load=bool(given & LOAD_KEYS))
    if "load.requests" in found and "load.duration_s" not in given:
        found["load.duration_s"] = f"{_limit_s(found):.0f}"
    return [f"{key}={value}" for key, value in found.items() if key not in given]


def _closed_loop(found: dict[str, str], *, has_load: bool) -> None:
    """Without a rate, or with `inf`, vLLM sends everything as soon as its limit of concurrency allows.

    `has_load`: the load is given by our own keys.
    """
    if found.get("load.rate", "inf") != "inf" or "load.concurrency" in found:
        return
    is_asked = found.pop("load.rate", None) is not None or ("load.requests" in found and not has_load)
    limit = found.pop("load.max_concurrency", None)
    if limit is not None or is_asked:
        found["load.concurrency"] = limit or found.get("load.requests", "1000")


def _limit_s(found: Mapping[str, str]) -> float:
    """A load counted in requests ends with the last of them; this is twice the time they should take."""
    try:
        needed = 2 * float(found["load.requests"]) / float(found.get("load.rate", "inf"))
    except (ValueError, ZeroDivisionError):
        return SHORTEST_LIMIT_S
    return max(SHORTEST_LIMIT_S, needed) if math.isfinite(needed) else SHORTEST_LIMIT_S
