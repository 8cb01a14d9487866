"""The input a static analysis is made for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class View:
    """`count` square images of `size` pixels that go through the image side as one batch."""

    size: int
    count: int


@dataclass(frozen=True, kw_only=True)
class PagePrompt:
    """What a page becomes: `tokens` of the whole prompt, the text around the page included, and its views."""

    tokens: int
    views: tuple[View, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`prompt` counts image tokens too; `context` is what the cache holds before the decode step.

    `how` says where the figures are from.
    """

    batch: int
    prompt: int
    context: int
    how: str
    views: tuple[View, ...] = ()
