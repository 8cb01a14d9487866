"""The module a Python stack was in: by the classes whose `forward` is in it, from the model's root down."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class _Forward:
    """The lines of a class's `forward`."""

    class_name: str
    first: int
    last: int


class ModuleNames:
    """Knows the classes of a model's modules, and where their `forward` is written."""

    def __init__(self, root: Any) -> None:
        self._forwards: dict[str, list[_Forward]] = {}
        self._paths: dict[tuple[str, ...], set[str]] = {}
        for kind in {type(module) for module in root.modules()}:
            self._learn(kind)
        self._walk(root, (), ())

    def _learn(self, kind: type) -> None:
        try:
            # Decorators are in other files, and it is the decorated lines that run.
            forward = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
            lines, first = inspect.getsourcelines(forward)
            file = inspect.getsourcefile(forward) or ""
        except (OSError, TypeError, AttributeError):
            # Built at run time, so no stack can be recognised by its file.
            return
        place = _Forward(class_name=kind.__name__, first=first, last=first + len(lines) - 1)
        self._forwards.setdefault(file, []).append(place)

    def _walk(self, module: Any, classes: tuple[str, ...], names: tuple[str, ...]) -> None:
        # Lists of modules have no `forward`, so no stack holds them.
        is_list = type(module).__name__ in ("ModuleList", "ModuleDict")
        chain = classes if is_list else (*classes, type(module).__name__)
        if not is_list:
            self._paths.setdefault(chain, set()).add(".".join(names))
        for name, child in module.named_children():
            self._walk(child, chain, (*names, "*" if name.isdigit() else name))

    def of(self, stack: Sequence[str]) -> str:
        """The module of a stack (innermost frame first), layers as `*`; empty where no `forward` is recognised."""
        chain: list[str] = []
        for frame in reversed(stack):
            place, _, _ = frame.rpartition(" ")
            file, _, line = place.rpartition(":")
            for forward in self._forwards.get(file, ()):
                if line.isdigit() and forward.first <= int(line) <= forward.last:
                    chain.append(forward.class_name)
        for length in range(len(chain), 0, -1):
            paths = self._paths.get(tuple(chain[:length]))
            if paths:
                several = sorted(paths)
                shown = several[0] if len(several) == 1 else "{" + ",".join(several[:4]) + "}"
                return shown or chain[0]
        return ""
