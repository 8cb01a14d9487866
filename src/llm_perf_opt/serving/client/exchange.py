"""One short request to a server around a load, bounded in time and in size, also when it is compressed."""

import asyncio
import errno
import os
import resource
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

PIECE = 1 << 16
OPEN_FILES = (errno.EMFILE, errno.ENFILE)


class NoAnswer(Exception):
    """The server did not answer, or not within the limits; the text says which."""


class TooLate(NoAnswer):
    """The server did not answer in time."""


class UnusableAnswer(NoAnswer):
    """The server sent more than is read, or in a form that is not read."""


@dataclass(frozen=True, kw_only=True)
class ServerAnswer:
    """Status, body and headers (names in lower case)."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def kind(self) -> str:
        """The media type without its parameters; empty where the server does not say."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def exchange(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    most_bytes: int,
    method: str = "GET",
    body: bytes | None = None,
) -> ServerAnswer:
    """Send one request and read the whole answer; raise NoAnswer where there is none within the limits."""
    return asyncio.run(_exchange(url, headers, timeout_s, most_bytes, method, body))


async def _exchange(
    url: str, headers: Mapping[str, str], timeout_s: float, most_bytes: int, method: str, body: bytes | None
) -> ServerAnswer:
    try:
        async with asyncio.timeout(timeout_s), open_session(headers) as session:
            async with session.request(method, url, data=body, allow_redirects=False) as response:
                data = await read_bounded(response, most_bytes)
                return ServerAnswer(
                    status=response.status, body=data, headers={k.lower(): v for k, v in response.headers.items()}
                )
    except TimeoutError as error:
        raise TooLate(f"no whole answer within {timeout_s:g} s") from error
    except ValueError as error:
        raise UnusableAnswer(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswer(describe(error)) from error


def open_session(headers: Mapping[str, str], traces: Sequence[aiohttp.TraceConfig] = ()) -> aiohttp.ClientSession:
    """A session for one address: no proxy of the environment, no cookies, no limit of connections, no time limits.

    Idle connections are closed after 4 s: uvicorn closes its own after 5, and a request on a connection that is being
    closed fails.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=600, keepalive_timeout=4.0),
        headers={"Accept-Encoding": "identity", **headers},
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        trace_configs=list(traces),
    )


async def read_bounded(response: aiohttp.ClientResponse, most_bytes: int, *, cut: bool = False) -> bytes:
    """The body, decompressed; longer than `most_bytes` it is refused, or cut where `cut` is set."""
    unpack = _unpacker(response.headers.get("Content-Encoding", "identity").strip().lower())
    parts: list[bytes] = []
    size = 0
    async for data in response.content.iter_chunked(PIECE):
        try:
            part = data if unpack is None else unpack.decompress(data, most_bytes + 1 - size)
        except zlib.error as error:
            raise ValueError(f"its answer is not what its Content-Encoding says ({error})") from error
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            if cut:
                return b"".join(parts)[:most_bytes]
            raise ValueError(f"its answer is longer than {most_bytes / (1 << 20):g} MiB")
    return b"".join(parts)


def _unpacker(coding: str) -> "zlib._Decompress | None":
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47 if coding != "deflate" else 15)
    raise ValueError(f"its answer is compressed with {coding!r}, which was not asked for")


def describe(error: BaseException) -> str:
    """An error of a connection in one line: its kind, its cause, and the limit of open files where that was reached."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno in OPEN_FILES:
        return f"too many open files: {open_files_advice()}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"not valid HTTP: {' '.join(error.message.split())}"
    text = str(error).strip()
    if isinstance(cause, OSError) and cause.errno and isinstance(error, aiohttp.ClientConnectorError):
        # Its own text repeats the address.
        text = os.strerror(cause.errno)
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def open_files_advice() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "" if soft == hard else f" (the hard limit is {hard})"
    return f"`ulimit -n` is {soft}{allowed}; raise it in this shell, or use more load.processes or less concurrency"
