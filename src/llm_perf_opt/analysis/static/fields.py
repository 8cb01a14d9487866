"""Reads a model's configuration field by field; a missing or odd field is an error that names it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from llm_perf_opt.errors import ParseError

T = TypeVar("T")
_MISSING = object()


class NotInClosedForm(ParseError):
    """A configuration the closed form has no rule for. `what` names it in a sentence: the family 'gpt2'."""

    def __init__(self, text: str, *, what: str) -> None:
        super().__init__(text)
        self.what = what


class Fields:
    """A mapping with checked readers. `where` is the file or configuration key it came from."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._data.get(key) is not None

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: T) -> int | T: ...
    def integer(self, key: str, default: Any = _MISSING) -> Any:
        """A whole number ≥ 1. With a default, the field may be missing or null."""
        value = self._value(key, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ParseError(f"{self.where}: {key}: not a whole number ≥ 1 (got {value!r})")
        return value

    def nullable_integer(self, key: str, absent: Any = _MISSING) -> int | None:
        """A whole number or null. `absent` is what a missing field means; without it the field must be there."""
        if key not in self._data:
            return None if self._value(key, absent) is None else int(absent)
        return self.integer(key, None)

    def count(self, key: str, default: Any = _MISSING) -> int:
        """A whole number ≥ 0."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ParseError(f"{self.where}: {key}: not a whole number ≥ 0 (got {value!r})")
        return int(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ParseError(f"{self.where}: {key}: not true or false (got {value!r})")
        return value

    def text(self, key: str) -> str:
        value = self._value(key, _MISSING)
        if not isinstance(value, str) or not value:
            raise ParseError(f"{self.where}: {key}: not a name (got {value!r})")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._value(key, _MISSING)
        if not _is_list(value) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise ParseError(f"{self.where}: {key}: not a list of whole numbers (got {value!r})")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of names, or None when there is none."""
        value = self._value(key, None)
        if value is None:
            return None
        if not _is_list(value) or not all(isinstance(v, str) for v in value):
            raise ParseError(f"{self.where}: {key}: not a list of names (got {value!r})")
        return tuple(value)

    def section(self, key: str) -> "Fields":
        value = self._value(key, _MISSING)
        if not isinstance(value, Mapping):
            raise ParseError(f"{self.where}: {key}: not a mapping (got {value!r})")
        return Fields(value, f"{self.where}: {key}")

    def _value(self, key: str, default: Any) -> Any:
        value = self._data.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ParseError(f"{self.where}: {key}: missing; the sizes cannot be worked out without it")
        return default


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
