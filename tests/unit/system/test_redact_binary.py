"""Secrets in the bytes of packed files: a flag and a colon are there by chance, a command or a token is not."""

from pathlib import Path

import pytest

from llm_perf_opt.system.redact import Redactor

OWN = b"\xa3\xa6\xbf\xa2\x93(}\xd9\xb3"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\n-u='\xed\x14\xc6F\x11\x9bx\xbd:\x9az\xc7\xb0", None),
        (b"\x1c-UU:\xe6\xad\xbc\xd8c\xb6u\xfbs", None),
        (b"curl -u alice:sekretpw99 https://x", "alice:"),
        (b"\x05curl -u bob:hunter22xyz h", "bob:"),
        (b"hf_abcdefghijklmnopqrstuvwx", ""),
        (b"HF_TOKEN=abcdefgh1234", "HF_TOKEN="),
    ],
)
def test_a_flag_without_a_command_is_no_secret_of_a_packed_file(tmp_path: Path, data: bytes, name: str | None) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(OWN * 40 + data + b"\0" + OWN * 40)
    assert Redactor().name_of_first(path) == name
