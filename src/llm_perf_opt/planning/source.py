"""Where a model's config.json is: a folder, the file itself, or a name on the hub where there is a network."""

import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.errors import ConfigError, ParseError
from llm_perf_opt.model.static.config_json import MODELOPT_FILE

HUB = "https://huggingface.co"
TIMEOUT_S = 15.0
NOT_FOUND = 404
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def find_config(text: str) -> Path | None:
    """The file a path stands for; None where the text may be a name on the hub."""
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir() or not _HUB_NAME.fullmatch(text):
        file = path / "config.json"
        if not file.is_file():
            raise ParseError(f"{file}: not found; give the folder of a model that holds a config.json")
        return file
    return None


def fetch_config(name: str, environ: Mapping[str, str]) -> Path:
    """The config.json of a name on the hub, in a temporary folder of that name; `HF_ENDPOINT` names another hub."""
    where = f"model.path: {name!r} is not a file or folder here"
    if environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise ConfigError(f"{where}, and HF_HUB_OFFLINE keeps it from being looked up on the hub")
    address = f"{environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{name}/resolve/main"
    try:
        content = _fetch(f"{address}/config.json")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ConfigError(
            f"{where}, and {address}/config.json could not be read ({error}); download its config.json"
        ) from error
    folder = Path(tempfile.mkdtemp(prefix="llm-perf-")) / name.replace("/", "--")
    folder.mkdir()
    (folder / "config.json").write_bytes(content)
    if b'"quantization_config"' not in content:
        try:
            (folder / MODELOPT_FILE).write_bytes(_fetch(f"{address}/{MODELOPT_FILE}"))
        except urllib.error.HTTPError as error:
            # Most models have none.
            if error.code != NOT_FOUND:
                raise ConfigError(f"{where}, and {address}/{MODELOPT_FILE} could not be read ({error})") from error
    return folder / "config.json"


def _fetch(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"User-Agent": "llm-perf"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())
