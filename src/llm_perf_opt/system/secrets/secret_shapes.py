"""What a secret looks like: by the name of a variable, flag or setting, and by the shape of a value."""

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath

REDACTED = "(redacted)"
SHORTEST_SECRET = 5
# nsys and ncu mark the processes they watch with session ids and tokens of their own, which are not secrets.
_OF_THE_TOOLS = r"NSYS_|QUADD_|NV_TPS_|NV_NSIGHT_|LLM_PERF_COMMAND_ID$"
_TOOLS_NAME = re.compile(_OF_THE_TOOLS)
_WORDS = (
    r"TOKEN(?!IZ)",  # tokenizers have none
    r"(?<!BY)PASS(?!ES|IVE|THROUGH|ENV|_PLUGIN)",  # passes of a compiler have none
    r"AUTH(?!OR(?!I[SZ]))",  # an author is none, an authorization is
    r"_PWD$",
    r"_PAT$",
    r"HEADERS$",
    *("SECRET", "CREDENTIAL", "KEY", "JWT", "COOKIE", "SESSION_ID"),
)
SECRET_NAME = re.compile(rf"^(?!{_OF_THE_TOOLS}).*({'|'.join(_WORDS)})", re.IGNORECASE)
PLACE_NAME = re.compile(r"(SOCK|SOCKET|FILE|PATH|DIR|HOME|AUTHORITY|LD_PRELOAD)$", re.IGNORECASE)
# Long and random, and meant to be read: commits, digests, devices.
_PUBLIC_NAME = re.compile(
    r"^LD_PRELOAD$|SHA\d*$|COMMIT|REVISION|DIGEST|HASH|VISIBLE_DEVICES|UUID|INVOCATION_ID|BUILD_ID|HOSTNAME"
)
_PREFIXES = (
    r"hf_(?=[A-Za-z0-9]{8})|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|eyJ|nvapi-|AIza|npm_|pypi-"
    r"|[sr]k_(?:live|test)_|whsec_|gsk_|pplx-|xai-|pcsk_|lsv2_|wandb_v1_|api_org_|dckr_pat_|GOCSPX-|xapp-|gl(?:rt|dt|cbt)-"
    r"|do[op]_v1_|AGE-SECRET-KEY-"
)
# Those whose beginning others have too: with the length, or the letters, that make them keys.
_WITH_LENGTH = (
    r"r8_[A-Za-z0-9]{37}|dapi[0-9a-f]{32}|hvs\.[A-Za-z0-9_-]{24,256}|rpa_[A-Z0-9]{32,64}[a-z0-9]{0,8}"
    r"|1//0[A-Za-z0-9_-]{30,256}|[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}|ntn_[A-Za-z0-9]{40,64}"
    r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}|NRAK-[A-Z0-9]{27}|sbp_[0-9a-f]{40}"
    r"|(?:sntry[su]|lin_api|figd)_(?=[A-Za-z_=+/-]{0,60}\d)[A-Za-z0-9_=+/-]{40,256}|glc_eyJ[A-Za-z0-9_=+/-]{20,1024}"
    r"|(?:ATATT3x|tvly-(?:dev-|prod-)?|tskey-(?:api|auth|client)-)(?=[A-Za-z_=-]{0,30}\d)[A-Za-z0-9_=-]{28,256}"
    r"|dp\.(?:pt|st)\.[A-Za-z0-9]{40,44}|fw_(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{22,24}"
)
_STARTS_LIKE_A_TOKEN = re.compile(rf"^(?:(?:{_PREFIXES})[A-Za-z0-9_.-]{{8}}|{_WITH_LENGTH})")
# The names of flags and settings that hold a secret; `max_tokens` and `eos_token` do not.
_SETTING = (
    r"_{0,2}(?:[A-Za-z0-9]{1,30}[_.-]){0,6}?"
    # As those write names who put no sign between their words: `SecretAccessKey`, `clientSecret`, `dbPassword`.
    r"(?:secret|shared|client|consumer|app|user|db|database|admin|root|master|proxy)?"
    r"(?:api[_-]?key|apikey|(?:access|account|private|secret|signing|encryption|master)[_-]?key"
    r"|(?:api|access|auth|bot|hf|bearer|refresh|session|security|id|github|gitlab|hub|web)[_-]?token|(?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)token"
    r"|secret|passw(?:or)?d|passphrase|pwd|credentials?|authorization|cookie|dsn|webhook(?:[_-]?url)?)"
)
_FLAG = re.compile(rf"--?{_SETTING}", re.IGNORECASE)
_SETTING_NAME = re.compile(_SETTING, re.IGNORECASE)
_NUMBER = re.compile(r"[\d.,_]{1,9}|true|false|null|none|auto|bearer|basic", re.IGNORECASE)
_ANY_NUMBER = re.compile(r"[\[{(-]*[\d.,_eE+-]+")
# Neither control characters nor bytes that are not text: in a binary file a value ends there.
_UNQUOTED = r"[^\s\"'`,;&)\]}\\\x00-\x1f\udc80-\udcff]{6,4096}"
# Within quotes also the signs that end one elsewhere.
_VALUE = (
    r"(?:(?<=\")[^\s\"\\\x00-\x1f\udc80-\udcff]{6,4096}(?=\\?\")|(?<=')[^\s'\\\x00-\x1f\udc80-\udcff]{6,4096}(?=\\?')"
    rf"|{_UNQUOTED})"
)

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.{0,16000}?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_TOKEN = re.compile(
    rf"(?<![A-Za-z0-9_-])(?:(?:{_PREFIXES}|SG\.|ya29\.)[A-Za-z0-9_.-]{{12,4096}}|(?:{_WITH_LENGTH})(?![A-Za-z0-9]))"
    # A bot's, which is in the addresses its messages go to.
    r"|(?<!\d)\d{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"
)
_URL_USER = re.compile(
    r"(?<![a-zA-Z])[a-zA-Z][a-zA-Z0-9+.-]{1,20}://"
    r"([^/\s:@'\"\x00-\x1f]{0,256}:[^/\s'\"\x00-\x1f]{1,512}|[^/\s:@'\"\x00-\x1f]{16,512})@"
)
_WEBHOOK = re.compile(
    r"https?://(?:hooks\.slack\.com/services|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w.-]{1,80}\.webhook\.office\.com"
    r"|outlook\.office\.com/webhook)/([^\s'\"\\\x00-\x1f]{1,2048})"
)
_QUERY = re.compile(
    r"[?&;](?:sig|signature|x-(?:amz|goog)-signature|key|code|token|[a-z_-]{0,20}(?:token|secret|password|apikey|api_key))="
    r"([^&;\s'\"\\\x00-\x1f]{6,4096})",
    re.IGNORECASE,
)
_AUTH = re.compile(
    r"(?:\b|%20)(?i:bearer|basic|(?<=authorization: )(?:token|apikey|negotiate))(?:\s+|%20)"
    r"((?=[A-Za-z._~+/=-]{0,200}[0-9A-Z])[A-Za-z0-9._~+/=-]{12,4096})"
)
# What proves that a client knows a password: of the header of a request, signed or by digest.
_PROOF = re.compile(
    r"\bauthorization[\"'\\]{0,3}\s{0,3}[:=]\s{0,3}(?:digest|aws4-hmac|hmac|signature)[^\n\x00]{0,300}?\b(?:response|signature)=\\?\"?([0-9a-f]{32,128})(?![0-9a-f])",
    re.IGNORECASE,
)
_ORACLE = re.compile(r"\bjdbc:oracle:\w{2,8}:[^/\s:@\"']{1,128}/([^/\s@\"'\x00-\x1f]{1,256})@")
# A user and a password in base64, in the files of Docker and npm.
_LOGIN = re.compile(
    r"(?<![A-Za-z0-9])_?auth\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?"
    r"((?:[A-Za-z0-9+/]{4}){2,512}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)(?![A-Za-z0-9+/=])"
)
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_])({_SETTING})\\?[\"']?(\s{{0,4}}[=:]\s{{0,4}}\\?[\"']?)({_VALUE})", re.IGNORECASE
)
# What is behind `token: ` in a sentence, and behind `token = ` in a program.
_WORD = re.compile(r"[a-z]{1,12}[.:!?]?")
_CALL = re.compile(r"[A-Za-z_][\w.]*[(\[]")
_GIVEN = re.compile(
    rf"--?{_SETTING}[\"'\\]{{0,3}}(?:\s{{0,4}},\s{{0,4}}|\s{{1,4}})[\"'\\]{{0,3}}({_VALUE})", re.IGNORECASE
)
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{2,80})=[\"']?([^\s\"';\x00-\x1f\udc80-\udcff]{5,4096})")
# curl's: `-u user:password`. Docker's flag of that name takes user:group, so numbers and equal names stay.
_USER = re.compile(
    r"(?:^|(?<=[\s\"'\[,(]))(?:-u|-U|--user|--proxy-user)(?:[\"']?\s{0,4},\s{0,4}[\"']?|[= ]\s{0,3}[\"']?|(?=[A-Za-z]))"
    r"([^:/\s\"',]{1,256}):([^/\s\"',\x00-\x1f][^\s\"',\x00-\x1f]{3,512})"
)
# `mysql -pPASSWORD` and `sshpass -p PASSWORD`, as a shell that prints its commands writes them.
_CLIENT = re.compile(
    r"\b(?:mysql\w{0,10}\s(?:[^\n|;&\x00]{0,200}?\s)??-p|sshpass\s{1,4}-p\s{0,4})[\"']?([^\s\"'|;&\\\x00-\x1f]{5,256})"
)
_USER_FLAGS = ("-u", "-U", "--user", "--proxy-user")
# A line of .netrc; a log seldom has these words in this order.
_NETRC = re.compile(r"\blogin\s{1,4}[^\s\"']{1,256}\s{1,8}password\s{1,4}([^\s\"'\\\x00-\x1f]{3,512})")
# Programs whose `-pVALUE` is a password; `-p` alone is a port of most others.
_TAKES_PASSWORD = re.compile(r"(?:mysql|mariadb)\w*|sshpass|mongo\w*|ldap\w+|smbclient", re.IGNORECASE)
_BY_WORDS = (_QUERY, _AUTH, _NETRC, _CLIENT, _PROOF, _ORACLE)
# A text without any of these holds no secret by its shape; looking for them is much faster than the patterns are.
MARKS = (
    *("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat", "glpat-", "xox", "akia", "asia", "eyj", "nvapi-"),
    *("aiza", "npm_", "pypi-", "k_live_", "k_test_", "whsec_", "gsk_", "pplx-", "xai-", "pcsk_", "lsv2_", "_v1_"),
    *("api_org_", "gocspx-", "xapp-", "glrt-", "gldt-", "glcbt-", "r8_", "dapi", "hvs.", "rpa_", "1//0", "q~", ":aa"),
    *("sg.", "ya29.", "://", "bearer", "basic", "private key", "key", "token", "secret", "pass", "pwd", "credential"),
    *("auth", "cookie", "dsn", "webhook", "jwt", "session_id", "sig=", "signature=", "code=", "-u", "mysql"),
    *(
        "sntry",
        "lin_api_",
        "figd_",
        "glc_ey",
        "atatt3",
        "tvly-",
        "ntn_",
        "shp",
        "glsa_",
        "nrak-",
        "sbp_",
        "dp.pt.",
        "dp.st.",
    ),
    *("fw_", "c:oracle:"),
)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret by its name or by its value."""
    if len(value) < SHORTEST_SECRET or _TOOLS_NAME.match(name):
        return False
    # SSH_AUTH_SOCK, XAUTHORITY and the like name a place, and a place is not a secret.
    is_place = value.startswith("/") and PLACE_NAME.search(name)
    if SECRET_NAME.search(name) and not is_place:
        return True
    if _STARTS_LIKE_A_TOKEN.search(value) or shape_spans(value):
        return True
    return not is_place and _is_random(name, value)


def is_of_a_tool(name: str) -> bool:
    """Whether a variable is one by which nsys, ncu or llm-perf mark the processes they watch."""
    return _TOOLS_NAME.match(name) is not None


def without_shapes(text: str) -> str:
    """A text without what looks like a secret by itself or by the word before it."""
    out, at = [], 0
    for start, end in shape_spans(text):
        out += [text[at:start], REDACTED]
        at = end
    return "".join((*out, text[at:])) if out else text


def shape_spans(text: str, *, is_code: bool = False, in_file: bool = False) -> list[tuple[int, int]]:
    """Where secrets occur in a text, by their shape: start and end of each, in order, none overlapping.

    Of code only what is a secret by itself. In a file numbers stay regardless of what precedes them: they are data.
    """
    lower = text.lower()
    if not any(mark in lower for mark in MARKS):
        return []
    found = [match.span() for pattern in (_PRIVATE_KEY, _TOKEN) for match in pattern.finditer(text)]
    found += [match.span(1) for pattern in (_URL_USER, _WEBHOOK) for match in pattern.finditer(text)]
    if not is_code:
        found += [match.span(1) for pattern in _BY_WORDS for match in pattern.finditer(text)]
        found += [match.span(1) for match in _LOGIN.finditer(text) if login_in(match[1])]
        named = [(match[3], match.span(3)) for match in _ASSIGNED.finditer(text) if not _is_prose(*match.groups())]
        named += [(match[1], match.span(1)) for match in _GIVEN.finditer(text)]
        named += [(match[2], match.span(2)) for match in _VARIABLE.finditer(text) if _names_a_secret(match)]
        named += [(match[2], match.span(2)) for match in _USER.finditer(text) if not _is_group(match[1], match[2])]
        kept = _ANY_NUMBER if in_file else _NUMBER
        found += [span for value, span in named if not (is_plain(value) or kept.fullmatch(value))]
    return merged(span for span in found if not _is_gone(text[slice(*span)]))


def names_a_setting(name: str) -> bool:
    """Whether a setting or a flag of this name holds a secret."""
    return _SETTING_NAME.fullmatch(name) is not None


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _names_a_secret(found: re.Match[str]) -> bool:
    name, value = found.groups()
    is_place = value.startswith("/") and PLACE_NAME.search(name)
    return bool(SECRET_NAME.search(name)) and not is_place


def _is_prose(name: str, sign: str, value: str) -> bool:
    """Whether it is a sentence about a token, an expression of a program or a working directory, and no setting."""
    if name.lower() in ("pwd", "oldpwd") and value.startswith("/"):
        return True
    if not sign[-1].isspace():
        return False
    is_sentence = ":" in sign and not re.search(r"pass|pwd|secret|key", name, re.IGNORECASE) and _WORD.fullmatch(value)
    return bool(is_sentence or _CALL.match(value))


def login_in(coded: str) -> tuple[str, str] | None:
    """The user and the password that base64 holds; None of any other."""
    try:
        user, sign, password = base64.b64decode(coded, validate=True).partition(b":")
    except ValueError:
        return None
    is_text = (user + password).isascii() and (user + password).decode("ascii", "replace").isprintable()
    return (user.decode(), password.decode()) if user and sign and password and is_text else None


def _is_group(user: str, value: str) -> bool:
    """Whether `-u USER:VALUE` is a user and a group."""
    return value == user or value.isdigit() or bool(_NUMBER.fullmatch(value))


def is_plain(value: str) -> bool:
    """Whether what is in the place of a secret is none, or was overwritten."""
    return _is_gone(value) or bool(_NUMBER.fullmatch(value))


def _is_gone(value: str) -> bool:
    return set(value) == {"x"} or value.startswith(REDACTED[:-1])


def _is_random(name: str, value: str) -> bool:
    """Whether a value is so mixed that it was made by a generator: long runs, or short ones full of signs."""
    if _PUBLIC_NAME.search(name):
        return False
    if any(is_mixed(run) for run in re.findall(r"[A-Za-z0-9+=_-]{20,4096}", value)):
        return True
    signs = len(re.findall(r"[!#$%^&*?~]", value))
    kinds = sum(bool(re.search(kind, value)) for kind in (r"[a-z]", r"[A-Z]", r"\d"))
    return len(value) >= 10 and signs >= 2 and kinds >= 2 and not re.search(r"[\s/:;\\]", value)


def is_mixed(run: str) -> bool:
    """Letters and digits in turn, as no name has them."""
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run if c.isalnum()]
    turns = sum(before != after for before, after in pairwise(kinds))
    counts = Counter(run)
    entropy = -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values())
    return "d" in kinds and len(set(kinds)) > 1 and turns >= len(run) / 6 and entropy >= 3.0


def hidden_in(argv: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """The words of a command that hold a secret because of a flag: the number of the word, and where it is."""
    takes_password = any(_TAKES_PASSWORD.fullmatch(PurePath(word).name) for word in argv)
    for index, word in enumerate(argv):
        flag, sign, value = word.partition("=")
        if sign and _FLAG.fullmatch(flag) and not is_plain(value):
            yield index, len(flag) + 1, len(word)
        elif word[:2] == "-p" and len(word) > 4 and (takes_password or _is_password(word[2:])):
            yield index, 2, len(word)
        before = argv[index - 1] if index else ""
        is_flag = _FLAG.fullmatch(before) or (before == "-p" and takes_password)
        if is_flag and not is_plain(word) and not word.startswith("-"):
            yield index, 0, len(word)
        found = _USER.fullmatch(f"{before} {word}") if before in _USER_FLAGS else None
        if found is not None and not _is_group(found[1], found[2]):
            yield index, len(word) - len(found[2]), len(word)


def _is_password(value: str) -> bool:
    """Whether the text after `-p` is a password: no port, path or option, but mixed letters and digits, or signs."""
    kinds = sum(bool(re.search(kind, value)) for kind in (r"[a-z]", r"[A-Z]", r"\d"))
    signs = re.search(r"[!@#$%^&*]", value) is not None
    return len(value) >= 6 and not re.search(r"[/:=,]", value) and (kinds == 3 or (signs and kinds >= 2))
