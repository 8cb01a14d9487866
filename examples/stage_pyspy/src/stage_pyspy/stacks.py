"""What py-spy's raw format says (a stack and how often it was seen, line by line), as a tree and as a flame graph."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, ROW, DEEPEST = 1000, 17, 40
NARROWEST = 1.0  # pixels; what is narrower is not drawn
COLOURS = ("#E69F00", "#F0C75E", "#D55E00", "#E8926B", "#CC8A3B")


@dataclass(kw_only=True)
class Frame:
    """A function, called by the one above it."""

    name: str
    samples: int = 0
    calls: dict[str, "Frame"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """All stacks: their tree, and how often each function was at work itself."""

    root: Frame
    own: Counter[str]


def read_stacks(text: str) -> Sampled:
    """Lines such as `main (app.py:3);work (app.py:9) 17`, the outermost function first."""
    root, own = Frame(name="all"), Counter[str]()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        # With --subprocesses the command lines of the processes are in front, regardless of their contents.
        names = [name for name in re.sub(r'^process \d+:".*";', "", stack).split(";") if name]
        if not names or not count.isdigit():
            continue
        own[names[-1]] += int(count)
        root.samples += int(count)
        at = root
        for name in names:
            at = at.calls.setdefault(name, Frame(name=name))
            at.samples += int(count)
    return Sampled(root=root, own=own)


def draw_flames(root: Frame) -> str:
    """The tree from its root down; the width of a box is its share of the samples."""
    boxes = list(_boxes(root, left=0.0, row=0, scale=WIDTH / max(root.samples, 1)))
    height = ROW * (1 + max((row for _, row, _, _ in boxes), default=0))
    body = []
    for left, row, width, frame in boxes:
        share = f"{frame.name}: {frame.samples} samples, {100 * frame.samples / root.samples:.1f} %"
        colour = COLOURS[sum(frame.name.encode()) % len(COLOURS)]
        body.append(
            f'<g><title>{escape(share)}</title><rect x="{left:.1f}" y="{row * ROW}" width="{width:.1f}" '
            f'height="{ROW - 1}" fill="{colour}"/>'
        )
        room = int(width / 6.2)
        if room > 3:
            text = frame.name if len(frame.name) <= room else frame.name[: room - 1] + "…"
            body.append(f'<text x="{left + 3:.1f}" y="{row * ROW + 12}">{escape(text)}</text>')
        body.append("</g>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        + "".join(body)
        + "</svg>\n"
    )


def _boxes(frame: Frame, *, left: float, row: int, scale: float) -> Iterator[tuple[float, int, float, Frame]]:
    width = frame.samples * scale
    if width < NARROWEST or row > DEEPEST:
        return
    yield left, row, width, frame
    for child in sorted(frame.calls.values(), key=lambda child: -child.samples):
        yield from _boxes(child, left=left, row=row + 1, scale=scale)
        left += child.samples * scale
