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

from llm_perf_opt.system import redact
from llm_perf_opt.system.redact import Redactor, given_secrets
from llm_perf_opt.system.secrets.secret_shapes import REDACTED, is_secret, shape_spans, without_shapes
from tests.support.fixtures_dir import REPO

PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow1Bq8zXcVbNmAsDfGhJkL\nQwErTyUiOp23\n-----END RSA PRIVATE KEY-----"
PGP = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{'lQOYBF' * 6}\n=a1B2\n-----END PGP PRIVATE KEY BLOCK-----"
# Behind a prefix they are keys, as scanners of keys see it; so they are put together here.
RANDOM, DIGITS = "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7b", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
KEYS = (
    *(
        "fw_" + RANDOM[:24],
        "rpa_" + RANDOM.upper() + "ab12cd",
        "sntrys_" + RANDOM,
        "lin_api_" + RANDOM,
        "ntn_" + RANDOM,
    ),
    *("shpat_" + DIGITS, "glsa_" + RANDOM[:32] + "_0f1e2d3c", "glc_" + "eyJ" + RANDOM, "NRAK-" + RANDOM[:27].upper()),
    *(
        "figd_" + RANDOM,
        "ATATT3x" + RANDOM,
        "tskey-" + "auth-" + RANDOM,
        "dp." + "pt." + RANDOM,
        "sbp_" + DIGITS + "01234567",
    ),
    "tvly-" + RANDOM,
)
# A text, and what is left of it.
SHAPES = [
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
    (f"key:\n{PGP}\nend", f"key:\n{REDACTED}\nend"),
    (f"groq {'gsk_' + RANDOM}", f"groq {REDACTED}"),
    (f"got {'r8_' + RANDOM[:37]}, {'dapi' + DIGITS}", f"got {REDACTED}, {REDACTED}"),
    (f"api.telegram.org/bot{'123456789:AA' + RANDOM[:33]}/send", f"api.telegram.org/bot{REDACTED}/send"),
    ("Endpoint=sb://x/;SharedAccessKey=abcD3fgh+/1=;x", f"Endpoint=sb://x/;SharedAccessKey={REDACTED};x"),
    ('"SecretAccessKey": "abcd/efgh1"', f'"SecretAccessKey": "{REDACTED}"'),
    ("//registry.npmjs.org/:_authToken=abcd-efgh1", f"//registry.npmjs.org/:_authToken={REDACTED}"),
    ("{'dbPassword': 'a&b)c;d,e1'}", f"{{'dbPassword': '{REDACTED}'}}"),
    ("Authorization: Token abc123def456ghi", f"Authorization: Token {REDACTED}"),
    ("Authorization%3A%20Bearer%20abc123def456ghi", f"Authorization%3A%20Bearer%20{REDACTED}"),
    ("https://storage/b?X-Goog-Signature=0a1b2c3d4e&x=1", f"https://storage/b?X-Goog-Signature={REDACTED}&x=1"),
    ("+ mysql -h db -phunter2x -u root", f"+ mysql -h db -p{REDACTED} -u root"),
    ("+ sshpass -p hunter2x ssh host", f"+ sshpass -p {REDACTED} ssh host"),
    *((f"got {key}.", f"got {REDACTED}.") for key in KEYS),
    ("jdbc:oracle:thin:scott/hU7nt8er2x@//h:1521/x", f"jdbc:oracle:thin:scott/{REDACTED}@//h:1521/x"),
    (
        f'Authorization: Digest user="Bo", response="{DIGITS}"',
        f'Authorization: {REDACTED} user="Bo", response="{REDACTED}"',
    ),
    (f"authorization: AWS4-HMAC a=b, Signature={DIGITS * 2}", f"authorization: {REDACTED} a=b, Signature={REDACTED}"),
    ('{"auths":{"h":{"auth":"dXNlcjpodW50ZXIyMg=="}}}', f'{{"auths":{{"h":{{"auth":"{REDACTED}"}}}}}}'),
    ("//registry.npmjs.org/:_auth=dXNlcjpodW50ZXIyMg==", f"//registry.npmjs.org/:_auth={REDACTED}"),
]


@pytest.mark.parametrize(("text", "clean"), SHAPES)
def test_what_looks_like_a_secret_is_taken_out(text: str, clean: str) -> None:
    assert without_shapes(text) == clean
    assert without_shapes(clean) == clean


@pytest.mark.parametrize("text", [text for text, _ in SHAPES])
@pytest.mark.parametrize("is_log", [True, False])
def test_what_was_taken_out_or_overwritten_is_no_secret_any_more(tmp_path: Path, text: str, is_log: bool) -> None:
    """Else a run would not be shared for the marks of what is gone."""
    path = tmp_path / "log.txt"
    path.write_text(text)
    redactor = Redactor()
    assert redactor.holds(path)
    if is_log:
        redactor.log(path)
    redactor.folder(tmp_path)
    assert not redactor.holds(path)
    assert (REDACTED in path.read_text()) is is_log


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
        "r8_gemm_64x64, rpa_kernel_v3_bf16, dapi, xai-model; mysql is a database and -port no flag of it",
        "password: 'at least eight characters', clientSecret: see the vault",
        "fw_attentionkernelforwards, fw_bw_128x64_splitk_nhwc_kernel, ntn_softmax, glc_layout, model.dp.pt.cpu",
        f"auth=kerberos, auth: basicauth, authorization: none; got response={DIGITS}; oracle: exact, jdbc:oracle:thin",
        f"cache key-{DIGITS}, SK{DIGITS}, sbp_kernel, shpatch, tvly, figd_plan_of_a_figure",
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
@pytest.mark.parametrize("value", ["pa\"ss'w<o>rd&1", "ab+cd/ef=g12", "Zürich-geheim ß99", "back\\slash\\n99"])
def test_a_known_value_is_found_as_programs_write_it(value: str, written: Callable[[str], str]) -> None:
    clean = Redactor.of({"DB_PASSWORD": value}).without_known(written(value))
    # Of base64 the last group stays, which reveals as much as two letters.
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


LOGIN = base64.b64encode(b"bob:plain/word9").decode()


@pytest.mark.parametrize(
    ("name", "value", "printed"),
    [
        ("DB_PASSWORD", "Nl-Leak-pass99\n", "Nl-Leak-pass99"),
        ("APP_PASSWORD", '"QuotedPw77x"', "QuotedPw77x"),
        ("DATABASE_URL", "postgres://app:p%40ssw%23rd9@db/x", "p@ssw#rd9"),
        ("API_KEYS", "first-key-one,secondkeytwo", "secondkeytwo"),
        ("CREDS", "AKIAIOSFODNN7EXAMPLE:wJalrXUt/secret9", "wJalrXUt/secret9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=hcaik_01h2q,b=Bearer abcdef12345678", "hcaik_01h2q"),
        ("GCP_CREDENTIALS", '{"user": "someone", "password": "plainword9"}', "plainword9"),
        ("PIN_PASSWORD", "84726153", "84726153"),
        ("DB_PASS", "hunterz", "hunterz"),
        ("REDIS_AUTH", "dragonfl", "dragonfl"),
        ("DOCKER_AUTH_CONFIG", f'{{"auths": {{"r.io": {{"auth": "{LOGIN}"}}}}}}', "plain/word9"),
        ("PROXY_AUTHORIZATION", f"Basic {LOGIN}", "plain/word9"),
    ],
)
def test_a_part_of_a_value_is_known_in_the_form_programs_print_it(name: str, value: str, printed: str) -> None:
    assert Redactor.of({name: value}).text(f"got [{printed}]") == f"got [{REDACTED}]"


def test_base64_is_found_wherever_it_begins_and_in_both_alphabets() -> None:
    redactor = Redactor.of({"SERVICE_TOKEN": "tok?>Abcdef12345"})
    for before in range(6):
        text = ("u" * before + ":tok?>Abcdef12345:and more").encode()
        for coded in (base64.b64encode(text).decode(), base64.urlsafe_b64encode(text).decode()):
            clean = redactor.text(coded)
            assert REDACTED in clean
            # Of both ends as much as two letters reveal.
            assert len(clean) - len(REDACTED) <= len(coded) - 16


def test_ordinary_text_beside_short_secrets_stays() -> None:
    environ = {"DB_PASS": "hunterz", "PIN_PASSWORD": "84726153", "DB_PASSWORD": "decode", "KEYMAP": "default"}
    texts = [
        "hunterzes and dragonflies",
        "18472615300 tokens, 0.84726153 s",
        "decode_step default",
        "x-team: a, user=bob",
    ]
    redactor = Redactor.of(environ)
    assert [redactor.text(text) for text in texts] == texts


@pytest.mark.parametrize(
    ("argv", "clean"),
    [
        (["curl", "-u", "bob:Secret1x", "http://h"], ["curl", "-u", f"bob:{REDACTED}", "http://h"]),
        (["curl", "-ubob:Secret1x"], ["curl", f"-ubob:{REDACTED}"]),
        (["mysql", "-uroot", "-phunter22", "db"], ["mysql", "-uroot", f"-p{REDACTED}", "db"]),
        (["sshpass", "-p", "hunter22", "ssh"], ["sshpass", "-p", REDACTED, "ssh"]),
        (["./bench", "-pHunter2pass"], ["./bench", f"-p{REDACTED}"]),
    ],
)
def test_flags_of_other_programs_lose_their_passwords(argv: list[str], clean: list[str]) -> None:
    assert Redactor().words(argv) == tuple(clean)
    # And what they were is known wherever the program prints it.
    (secret,) = given_secrets(argv)
    assert Redactor.of({}, more=[secret]).text(f"login with {secret}!") == f"login with {REDACTED}!"


def test_flags_that_hold_no_password_stay() -> None:
    argv = ["docker", "run", "-p", "8080:80", "-p8080", "-u", "1000:1000", "-u", "root:root", "-pno:xdist", "-pA100"]
    assert Redactor().words(argv) == tuple(argv)
    assert given_secrets(argv) == []


def test_what_files_of_programs_hold_is_known(tmp_path: Path) -> None:
    files = {
        ".netrc": "machine x login bob password netrcword9\n",
        ".cache/huggingface/token": "plaintokenvalue\n",
        ".pgpass": "db:5432:prod:app:pgpassword77\n",
        ".aws/credentials": "[default]\naws_secret_access_key = aws/abcd+efgh12\nregion = eu-central-1\n",
        ".docker/config.json": json.dumps({"auths": {"r.io": {"auth": "dXNlcjpkb2NrZXJwdw=="}}}),
        "work/.env": "# mine\nexport APP_PASSWORD='dotenvpw11'\nSITE=public-site\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    redactor = Redactor.of({"HOME": str(tmp_path), "PWD": str(tmp_path / "work")})
    held = ["netrcword9", "plaintokenvalue", "pgpassword77", "aws/abcd+efgh12", "dXNlcjpkb2NrZXJwdw==", "dotenvpw11"]
    assert redactor.text(" ".join(held)) == " ".join([REDACTED] * len(held))
    assert (
        redactor.text("public-site eu-central-1 default machine bob") == "public-site eu-central-1 default machine bob"
    )


def test_what_looks_like_a_secret_is_overwritten_in_texts_and_packed_texts(tmp_path: Path) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUv"
    data = json.dumps(
        {"name": f"load {token} ä", "token": 123456789012, "url": "pg://u:pässw0rd@h"}, ensure_ascii=False
    )
    (tmp_path / "a.json").write_text(data)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "code.py").write_text(f"token = picker_of_words\nkey = '{token}'\n")
    binary = b"\0\1name" + token.encode() + b"Jmore"
    (tmp_path / "a.ncu-rep").write_bytes(binary)
    Redactor().folder(tmp_path)
    clean = data.replace(token, "x" * len(token)).replace("u:pässw0rd", "x" * len("u:pässw0rd".encode()))
    assert (tmp_path / "a.json").read_text() == clean
    assert json.loads(clean)["token"] == 123456789012
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()).decode() == clean
    assert (tmp_path / "code.py").read_text() == f"token = picker_of_words\nkey = '{'x' * len(token)}'\n"
    # Where a value ends there is not known: the next byte may be the format's own.
    assert (tmp_path / "a.ncu-rep").read_bytes() == binary


def test_no_trace_report_or_page_of_ours_is_damaged() -> None:
    """Kernels, operators, options and prose; what real files hold."""
    folders = ("docs", "tests/data", "src/llm_perf_opt/diagnosis/causes")
    files = [path for folder in folders for path in (REPO / folder).rglob("*")]
    files = [path for path in files if path.suffix in (".md", ".json", ".csv", ".html", ".toml") and path.is_file()]
    texts = {path.name: path.read_text("utf-8", "surrogateescape") for path in files}
    found = {name: [text[start:end] for start, end in shape_spans(text)] for name, text in texts.items()}
    assert len(files) > 60
    assert {name: spans for name, spans in found.items() if spans} == {}
