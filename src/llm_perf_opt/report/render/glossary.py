"""Words of the trade, explained where they are read: texts as HTML with their terms marked and code set as code."""

import re

from markupsafe import Markup, escape

GLOSSARY = {
    "TTFT": "time to first token: from the start of prefill until the first token is chosen",
    "TPOT": "time per output token: what each token after the first takes",
    "ITL": "inter-token latency: the time between two tokens of a stream",
    "MFU": "model FLOPs utilisation: the FLOPs the model needs, of what the GPU's peak could do in that time",
    "MBU": "model bandwidth utilisation: the bytes the model must read, of what the memory could move in that time",
    "Prefill": "the forward pass over the prompt, which gives the first token",
    "Decode": "the steps after prefill, one token each",
    "launch-bound": "the GPU waits because the CPU does not launch kernels fast enough",
    "memory-bound": "limited by how fast memory moves bytes, not by arithmetic",
    "compute-bound": "limited by arithmetic, not by memory",
    "latency-bound": "neither compute nor memory is busy: too little parallel work, or waits inside the kernel",
    "CUDA graphs": "a recorded sequence of kernels that is launched with one call",
    "CUDA graph": "a recorded sequence of kernels that is launched with one call",
    "KV cache": "keys and values of all earlier tokens, kept so that they are not computed again",
    "occupancy": "active warps on an SM, of those it can hold",
    "roofline": "FLOP/s against FLOPs per byte, with the peaks of the hardware",
    "GEMM": "general matrix multiplication",
    "Unfused": "done by many small kernels instead of one",
    "split-K": "splitting the inner dimension of a GEMM among blocks, so that more of them work",
    "Amdahl": "the gain of a speed-up is limited by its share of the time",
}
# Units and keys at the start of a column's name stay as they are.
NOT_WORDS = ("n", "ms")
_TERMS = re.compile(r"(?<![\w-])(" + "|".join(re.escape(term) for term in GLOSSARY) + r")(?![\w-])")
_CODE = re.compile(r"`([^`]+)`")


def terms(text: str) -> Markup:
    """A text with the first use of each term explained."""
    seen: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        if match[1] in seen:
            return match[0]
        seen.add(match[1])
        return f'<abbr title="{escape(GLOSSARY[match[1]])}">{match[0]}</abbr>'

    return Markup(_TERMS.sub(mark, str(escape(text))))


def words(text: str | None) -> Markup:
    """The same, and what is in backticks as code."""
    parts = _CODE.split(text or "")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else terms(part) for index, part in enumerate(parts)
    )


def heading(text: str) -> str:
    """A column's name with a capital, but for units and keys."""
    word = text.partition(" ")[0].rstrip(",")
    return text if word in NOT_WORDS or "_" in word or not word.islower() else upper_first(text)


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]
