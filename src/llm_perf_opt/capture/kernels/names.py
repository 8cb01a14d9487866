"""A kernel's own identity, read from its name: a short name for people, and its class by the rules alongside this file.

A C++ kernel's name carries its template arguments and its parameters, and the words in those say what it was given, not
what it does. So the class is decided by the function's own qualified name. Only where that is a wrapper that runs
whatever it is given (`elementwise_kernel`, `cutlass::device_kernel`), the argument it runs is part of the identity.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

OTHER = "other"
# Longer names are cut: a name is for reading, and a report must stay a report.
MAX_NAME = 4096
CLASSES = (
    "GEMM", "attention", "MoE", "norm", "elementwise", "reduction", "copy", "communication",
    "convolution", "quantisation", "sampling", "embedding", "KV cache", OTHER,
)  # fmt: skip
# Work between products that one kernel could do in passing.
FUSIBLE = ("elementwise", "norm", "reduction", "copy")
_FUSED = re.compile(
    r"^triton_\w+_fused_|^(loop|input|wrapped)_\w*fusion|^fusion_\d|^fused_|^__myl_|^generatedNativePointwise"
    r"|nvfuser|CudaCodeGen"
)
# Passes of one algorithm that need each other's whole result, and kernels that take many tensors at once already.
_WHOLE = re.compile(
    r"sort|scan|histogram|top_?k|unique|\bcub::|multi_tensor_apply|nonzero|foreach|optimizer|adam",
    re.IGNORECASE,
)
# Tensors filled with random numbers read nothing that another kernel could leave out: mostly they are weights.
_RANDOM_FILL = re.compile(r"distribution_\w*kernel<.*\b(normal|uniform)_")
# A library's own change of the layout of images, around a kernel that wants another than it was given.
_LAYOUT = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
MAX_LENGTH = 80
TAIL_LENGTH = 20
# How many words may distinguish kernels with the same short name.
MOST_WORDS = 3
# A longer word is itself made of words: a generated name, or a mangled one with numbers among its arguments.
LONG_WORD = 32
_WORD = re.compile(r"\w+")
# A number given as a template argument, up to its digits: `Li128E`, `Lb1E`.
_MANGLED_LITERAL = re.compile(r"L[a-z]n?$")
_MANGLED_NUMBER = re.compile(r"L[a-z](\d+)E")
_NOISE = frozenset({"c10", "at", "native", "const", "std", "void", "lambda", "operator", "instance", "unnamed"})
# Names so generic that they need the word before them.
_GENERIC = frozenset({"kernel", "Kernel", "run", "device_kernel", "transpose", "combine", "dispatch", "type"})
# Functions that only run the type they are given.
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel", "kentry", "kernel_entry", "_kernel_agent"})
_ENABLERS = re.compile(r"enable_\w+")
_TARGET = re.compile(r"\bgfx\w+_t$")
# What CUTLASS gives its universal product where there are several: those of experts.
_GROUPED = "GroupProblemShape"
# Functions that apply an operation they are given: its name is part of theirs.
_APPLIERS = re.compile(
    r"elementwise|^reduce_kernel|multi_tensor_apply|trampoline_kernel|act_and_mul|^unary_|^binary_|_kernel_agent|^kernel$"
)
_DETAILS = (
    re.compile(r"\bwrapped_(\w+?)_config\b"),
    re.compile(r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"),
    re.compile(r"\b(\w+?)_kernel_cuda\b"),
    re.compile(r"\b(\w+?)(?:_cuda)?_kernel(?:_impl)?\b"),
    re.compile(r"\b(\w+?)CUDAKernelImpl\b"),
    re.compile(r"\b(?!Binary|AUnary|BUnary|Unary)([A-Z]\w*?)Functor\b"),
    re.compile(r"\b([A-Z]\w+?)Ops\b"),
    re.compile(r"\b(\w+?)_functor\b"),
    re.compile(r"\b(\w+?)_cuda_out\b"),
    re.compile(r"\blaunch_(clamp)_scalar\b"),
    re.compile(r"\b(copy_device_to_device)\b"),
    re.compile(r"\bstd::(plus|minus|multiplies|divides)\b"),
    re.compile(r"\bfbgemm_gpu::(\w+)_gpu\b"),
    re.compile(r"\b(Copy)<"),
    re.compile(r"\b(silu|gelu\w*|relu|swiglu\w*)\b"),
)
_NOT_A_DETAIL = frozenset(
    {"gpu", "gpu_index", "launch", "elementwise", "unrolled_elementwise", "vectorized_elementwise"}
)
_NAMELESS = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|\{anonymous\})::")
# What ROCm writes around a name.
_SUFFIX = re.compile(r"^hipGraphLaunch->|(?: ?\[clone [^\]]*\])+$|\.kd$")
_PART = re.compile(r"(\d+)")
_MANGLED_ANONYMOUS = re.compile(r"_GLOBAL__N_")
# Tile, such as cute::tuple<cute::C<128>, cute::C<64>, …> or cute::tuple<cute::Int<128>, …>.
_TILE = re.compile(r"tuple<(?:cute::)?(?:C|Int)<(\d+)>, ?(?:cute::)?(?:C|Int)<(\d+)>, ?(?:cute::)?(?:C|Int)<(\d+)> ?>")
# Parts of a pattern that do not mean the same in lower case.
_CASED = re.compile(r"\\[A-Z]|\(\?-?[a-zA-Z]*-i")


@cache
def class_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The rules in order: class and pattern, of the name in lower case unless the pattern ignores case."""
    text = Path(__file__).with_name("kernel_classes.toml").read_text(encoding="utf-8")
    return tuple((rule["class"], _caseless(rule["pattern"])) for rule in tomllib.loads(text)["rule"])


def _caseless(pattern: str) -> re.Pattern[str]:
    """In lower case, for names in lower case, where that means the same: twice as fast as to ignore case."""
    if _CASED.search(pattern):
        return re.compile(pattern, re.IGNORECASE | re.VERBOSE)
    return re.compile(pattern.lower(), re.VERBOSE)


def classify_kernel(name: str) -> str:
    """The class of the first rule whose pattern is found in the kernel's identity, or `other`."""
    return _class_of(kernel_identity(name))


@lru_cache(maxsize=1 << 16)
def _class_of(identity: str) -> str:
    """Many kernels that differ in their template arguments share one identity."""
    lower = identity.lower()
    rules = class_rules()
    return next((kind for kind, p in rules if p.search(identity if p.flags & re.IGNORECASE else lower)), OTHER)


def is_fusible(name: str) -> bool:
    """Whether a kernel does little work on each number it reads, and a compiler could make it part of another one."""
    if classify_kernel(name) not in FUSIBLE or _FUSED.search(name) or _RANDOM_FILL.search(name):
        return False
    return _WHOLE.search(kernel_identity(name)) is None and not changes_layout(name)


def changes_layout(name: str) -> bool:
    """Whether a library turns images around with it, from one order of their channels to the other."""
    return _LAYOUT.search(name) is not None


@lru_cache(maxsize=1 << 16)
def kernel_identity(name: str) -> str:
    """`at::native::vectorized_elementwise_kernel[Mul]`: the qualified name, and what a wrapper runs."""
    head, arguments = _split(name)
    base = head.rpartition("::")[2]
    if _runs_a_type(base):
        inner = _first_type(arguments)
        return kernel_identity(inner) if inner else head
    if base == "GemmUniversal" and _GROUPED in arguments:
        return f"{head}[{_GROUPED}]"
    detail = _detail(arguments) if _APPLIERS.search(base) else ""
    return f"{head}[{detail}]" if detail else head


@lru_cache(maxsize=1 << 16)
def short_kernel_name(name: str) -> str:
    """`vectorized_elementwise_kernel[Mul]` for what C++ calls it; a plain name stays as it is."""
    head, arguments = _split(name)
    parts = head.split("::")
    base = parts[-1]
    if _runs_a_type(base) and (inner := _first_type(arguments)):
        tile = _TILE.search(arguments)
        short = short_kernel_name(inner)
        return _without_middle(f"{short}[{'x'.join(tile.groups())}]" if tile and not short.endswith("]") else short)
    if base in _GENERIC and len(parts) > 1:
        base = "::".join(parts[-2:])
    detail = _detail(arguments)
    return _without_middle(f"{base}[{detail}]" if detail else base or name)


def distinct_short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Short names for one table: where several kernels share one, what differs in their full names is added.

    `vectorized_elementwise_kernel[add]` becomes `…[add, float]` and `…[add, BFloat16]`.
    """
    short = [short_kernel_name(name) for name in names]
    same: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(short):
        same[name].append(index)
    for name, members in same.items():
        if len(members) > 1:
            for index, words in zip(members, _differences([names[index] for index in members]), strict=True):
                short[index] = f"{name[:-1]}, {words}]" if name.endswith("]") else f"{name}[{words}]"
    return tuple(short)


def _differences(names: Sequence[str]) -> list[str]:
    """For each name the fewest of its own words that no other has in the same order, or a number."""
    words = [[word for word in dict.fromkeys(_words(name)) if word not in _NOISE] for name in names]
    common = set[str].intersection(*map(set, words))
    # Types say more than numbers.
    own = [sorted((w for w in part if w not in common), key=lambda w: w[0].isdigit()) for part in words]
    for count in range(1, MOST_WORDS + 1):
        found = [", ".join(part[:count]) for part in own]
        if len(set(found)) == len(found) and all(found):
            return found
    return [f"#{sorted(names).index(name) + 1}" for name in names]


def _words(name: str) -> list[str]:
    found: list[str] = []
    for word in _WORD.findall(name):
        if len(word) <= LONG_WORD:
            found.append(word)
        else:
            found += (
                _MANGLED_NUMBER.findall(word) if word.startswith("_Z") else [part for part in word.split("_") if part]
            )
    return found


def cut_name(name: str) -> str:
    """A name no longer than `MAX_NAME`."""
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"


def as_utf8(text: str) -> str:
    """Text as it can be printed and written: half a surrogate pair, or a byte that is not text, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _runs_a_type(base: str) -> bool:
    return base in _WRAPPERS or _ENABLERS.fullmatch(base) is not None


@lru_cache(maxsize=1 << 16)
def _split(name: str) -> tuple[str, str]:
    """The function's qualified name and its template arguments, without return type and parameters."""
    text = _SUFFIX.sub("", _NAMELESS.sub("", name))
    if text.startswith("_Z"):
        return _split_mangled(text)
    open_: list[str] = []
    start, first, last, previous = 0, -1, -1, ""
    end = len(text)
    for index, character in enumerate(text):
        if character == "<":
            # A comparison among the arguments is between brackets, a template's list behind a name.
            if previous.isalnum() or previous == "_":
                if not open_:
                    first = index
                open_.append(character)
        elif character == ">":
            if previous != "-" and open_ and open_[-1] == "<":
                open_.pop()
                if not open_:
                    last = index
        elif character == "(":
            if not open_ and index > start:
                end = index
                break
            open_.append(character)
        elif character == ")":
            while open_ and open_.pop() != "(":
                pass
        elif character == " " and not open_:
            start, first, last = index + 1, -1, -1
        previous = character
    if first < 0:
        head = text[start:end].strip()
        # Brackets that do not match, as in a name that was cut: then all of it is the name.
        return (head if any(character.isalnum() for character in head) else text), ""
    close = last if last > first else end
    tail = text[close + 1 : end].strip()
    # `type<A>::name` names something inside a template: the name is what follows.
    return text[start:first] + (tail if tail.startswith("::") else ""), text[first + 1 : close]


def _split_mangled(name: str) -> tuple[str, str]:
    """The qualified name of a mangled one, and the names among its template arguments."""
    at = 2
    while at < len(name) and name[at] in "NKVrSt":
        at += 1
    words: list[str] = []
    while match := _PART.match(name, at):
        at = match.end() + int(match[1])
        word = name[match.end() : at]
        if not _MANGLED_ANONYMOUS.match(word):
            words.append(word)
    inside: list[str] = []
    while match := _PART.search(name, at):
        if _MANGLED_LITERAL.search(name, at, match.start()) and name[match.end() : match.end() + 1] == "E":
            at = match.end() + 1
            continue
        before, at = at, match.end() + int(match[1][:3])
        word = name[match.end() : at]
        if not word.isidentifier():
            at = match.end()
        elif not _MANGLED_ANONYMOUS.match(word):
            inside.append(("::" if match.start() == before and inside else ", ") + word)
    return "::".join(words) or name, "".join(inside).removeprefix(", ")


def _first_type(arguments: str) -> str:
    """The first argument that is a type to run: neither a number nor the hardware it is built for."""
    depth = start = 0
    for index, character in enumerate(arguments + ","):
        depth += (character in "<({") - (character in ">)}")
        if character == "," and depth <= 0:
            part = arguments[start:index].strip()
            start = index + 1
            if part and not part[0].isdigit() and not part.startswith("(") and not _TARGET.search(part):
                return part
    return ""


def _detail(arguments: str) -> str:
    """The word among the template arguments that says what the kernel computes."""
    for pattern in _DETAILS:
        for match in pattern.finditer(arguments):
            if match[1] not in _NOT_A_DETAIL:
                return match[1]
    return ""


def _without_middle(text: str) -> str:
    """A long name keeps its end: generated names differ in their last number."""
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1 - TAIL_LENGTH] + "…" + text[-TAIL_LENGTH:]
