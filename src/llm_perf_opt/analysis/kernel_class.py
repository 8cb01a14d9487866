"""The class of a kernel (GEMM, attention, MoE, …) from its name, by the rules in kernel_classes.toml."""

import re
import tomllib
from functools import cache
from pathlib import Path

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
