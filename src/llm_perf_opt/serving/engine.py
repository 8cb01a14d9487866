"""A server from its start, or its discovery, to its end: address, readiness, model name, last words.

Whatever happens in between, everything a started server has started is ended.
"""

import base64
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from llm_perf_opt.errors import CommandFailed, ConfigError, ToolError
from llm_perf_opt.serving.client.exchange import NoAnswer, ServerAnswer, UnusableAnswer, exchange
from llm_perf_opt.serving.counters import parse_info
from llm_perf_opt.serving.load_run import Target
from llm_perf_opt.serving.serving_config import ServerSection
from llm_perf_opt.system.process import Service, allowed_environment
from llm_perf_opt.system.redact import Redactor

POLL_S = 0.5
ANSWER_S = 5.0
TAIL_LINES = 12
MODELS_PATH = "/v1/models"
LIST_S = 30.0
LONGEST_ANSWER = 1 << 20
LONGEST_LIST = 4 << 20
LONGEST_NAME = 1000
# Read of the answer to a request that was refused, and then cut to LONGEST_SAID without secrets.
LONGEST_REFUSAL = 8 << 10
GIVE_MODEL = "say which one to ask for with server.model=…"
# Kept of what a server says about itself.
MOST_SAID = 200
LONGEST_SAID = 200
MODEL_FLAGS = ("--model", "--model-path")


class NeverReady(CommandFailed):
    """A server that ended before it answered; `said` is the end of its log as it is there."""

    def __init__(self, text: str, *, said: str) -> None:
        self.said = said
        super().__init__(text)


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Where a started server's log and command file go, where it runs, and what it gets of our environment."""

    out_dir: Path
    cwd: Path
    environ: Mapping[str, str]
    redactor: Redactor
    say: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A server that answers. `service` is None for one that we did not start."""

    section: ServerSection
    target: Target
    model: str
    service: Service | None


@contextmanager
def running_server(
    section: ServerSection,
    place: ServerPlace,
    *,
    name: str = "server",
    prefix: Sequence[str] = (),
    more_args: Sequence[str] = (),
    until_ready: Callable[[Service], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[RunningServer]:
    """Start the server (or look for the one at `server.url`) and wait until it answers; end it with all it started.

    `prefix` are words put before its command, such as those of a profiler; `name` is that of its log. `until_ready` is
    a context for the time from a server's start until it answers.
    """
    headers = auth_headers(section, place.environ)
    if section.url is not None:
        address, login = server_address(section.url)
        target = Target(
            url=address,
            headers={**login, **headers},
            metrics_path=section.metrics_path,
            trouble=lambda: None,
            redactor=place.redactor,
        )
        _wait_until_ready(section, target, None)
        yield RunningServer(section=section, target=target, model=find_model(section, target), service=None)
        return
    port = section.port or free_port(section.host)
    argv = [*prefix, *build_server_cmd(section, port=port, more_args=more_args)]
    service = Service(
        argv,
        env={**server_environment(section, place.environ), **section.env},
        log=place.out_dir / f"{name}.log",
        cmd_file=place.out_dir / f"{name}.cmd.txt",
        cwd=place.cwd,
        redactor=place.redactor,
        grace_s=section.end_timeout_s,
    )
    with service:
        target = Target(
            url=f"http://[{section.host}]:{port}" if ":" in section.host else f"http://{section.host}:{port}",
            headers=headers,
            metrics_path=section.metrics_path,
            trouble=lambda: _death(service),
            redactor=place.redactor,
        )
        place.say(f"{section.name}: started at {target.url}, waiting until it answers (log: {service.log})")
        with until_ready(service):
            _wait_until_ready(section, target, service)
            ready_s = service.elapsed_s
        place.say(f"{section.name}: ready after {ready_s:.0f} s")
        yield RunningServer(section=section, target=target, model=find_model(section, target), service=service)


def with_program(section: ServerSection, environ: Mapping[str, str]) -> ServerSection:
    """Resolve the server's program on the PATH or next to our Python; refuse it before anything is written."""
    if section.url is not None:
        return section
    name, *others = section.command
    if shutil.which(name, path=environ.get("PATH")) is not None:
        return section
    beside = Path(sys.executable).parent / name
    if "/" not in name and beside.is_file():
        return replace(section, command=(str(beside), *others))
    raise ConfigError(
        f"server.command: there is no program {name!r} on the PATH, allowed: install it, activate its environment, "
        f"give its whole path (server.command=[/path/to/{Path(name).name},…]), or use a server that runs (server.url=…)"
    )


def build_server_cmd(section: ServerSection, *, port: int, more_args: Sequence[str] = ()) -> list[str]:
    """The command with the user's arguments and the address put in."""
    words: list[str] = []
    for word in section.command:
        if word == "{args}":
            words += [*section.args, *more_args]
        else:
            words.append(word.replace("{host}", section.host).replace("{port}", str(port)))
    return words


def server_environment(section: ServerSection, environ: Mapping[str, str]) -> dict[str, str]:
    """What of our environment reaches the server: the usual, and what `server.env_passthrough` names."""
    begins = tuple(name.removesuffix("*") for name in section.env_passthrough if name.endswith("*"))
    named = [name for name in environ if name in section.env_passthrough or (begins and name.startswith(begins))]
    return allowed_environment(environ, named)


def auth_headers(section: ServerSection, environ: Mapping[str, str]) -> dict[str, str]:
    """The key is read when it is used, and written nowhere."""
    if section.api_key_env is None:
        return {}
    if section.api_key_env not in environ:
        raise ToolError(
            f"server.api_key_env: there is no variable {section.api_key_env!r} in the environment; export it, or leave "
            "the key out for a server that asks for none"
        )
    return {"Authorization": f"Bearer {environ[section.api_key_env]}"}


def server_address(url: str) -> tuple[str, dict[str, str]]:
    """The address without user and password, and the header that carries them.

    Clients of OpenAI's API are given the address with /v1; every path of ours begins with it.
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    bare = urlunsplit((parts.scheme, host, parts.path.rstrip("/").removesuffix("/v1"), "", ""))
    if not at:
        return bare, {}
    login = base64.b64encode(unquote(user).encode()).decode()
    return bare, {"Authorization": f"Basic {login}"}


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def find_model(section: ServerSection, target: Target) -> str:
    """The model to ask for: the one given, the one it was started with, or the first the server lists."""
    started = model_in(section.args) if section.model_from == "args" else None
    if section.model is not None or started is not None:
        return section.model or started or ""
    url = target.url.rstrip("/") + MODELS_PATH
    try:
        answer = exchange(url, headers=target.headers, timeout_s=LIST_S, most_bytes=LONGEST_LIST)
    except NoAnswer as error:
        raise ToolError(f"{url} names no model ({error}); {GIVE_MODEL}") from error
    if answer.status != HTTPStatus.OK:
        asks_for_key = answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        way_out = "give its key with server.api_key_env=VARIABLE" if asks_for_key else GIVE_MODEL
        raise ToolError(f"{url} answers {_refusal(answer, target.redactor)}; {way_out}")
    name = _first_model(answer)
    if name is None:
        kind = f" ({answer.kind})" if answer.kind else ""
        raise ToolError(f'{url} is not a list of models{kind}: {{"data": [{{"id": …}}]}} is expected; {GIVE_MODEL}')
    if len(name) > LONGEST_NAME:
        raise ToolError(f"{url} names a model with {len(name):,} characters; {GIVE_MODEL}")
    return name


def _refusal(answer: ServerAnswer, redactor: Redactor) -> str:
    """Status and text in one line, cut after secrets were removed; of a page for people the status is enough."""
    place = answer.headers.get("location")
    body = "" if answer.kind == "text/html" else answer.body[:LONGEST_REFUSAL].decode("utf-8", "replace")
    said = f"a redirect to {place}, which is not followed" if place else body
    return " ".join(f"HTTP {answer.status} {redactor.text(said)}".split())[:LONGEST_SAID]


def _first_model(answer: ServerAnswer) -> str | None:
    try:
        return str(json.loads(answer.body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def server_report(target: Target) -> dict[str, str]:
    """What a server says about itself: its version, its `/server_info` (SGLang), labels of its metrics."""
    found: dict[str, str] = {}
    for path in ("/version", "/server_info"):
        body = _page(target, path)
        try:
            said = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.update({str(k): str(v) for k, v in said.items() if isinstance(v, str | int | float | bool)})
    if target.metrics_path is not None:
        found.update(parse_info(_page(target, target.metrics_path).decode("utf-8", "replace")))
    short = {key[:LONGEST_SAID]: value[:LONGEST_SAID] for key, value in list(found.items())[:MOST_SAID]}
    return {target.redactor.text(key): target.redactor.text(value) for key, value in short.items()}


def _page(target: Target, path: str) -> bytes:
    url = target.url.rstrip("/") + path
    try:
        answer = exchange(url, headers=target.headers, timeout_s=ANSWER_S, most_bytes=LONGEST_LIST)
    except NoAnswer:
        return b""
    return answer.body if answer.status == HTTPStatus.OK else b""


def model_in(args: Sequence[str]) -> str | None:
    """The model among a server's arguments: behind its flag, or the first word if that is not a flag."""
    for flag, value in pairwise(args):
        if flag in MODEL_FLAGS:
            return value
    given = [word.partition("=")[2] for word in args if word.partition("=")[0] in MODEL_FLAGS]
    return next(iter(given), None) or next((word for word in args[:1] if not word.startswith("-")), None)


def _wait_until_ready(section: ServerSection, target: Target, service: Service | None) -> None:
    """Until the server answers at its readiness path; raises with its final log lines when it never does."""
    end = time.monotonic() + section.ready_timeout_s
    url = target.url.rstrip("/") + section.ready_path
    said = "nothing answers"
    while time.monotonic() < end:
        if service is not None and service.poll() is not None:
            raise NeverReady(
                f"{section.name} ended with exit code {service.poll()} before it was ready: {last_lines(service)}",
                said=service.tail(),
            )
        try:
            answer = exchange(url, headers=target.headers, timeout_s=ANSWER_S, most_bytes=LONGEST_ANSWER)
            if answer.status == HTTPStatus.OK:
                return
            said = f"it answers HTTP {answer.status}"
            if service is None and answer.status == HTTPStatus.NOT_FOUND:
                # A server without such a page: it answers, which is enough.
                return
        except UnusableAnswer as error:
            said = str(error)
        except NoAnswer as error:
            said = f"nothing answers ({error})"
        time.sleep(POLL_S)
    waited = f"{url}: not ready within {section.ready_timeout_s:g} s (server.ready_timeout_s), {said}"
    if service is None:
        raise ToolError(f"{waited}; start the server, or let it be started with server=vllm server.args=[…]")
    raise ToolError(f"{waited}; it and all it started were ended. It said: {last_lines(service)}")


def _death(service: Service) -> str | None:
    code = service.poll()
    if code is None:
        return None
    return f"the server ended under load with exit code {code}: {last_lines(service)}"


def last_lines(service: Service) -> str:
    """The end of a server's log in one line, and where all of it is."""
    lines = [" ".join(line.split()) for line in service.tail().splitlines() if line.strip()]
    return f"{' | '.join(lines[-TAIL_LINES:]) or 'it printed nothing'} (log: {service.log})"
