"""Text as it can be printed and written, whatever it was read from."""


def as_utf8(text: str) -> str:
    """Half a surrogate pair, or a byte that is no text, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
