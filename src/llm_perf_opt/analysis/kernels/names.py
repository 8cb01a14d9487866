"""A short, readable name for a demangled CUDA kernel.

The class of a kernel (GEMM, attention, MoE, …) from its name, by the rules in kernel_classes.toml.

Text as it can be printed and written, whatever it was read from.
"""

import re
import tomllib
from functools import cache
from pathlib import Path

MAX_LENGTH = 80
# Names so generic that they need the word before them.
_GENERIC = frozenset({"kernel", "Kernel", "run", "device_kernel"})
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel"})
_DETAILS = (
    re.compile(r"CUDAFunctor(?:OnSelf)?_(\w+)"),
    re.compile(r"\b(\w+?)_kernel_cuda\b"),
    re.compile(r"\b(\w+?)(?:_cuda)?_kernel(?:_impl)?\b"),
    re.compile(r"\b(\w+?)CUDAKernelImpl\b"),
    re.compile(r"\b(?!Binary|AUnary|BUnary|Unary)([A-Z]\w*?)Functor\b"),
    re.compile(r"\b([A-Z]\w+?)Ops\b"),
    re.compile(r"\b(\w+?)_functor\b"),
    re.compile(r"\b(\w+?)_cuda_out\b"),
)
_NOT_A_DETAIL = frozenset(
    {"gpu", "gpu_index", "launch", "elementwise", "unrolled_elementwise", "vectorized_elementwise"}
)
_NAMELESS = re.compile(r"(?:<unnamed>|\(anonymous namespace\))::")


def short_kernel_name(name: str) -> str:
    """`vectorized_elementwise_kernel[Mul]` for what C++ calls it; a plain name stays as it is."""
    text = _NAMELESS.sub("", name)
    head, arguments = _split(text)
    parts = head.split("::")
    base = parts[-1].strip()
    if base in _WRAPPERS and arguments.startswith("cutlass"):
        return _cut(_first_argument(arguments))
    if base in _GENERIC and len(parts) > 1:
        base = "::".join(parts[-2:])
    detail = _detail(arguments)
    return _cut(f"{base}[{detail}]" if detail else base or name)


def _split(text: str) -> tuple[str, str]:
    """The function's qualified name and its template arguments, without return type and parameters."""
    depth, start, open_at, close_at, previous = 0, 0, -1, -1, ""
    for index, character in enumerate(text):
        # The arrow of a trailing return type is no bracket.
        if character == "<":
            if depth == 0:
                open_at = index
            depth += 1
        elif character == ">" and previous != "-":
            depth = max(depth - 1, 0)
            close_at = index
        elif depth == 0 and character == "(" and index > start:
            text = text[:index]
            break
        elif depth == 0 and character == " ":
            start, open_at = index + 1, -1
        previous = character
    if open_at < 0:
        return text[start:], ""
    end = close_at if close_at > open_at else len(text)
    tail = text[end + 1 :].strip()
    # `type<A>::name` names something inside a template: the name is what follows.
    return (text[start:open_at] + tail if tail.startswith("::") else text[start:open_at]), text[open_at + 1 : end]


def _first_argument(arguments: str) -> str:
    depth = 0
    for index, character in enumerate(arguments):
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            return arguments[:index].strip()
    return arguments.strip()


def _detail(arguments: str) -> str:
    """The word among the template arguments that says what the kernel computes."""
    for pattern in _DETAILS:
        for match in pattern.finditer(arguments):
            if match[1] not in _NOT_A_DETAIL:
                return match[1]
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"


OTHER = "other"
CLASSES = ("GEMM", "attention", "MoE", "norm", "elementwise", "reduction", "copy", "communication", OTHER)


@cache
def class_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The rules in order: class and pattern."""
    text = Path(__file__).with_name("kernel_classes.toml").read_text(encoding="utf-8")
    return tuple((rule["class"], re.compile(rule["pattern"], re.IGNORECASE)) for rule in tomllib.loads(text)["rule"])


def classify_kernel(name: str) -> str:
    """The class of the first rule whose pattern is in the name, or `other`."""
    return next((kind for kind, pattern in class_rules() if pattern.search(name)), OTHER)


def as_utf8(text: str) -> str:
    """Half a surrogate pair, or a byte that is no text, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
