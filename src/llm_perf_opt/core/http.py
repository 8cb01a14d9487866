"""One POST of JSON to an address the user gave."""

import urllib.error
import urllib.request
from urllib.parse import unquote

from llm_perf_opt.errors import ToolError

TIMEOUT_S = 20.0


def post_json(address: str, data: bytes, *, headers: str = "") -> str:
    """Send it; `headers` are `name=value` pairs with commas, as OpenTelemetry's variables have them."""
    pairs = (pair.partition("=") for pair in headers.split(",") if "=" in pair)
    given = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    request = urllib.request.Request(
        address, data=data, headers={"User-Agent": "llm-perf", **given, "Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return address
    except urllib.error.HTTPError as error:
        raise ToolError(f"{address} answered {error.code} {error.reason}; nothing was taken there") from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ToolError(
            f"{address} cannot be reached ({reason}); start the collector or give another address"
        ) from error
