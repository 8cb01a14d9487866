"""Sixty secrets of a user's shell, configuration and command line, and every byte a run leaves behind."""

import base64
import bz2
import gzip
import json
import lzma
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.capture.readers.ncu_report import load_ncu
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.secret_shapes import REDACTED
from tests.support import fake_nsys
from tests.support.fixtures_dir import REPO
from tests.support.nsys_builder import Export
from tests.support.orchestrator import ALPHA, OFF, llm_perf, llm_perf_here, only_run, valid_manifest

PRIVATE = "MIIEowIBAAKCAQEAx7Qw9ZpLk2Xv4Rt8Wn3Bm6Yh5Gj1Fd0Sa"
# Built from pieces, so that no scanner reports them.
VALUES = {
    "HF_TOKEN": "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx",
    "OPENAI_API_KEY": "sk-" + "proj-4f9d2c7b1eAbCdEfGh",
    "ANTHROPIC_API_KEY": "sk-" + "ant-api03-9Zx8Yw7Vu6Ts5Rq4",
    "GITHUB_TOKEN": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "GH_PAT": "github_pat_" + "11ABCDEFG0abcdefghij",
    "GITLAB_TOKEN": "glpat-" + "xYz123AbC456dEf789Gh",
    "AWS_ACCESS_KEY_ID": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDKq7x9Lm2Nn4Pp6Rr8",
    "SLACK_TOKEN": "xoxb-" + "123456789012-abcdefGHIJKL",
    "NPM_TOKEN": "npm_" + "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5",
    "PYPI_TOKEN": "pypi-" + "AgEIcHlwaS5vcmcCJDNmMmI4YzFk",
    "NGC_API_KEY": "nvapi-" + "Qk9zXm4Lp7Rt2Wv8Yb5Nc1",
    "GOOGLE_API_KEY": "AIza" + "SyD9Kx2Lm4Np6Qr8St0Uv1Wx3Yz5Ab7Cd9E",
    "DB_PASSWORD": "swordfish",
    "MYSQL_PWD": "hunter2hunter2",
    "REDIS_PASS": "r3d1s-p4ss!",
    "JWT": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dQw4w9WgXcQ",
    "SESSION_COOKIE": "sid=s%3A7fK2mQ9xL4vT7pR1zW6n",
    "KUBE_AUTH": "kube-bearer-77aa88bb99",
    "VAULT_SECRET_ID": "0f5e4c1d-vault-4b7a-9c8d",
    "SMTP_CREDENTIALS": "mailer:Pa55word",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "ENCRYPTION_KEY": "zL8#kQ2$vN5^",
    # Names that reveal nothing.
    "PLAIN_ONE": "q7Zp2Lk9Xv4Rt8Wn3Bm6",
    "PLAIN_TWO": "a1b2c3d4e5f60718293a4b5c6d7e8f90",
    "DATABASE_URL": "postgres://app:dbpw77xyz@db.internal:5432/prod",
    "BROKER": "amqp://guest:gu3stpw99@mq:5672",
    "SENTRY": "https://5f2c8e1b9d3a4c7f@o1.ingest.sentry.io/42",
    "HOOK": "https://hooks.slack.com/services/T00000000/B00000000/XXXXyyyyZZZZ1234",
    "NOTIFY": "https://example.com/in/8fK2mQ9xL4vT7pR1zW6n",
    "HEADER": "Bearer zyx987wvu654tsr321",
    "DEPLOY": f"-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----",
    "MIXED": "Tr0ub4dor&3!xkcd",
    # Allowed to pass by their prefix, so children see them.
    "NCCL_ENDPOINT": "https://nccl:ncclpw4242@host/x",
    "TORCH_UPLOAD": "tk9Qx2Lm4Np6Rr8St0Uv",
    "CUDA_CLOUD": "cl0ud-Zx8Yw7Vu6Ts5Rq4Pp",
}
# As people store them; programs print their own form.
STORED = {
    "STRIPPED_PASSWORD": "Nl-Leak-pass99\n",
    "QUOTED_PASSWORD": '"Qu0tedLeak-pw"',
    "PG_URL": "postgres://app:p%40ss%23L3ak@db/x",
    "API_KEYS": "first-leak-key,second-leak-key",
    "CREDS": "AKIA" + "LEAKODNN7EXAMPLE:pairLeak/secret9",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-team=hcaLeakik_01h2q,authorization=Bearer headerLeak12345",
    "PIN_PASSWORD": "84726153",
    "DB_PASS": "hunterz",
    "REDIS_AUTH": "dragonfl",
    "SERVICE_TOKEN": "tokLeak-Abcdef12345",
}
PRINTED = {
    "stripped": "Nl-Leak-pass99",
    "unquoted": "Qu0tedLeak-pw",
    "decoded": "p@ss#L3ak",
    "first of a list": "first-leak-key",
    "second of a list": "second-leak-key",
    "first of a pair": "AKIA" + "LEAKODNN7EXAMPLE",
    "second of a pair": "pairLeak/secret9",
    "value of a header": "hcaLeakik_01h2q",
    "bearer of a header": "headerLeak12345",
    "number": "84726153",
    "word": "hunterz",
    "other word": "dragonfl",
    "token": "tokLeak-Abcdef12345",
}
# In files below the home and the working directory; nothing in the environment holds them.
FILES = {
    "home/.netrc": "machine x.org login bob password netrcLeakword9\n",
    "home/.cache/huggingface/token": "hf_" + "FromTokenFileAbCdEfGhIj\n",
    "home/.pgpass": "db:5432:prod:app:pgpassLeak77\n",
    "home/.aws/credentials": "[default]\naws_secret_access_key = awsLeak/abcd+efgh12\n",
    ".env": "export DOTENV_PASSWORD='dotenvLeakpw1'\nSITE=public-site-name\n",
}
IN_FILES = {
    "netrc": "netrcLeakword9",
    "token file": "hf_" + "FromTokenFileAbCdEfGhIj",
    "pgpass": "pgpassLeak77",
    "aws": "awsLeak/abcd+efgh12",
    ".env": "dotenvLeakpw1",
}
# Nowhere but in the program itself: known by what they look like.
BY_SHAPE = {
    "dsn": "dsnL3ak99x",
    "range": "ghp_" + "RangeLeak1234567890abcdefghij",
    "raised": "sk-" + "RaisedLeak1234567890abcd",
    "query": "aB2Fqu3ryL3ak",
}
IN_ARGUMENTS = {"flag": "letmein-argument-1", "assigned": "letmein-argument-2", "user": "Us3rLeak-argument"}
FROM_CONFIG = {"MY_SETTING": "mellon-from-oc-env"}
PROGRAM = """
import os, sys
for name, value in sorted(os.environ.items()):
    print(name, value)
print(sys.argv)
import base64, json, pathlib
here = pathlib.Path(__file__)
for path in ("home/.netrc", "home/.cache/huggingface/token", "home/.pgpass", "home/.aws/credentials", ".env"):
    print(path, (here.parent / path).read_text())
told = json.loads(here.with_name("told.json").read_text())
print("forms", told["forms"])
for before in range(3):
    text = ("u" * before + ":" + told["token"] + ":").encode()
    print("auth", base64.b64encode(text).decode(), base64.urlsafe_b64encode(text).decode())
print("postgresql://svc:" + told["dsn"] + "@h/x https://x.blob/y?sv=1&sig=" + told["query"], told["range"])
print(repr(ValueError("refused: " + told["raised"])))
print("site public-site-name, mailers, 1234567890 tokens, x-team")
print("PASSED", os.environ["HF_TOKEN"][:3], os.environ["DB_PASSWORD"][:5], sys.argv[2][:7], sys.argv[4][:6])
open(os.environ["HOME"] + "/seen.txt", "w").write(os.environ["HF_TOKEN"] + sys.argv[2] + sys.argv[4])
"""


UNPACKERS = {".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}


def _secrets() -> dict[str, str]:
    given = {**PRINTED, **IN_FILES, **BY_SHAPE}
    pieces = {**given, "DEPLOY line": PRIVATE, "DATABASE_URL password": "dbpw77xyz", "NCCL password": "ncclpw4242"}
    whole = {name: value for name, value in VALUES.items() if name != "DEPLOY"}
    return {**whole, **pieces, **IN_ARGUMENTS, **FROM_CONFIG}


def _found(root: Path) -> list[tuple[str, str]]:
    """Which secret is in which file, also inside of what is packed."""
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if path.suffix in UNPACKERS:
                data += UNPACKERS[path.suffix](data)
            # What pages carry with them.
            words = re.findall(rb"(?:[A-Za-z0-9+/]{4}){4,}", data)
            data += b"".join(map(base64.b64decode, words))
            found += [
                (str(path.relative_to(root)), name) for name, value in _secrets().items() if value.encode() in data
            ]
    return found


def _profile(tmp_path: Path, *overrides: str, **extra: str) -> tuple[Path, str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), "--api-key", IN_ARGUMENTS["flag"], f"--token={IN_ARGUMENTS['assigned']}"]
    words = [*words, "${oc.env:MY_SETTING}", "-u", f"bob:{IN_ARGUMENTS['user']}"]
    command = "workload.command=[" + ",".join(f"'{word}'" for word in words) + "]"
    home = tmp_path / "home"
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    told = {**BY_SHAPE, "forms": list(PRINTED.values()), "token": STORED["SERVICE_TOKEN"]}
    (tmp_path / "told.json").write_text(json.dumps(told))
    environ = {**VALUES, **STORED, **FROM_CONFIG, "HOME": str(home), "PWD": str(tmp_path), **extra}
    done = llm_perf(
        "profile",
        *OFF,
        ALPHA,
        "pipeline.nsys.enable=true",
        "run.env_passthrough=[HF_TOKEN,DB_PASSWORD,DEPLOY,HEADER,BROKER]",
        command,
        *overrides,
        cwd=tmp_path,
        timeout_s=120,
        **environ,
    )
    assert done.code == 0, done.err
    return only_run(tmp_path), done.out + done.err


def test_no_byte_of_a_run_holds_any_of_sixty_secrets(tmp_path: Path) -> None:
    fake_nsys.install(tmp_path / "bin")
    run_dir, said = _profile(tmp_path, PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert len(_secrets()) >= 60
    assert _found(run_dir) == []
    assert [name for name, value in _secrets().items() if value in said] == []
    log = (run_dir / "nsys/log.txt").read_text()
    assert f"HF_TOKEN {REDACTED}\n" in log
    assert "site public-site-name, mailers, 1234567890 tokens, x-team\n" in log
    # The run itself got the values.
    assert "PASSED hf_ sword letmein mellon" in log
    seen = (tmp_path / "home/seen.txt").read_text()
    assert seen == VALUES["HF_TOKEN"] + IN_ARGUMENTS["flag"] + FROM_CONFIG["MY_SETTING"]
    manifest = valid_manifest(run_dir)
    written = yaml.safe_load((run_dir / "config.yaml").read_text())["workload"]["command"]
    assert written[2:] == [
        "--api-key",
        REDACTED,
        f"--token={REDACTED}",
        "${oc.env:MY_SETTING}",
        "-u",
        f"bob:{REDACTED}",
    ]
    assert manifest["config"]["workload"]["command"] == written
    assert REDACTED in (run_dir / "nsys/cmd.txt").read_text().splitlines()[0]
    # Another stage has to find the clean pass of this program again.
    made_by = json.loads((run_dir / "tmp/workload/clean/made_by.json").read_text())
    assert made_by[2:5] == ["--api-key", REDACTED, f"--token={REDACTED}"]
    assert json.loads((run_dir / "env.json").read_text())["variables"]["NCCL_ENDPOINT"] == REDACTED

    again = llm_perf_here("profile", f"run.resume={run_dir}", cwd=tmp_path, **VALUES)
    assert again.code == 2
    assert again.err == "error: workload.command: held a secret, which a run does not record; give it again\n"


@pytest.mark.real_nsys
@pytest.mark.long
@pytest.mark.parametrize("keep", ["never", "clean"])
def test_the_real_nsys_leaves_none_of_them_either(tmp_path: Path, keep: str) -> None:
    run_dir, _ = _profile(tmp_path, f"pipeline.nsys.keep_report={keep}")
    assert _found(run_dir) == []
    assert (run_dir / "nsys/run.sqlite").is_file()
    assert keep == "clean" or not (run_dir / "nsys/run.nsys-rep").exists()


@pytest.mark.long
def test_names_of_ranges_and_arguments_of_operators_hold_none_of_them(tmp_path: Path) -> None:
    """They are in a packed trace, and come from there into tables, reports and the trace for Perfetto."""
    (tmp_path / "program.py").write_text(
        "import gzip, os, sys, torch\n"
        "from torch.profiler import record_function\n"
        "with record_function('load ' + os.environ['HF_TOKEN']), record_function('step', sys.argv[2]):\n"
        "    with record_function('x' * 3000 + os.environ['DB_PASSWORD']):\n"
        "        torch.ones(64, 64) @ torch.ones(64, 64)\n"
        "gzip.open(os.environ['HOME'] + '/seen.gz', 'wt').write(os.environ['HF_TOKEN'] + sys.argv[2])\n"
    )
    words = f"'{sys.executable}','{tmp_path / 'program.py'}','--api-key','{IN_ARGUMENTS['flag']}'"
    done = llm_perf(
        "profile",
        *OFF[:3],
        "pipeline.torch_profiler.enable=true",
        "run.env_passthrough=[HF_TOKEN,DB_PASSWORD]",
        f"workload.command=[{words}]",
        cwd=tmp_path,
        timeout_s=120,
        HOME=str(tmp_path),
        **VALUES,
    )
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    assert _found(run_dir) == []
    # It was there to be found, and what it was the name of still is.
    hidden = "load " + "x" * len(VALUES["HF_TOKEN"])
    for trace in ("torch_profiler/trace.json.gz", "trace.perfetto.json.gz"):
        assert hidden in gzip.decompress((run_dir / trace).read_bytes()).decode()
    assert gzip.decompress((tmp_path / "seen.gz").read_bytes()).decode() == VALUES["HF_TOKEN"] + IN_ARGUMENTS["flag"]


SAMPLE_REPORT = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses/addConstDouble.ncu-rep")


@pytest.mark.skipif(not SAMPLE_REPORT.is_file(), reason="the reports that come with ncu are not here")
def test_a_report_of_ncu_loses_its_secrets_and_can_still_be_read(tmp_path: Path) -> None:
    """Its format has places for the command line and the environment of a program, as they are, nothing packed."""
    whole = load_ncu(SAMPLE_REPORT)
    path = b"/home/uuu/samples/uncoalescedGlobalAccesses/uncoalescedGlobalAccesses"
    data = SAMPLE_REPORT.read_bytes()
    secret = ("hf_" + "AbCdEfGhIjKlMnOpQrStUvWx").encode()
    planted = b"HF_TOKEN=" + secret + b" --token " + IN_ARGUMENTS["flag"].encode()
    report = tmp_path / "ncu/decode.ncu-rep"
    report.parent.mkdir()
    report.write_bytes(data.replace(path, planted.ljust(len(path), b"/")))
    assert report.read_bytes().count(secret) == data.count(path) > 1
    Redactor.of({"HF_TOKEN": secret.decode()}, more=[IN_ARGUMENTS["flag"]]).folder(tmp_path / "ncu")
    assert secret not in report.read_bytes() and IN_ARGUMENTS["flag"].encode() not in report.read_bytes()
    assert [replace(launch, source=str(SAMPLE_REPORT)) for launch in load_ncu(report)] == whole


def test_a_sweep_writes_no_secret_either(tmp_path: Path) -> None:
    program = "workload.command=['true','--api-key','letmein-argument-1']"
    environ = {**VALUES, **FROM_CONFIG}
    done = llm_perf_here("profile", "-m", *OFF, ALPHA, program, "run.seed=1,2", cwd=tmp_path, **environ)
    assert done.code == 0, done.err
    assert _found(tmp_path / "tmp") == []
    # Hydra prints the overrides of each job.
    assert f"'--api-key','{REDACTED}'" in done.out + done.err
    assert [name for name, value in _secrets().items() if value in done.out + done.err] == []


@pytest.mark.long
def test_a_load_test_writes_no_secret_either(tmp_path: Path) -> None:
    """The server prints its environment and quotes the key it was sent; both were given in four ways."""
    program = [sys.executable, str(REPO / "tests/support/fake_server.py"), "--fault", "tells_all"]
    words = [*program, "'{args}'", "--host", "'{host}'", "--port", "'{port}'"]
    done = llm_perf(
        "bench",
        f"server.command=[{','.join(words)}]",
        "server.env={SERVICE_PASS: letmein-argument-1, SETTING: '${oc.env:MY_SETTING}'}",
        "server.env_passthrough=[HF_TOKEN,DB_PASSWORD]",
        "server.api_key_env=PLAIN_KEY",
        "load.requests=4",
        "load.output_tokens=2",
        "dataset.prompt_tokens=4",
        cwd=tmp_path,
        timeout_s=120,
        PLAIN_KEY="sesame1",
        **VALUES,
        **FROM_CONFIG,
    )
    assert done.code == 1, done.err
    run_dir = only_run(tmp_path)
    assert _found(run_dir) == []
    assert [path for path in run_dir.rglob("*") if path.is_file() and b"sesame1" in path.read_bytes()] == []
    assert [name for name, value in {**_secrets(), "key": "sesame1"}.items() if value in done.out + done.err] == []
    # It got them.
    assert f"'HF_TOKEN': '{REDACTED}'" in (run_dir / "bench/server.log").read_text()
    error = json.loads((run_dir / "bench/requests.jsonl").read_text().splitlines()[0])["error"]
    assert error == f'HTTP 401: {{"error": "wrong key: Bearer {REDACTED}"}}'
    written = yaml.safe_load((run_dir / "config.yaml").read_text())["server"]["env"]
    assert written == {"SERVICE_PASS": REDACTED, "SETTING": "${oc.env:MY_SETTING}"}


def test_a_search_writes_no_secret_either(tmp_path: Path) -> None:
    """An experiment sets a variable and a flag to secrets, helps, and is recommended."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "time.sleep(0.01 if sys.argv[1:] else 0.2)\n"
        "print(sys.argv, dict(os.environ), file=sys.stderr)\n"
    )
    variables = {"SERVICE_PASS": IN_ARGUMENTS["flag"], "SETTING": VALUES["HF_TOKEN"], "SIZE": 4}
    experiment = {"name": "other", "overrides": [f"--token={IN_ARGUMENTS['assigned']}"], "environment": variables}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"experiments": [experiment]}))
    words = ("--experiments", "e.yaml", "--max-experiments", "1", "-o", "out", "--", sys.executable, str(program))
    done = llm_perf("optimize", *words, cwd=tmp_path, timeout_s=120, **VALUES, **FROM_CONFIG)
    assert done.code == 0, done.err
    assert _found(tmp_path / "out") == []
    assert [name for name, value in _secrets().items() if value in done.out + done.err] == []
    document = json.loads((tmp_path / "out/optimize.json").read_text())
    assert (document["best"], document["recommendation"]["environment"]) == (
        "other",
        {"SERVICE_PASS": REDACTED, "SETTING": REDACTED, "SIZE": "4"},
    )
    assert document["recommendation"]["command"] == (
        f"SERVICE_PASS='{REDACTED}' SETTING='{REDACTED}' SIZE=4 {sys.executable} {program} '--token={REDACTED}'"
    )


def test_the_page_of_a_capture_holds_no_token_of_the_names_in_it(tmp_path: Path) -> None:
    export = Export()
    export.registered_range(f"load {BY_SHAPE['range']} password={BY_SHAPE['dsn']}", 0, 1000)
    export.call(5, 6, 1)
    export.kernel("gemm", 10, 500, 1)
    path = export.write(tmp_path / "capture.sqlite")
    done = llm_perf_here("analyze", str(path), "-o", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert _found(tmp_path / "out") == []
    names = json.loads((tmp_path / "out/nsys/analysis.json").read_text())["ranges"]
    assert [row["name"] for row in names] == [
        f"load {'x' * len(BY_SHAPE['range'])} password={'x' * len(BY_SHAPE['dsn'])}"
    ]
