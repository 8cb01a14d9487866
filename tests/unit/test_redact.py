"""Secrets are taken out of texts, commands, data and files; what is none stays as it is."""

import base64
import bz2
import gzip
import html
import json
import lzma
import random
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, quote_plus

import pytest

from llm_perf_opt.core import redact
from llm_perf_opt.core.redact import REDACTED, Redactor, is_secret, without_shapes

PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow1Bq8zXcVbNmAsDfGhJkL\nQwErTyUiOp23\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("loaded with hf_AbCdEfGhIjKlMnOpQrSt", f"loaded with {REDACTED}"),
        ("postgres://app:p4ss@db:5432/x", f"postgres://{REDACTED}@db:5432/x"),
        ("git+https://ghp_AbCdEfGhIjKlMnOp1234@github.com/x", f"git+https://{REDACTED}@github.com/x"),
        ("Authorization: Bearer abc123def456ghi", f"Authorization: Bearer {REDACTED}"),
        ("https://hooks.slack.com/services/T0/B0/XyZ", f"https://hooks.slack.com/services/{REDACTED}"),
        ("https://x.blob/y?sv=1&sig=aB%2Fcdefgh&se=2", f"https://x.blob/y?sv=1&sig={REDACTED}&se=2"),
        ("Server=db;Password=s3cr3tpw;User=a", f"Server=db;Password={REDACTED};User=a"),
        ('{"api_key": "abcdef123"}', f'{{"api_key": "{REDACTED}"}}'),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh+ijkl x", f"AWS_SECRET_ACCESS_KEY={REDACTED} x"),
        (f"key:\n{PRIVATE}\nend", f"key:\n{REDACTED}\nend"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, clean: str) -> None:
    assert without_shapes(text) == clean
    assert without_shapes(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=64, prompt_tokens: 1024, eos_token: <|end_of_text|>, pad_token=[PAD]",
        "tokenizer: models/llama, use_auth_token=false, SSH_AUTH_SOCK=/tmp/ssh-123/agent",
        "decode: 12 tokens/s; see https://docs.nvidia.com/nsight-systems and http://localhost:8080/v1",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)",
        "run 20260101-120000 of meta-llama/Llama-3.1-8B-Instruct in bf16 on NVIDIA H200",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "a basic understanding of the bearer of bad news",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_shapes(text) == text


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("PLAIN", "q7Zp2Lk9Xv4Rt8Wn3Bm6", True),
        ("HOOK", "https://example.com/in/8fK2mQ9xL4vT7pR1zW6n", True),
        ("PW", "Tr0ub4dor&3!x", True),
        ("DEPLOY", PRIVATE, True),
        ("GITHUB_SHA", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", False),
        ("CUDA_VISIBLE_DEVICES", "GPU-3f2b8c1d-9e7a-4f6b-8c2d-1a9e7f6b5c4d", False),
        ("PATH", "/usr/local/bin:/usr/bin:/opt/conda-2024.10-py311/bin", False),
        ("LS_COLORS", "rs=0:di=01;34:ln=01;36:*.tar=01;31:*.tgz=01;31", False),
        ("OMP_PLACES", "cores", False),
        ("CONDA_DEFAULT_ENV", "x86_64-conda-linux-gnu-base", False),
    ],
)
def test_a_variable_is_judged_by_its_value_too(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_a_command_loses_the_values_of_its_secret_flags() -> None:
    argv = ["serve", "--api-key", "letmein99", "--max-tokens", "64", "--hf-token=abcdefg1", "--tokenizer", "t5-large"]
    expected = [
        "serve",
        "--api-key",
        REDACTED,
        "--max-tokens",
        "64",
        f"--hf-token={REDACTED}",
        "--tokenizer",
        "t5-large",
    ]
    assert Redactor().words(argv) == tuple(expected)


def test_known_values_are_taken_out_of_data_wherever_they_stand() -> None:
    redactor = Redactor.of({"DB_PASSWORD": "swordfish", "KEYMAP": "default", "HOME": "/root"}, more=["mellon-42"])
    data = {"note": "opened with swordfish", "list": [1, "mellon-42"], "preset": "default", "home": "/root", "n": None}
    assert redactor.tree(data) == {
        "note": f"opened with {REDACTED}",
        "list": [1, REDACTED],
        "preset": "default",
        "home": "/root",
        "n": None,
    }


@pytest.mark.parametrize(
    "written",
    [
        *(json.dumps, partial(json.dumps, ensure_ascii=False), repr, html.escape, quote, quote_plus),
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: repr({"password": value, "user": "x"}),
    ],
)
@pytest.mark.parametrize("value", ["pa\"ss'w<o>rd&1", "Zürich-geheim ß99", "back\\slash\\n99"])
def test_a_known_value_is_found_as_programs_write_it(value: str, written: Callable[[str], str]) -> None:
    clean = Redactor.of({"DB_PASSWORD": value}).without_known(written(value))
    # Of base64 the last group stays, which is as much as two letters tell.
    assert REDACTED in clean and len(clean.replace(REDACTED, "")) <= len("{'password': '', 'user': 'x'}")


def test_the_keys_inside_of_a_known_file_are_known_too() -> None:
    key, number = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIB", "9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b"
    private = f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"
    file = json.dumps({"type": "service_account", "private_key_id": number, "private_key": private})
    redactor = Redactor.of({"CLOUD_FILE": file})
    assert redactor.without_known(f"{number} {key} service_account") == f"{REDACTED} {REDACTED} service_account"


def test_a_log_is_cleaned_across_the_borders_of_its_blocks(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    text = "".join(f"line {n} with swordfish and more\n" for n in range(60_000)) + PRIVATE
    log.write_text(text)
    Redactor.of({"DB_PASSWORD": "swordfish"}).log(log)
    assert log.read_text() == text.replace("swordfish", REDACTED).replace(PRIVATE, REDACTED)
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_a_log_without_secrets_is_not_written_again(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"step 1\n\xff\xfe not text\n")
    before = log.stat().st_ino
    Redactor.of({"DB_PASSWORD": "swordfish"}).log(log)
    assert (log.stat().st_ino, log.read_bytes()) == (before, b"step 1\n\xff\xfe not text\n")


def test_known_values_in_files_are_overwritten_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin").write_bytes(b"\0\1swordfish\2" * 3)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b"swordfish")
    (tmp_path / "link").symlink_to(outside)
    Redactor.of({"DB_PASSWORD": "swordfish"}).folder(tmp_path)
    assert (tmp_path / "deep" / "a.bin").read_bytes() == b"\0\1xxxxxxxxx\2" * 3
    assert outside.read_bytes() == b"swordfish"


@pytest.mark.parametrize("kind", [gzip, lzma, bz2])
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_what_a_packed_file_unpacks_to_loses_them_wherever_blocks_meet(
    kind: ModuleType, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redact, "BLOCK_BYTES", block)
    # One begins inside of the other, and one follows at once.
    data = b'{"name": "swordfish-1fish-1-more-and-swordfish-1swordfish-1"}' + b"." * 50
    (tmp_path / "trace").write_bytes(kind.compress(data))
    Redactor(values=("fish-1fish-1-more", "swordfish-1")).folder(tmp_path)
    unpacked = kind.decompress((tmp_path / "trace").read_bytes())
    assert unpacked == data.replace(b"swordfish-1fish-1-more", b"x" * 22).replace(b"swordfish-1", b"x" * 11)
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_a_packed_file_without_a_secret_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"nothing to hide", mtime=1))
    before = (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
    Redactor(values=("swordfish-1",)).folder(tmp_path)
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_a_packed_file_that_was_cut_off_loses_them_and_stays_cut_off(tmp_path: Path) -> None:
    rest = random.Random(1).randbytes(100_000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"swordfish-1" + rest)[:-50_000])
    Redactor(values=("swordfish-1",)).folder(tmp_path)
    unpacked = zlib.decompressobj(wbits=31).decompress(path.read_bytes())
    assert unpacked.startswith(b"x" * 11 + rest[:1000])
    with pytest.raises(EOFError):
        gzip.decompress(path.read_bytes())


def test_names_under_which_numbers_stand_lose_them_too() -> None:
    tree = Redactor(values=("swordfish-1",)).tree({"ranges": {"load swordfish-1": 3, 7: "swordfish-1"}})
    assert tree == {"ranges": {f"load {REDACTED}": 3, 7: REDACTED}}


def test_of_a_long_log_the_two_ends_are_kept_and_no_half_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, overlap = 1 << 17, redact.OVERLAP_BYTES
    monkeypatch.setattr(redact, "KEPT_BYTES", kept)
    line = "step 123 of many, nothing to see here\n"
    key = PRIVATE.replace("QwErTyUiOp23", "QwErTyUiOp23\n" * 800)
    log, size = tmp_path / "log.txt", 10 * kept
    for place in (kept, kept + overlap, size - kept, size - kept - overlap):
        for secret in (f"{key}\n", "swordfish " * 9):
            for shift in (0, len(secret) // 2, len(secret)):
                text = line * (size // len(line))
                text = text[: place - shift] + secret + text[place - shift + len(secret) :]
                log.write_text(text)
                Redactor.of({"DB_PASSWORD": "swordfish"}).log(log)
                found = log.read_text()
                assert not re.search("wordfis|QwErTy|PRIVATE", found)
                assert found.startswith(line) and found.endswith(text[-100:])
                (told,) = re.findall(r"llm-perf: ([\d,]+) bytes of ([\d,]+) are left out here", found)
                assert int(told[1].replace(",", "")) == len(text)
                assert abs(len(text) - int(told[0].replace(",", "")) - len(found)) < 200
                assert 2 * (kept - len(secret)) - 1000 < len(found) < 2 * kept + 200
