"""Typed, validated records. Own code, because a model runs in a server whose Python has torch, numpy and nvtx only.

    class Knobs(Record):
        page_tokens: int = Field(default=32, ge=1, description="tokens in a device page")

A record is a frozen dataclass with keyword arguments. Its values are checked against their types (bool, int, float,
str, Literal, tuple[str, ...], and any of these or None) and limits; all that is wrong is said at once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        """What type checkers read; in typing from Python 3.11 on."""
        return lambda decorated: decorated


_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_TRUTHS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
_REQUIRED: Any = dataclasses.MISSING


class FieldError(ValueError):
    """A record cannot be made of these values; `problems` says of each wrong one what it is and what would be right."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class FieldSpec:
    """One field of a record. `default` is `dataclasses.MISSING` where a value must be given."""

    default: Any
    ge: float | None
    gt: float | None
    le: float | None
    description: str

    def within(self, value: Any) -> str | None:
        """What is wrong with a value of the right type, or None."""
        if self.ge is not None and value < self.ge:
            return f"must be greater than or equal to {self.ge}"
        if self.gt is not None and value <= self.gt:
            return f"must be greater than {self.gt}"
        if self.le is not None and value > self.le:
            return f"must be less than or equal to {self.le}"
        return None


def Field(  # noqa: N802 - stands where a type's name would
    default: Any = _REQUIRED,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    description: str = "",
) -> Any:
    """A field's default, limits (at least, more than, at most) and meaning."""
    spec = FieldSpec(default, ge, gt, le, description)
    return dataclasses.field(default=default, metadata={"spec": spec})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Record:
    """Base of validated records. The constructor raises `FieldError`, and so do `from_text` and `from_json`."""

    model_fields: ClassVar[dict[str, FieldSpec]]
    _types: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        cls.model_fields = {
            field.name: field.metadata.get("spec") or FieldSpec(field.default, None, None, None, "")
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        }
        hints = get_type_hints(cls)
        cls._types = {name: hints[name] for name in cls.model_fields}

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.model_fields}
        problems = self._problems(values, shown=values) or list(self._inconsistencies())
        if problems:
            raise FieldError(problems)
        for name, value in values.items():
            if self._types[name] is float:
                object.__setattr__(self, name, float(value))

    def _inconsistencies(self) -> Iterator[str]:
        """What is wrong with values that are right one by one. Asked only when they are."""
        yield from ()

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> Self:
        """Values as text, as Triton's parameters have them; of known fields."""
        parsed = {name: _from_text(text, cls._types[name]) for name, text in values.items()}
        problems = cls._problems(parsed, shown=values)
        if problems:
            raise FieldError(problems)
        return cls._from(parsed)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """What `json.loads` made of an object. Unknown and missing fields are named."""
        if not isinstance(content, dict):
            raise FieldError(["file: it must be a JSON object of fields"])
        unknown = [
            f"{name}: there is no such field (got {content[name]!r:.60})" for name in content.keys() - cls._types
        ]
        if unknown:
            raise FieldError(sorted(unknown))
        return cls._from({name: tuple(v) if isinstance(v, list) else v for name, v in content.items()})

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def _problems(cls, values: Mapping[str, Any], shown: Mapping[str, Any]) -> list[str]:
        """One sentence for each value of a wrong type or beyond its limits."""
        problems = []
        for name, value in values.items():
            wrong = _mistyped(value, cls._types[name])
            if wrong is None and isinstance(value, int | float) and not isinstance(value, bool):
                wrong = cls.model_fields[name].within(value)
            if wrong is not None:
                problems.append(f"{name}: {wrong} (got {shown[name]!r:.60})")
        return problems

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> Self:
        missing = [
            f"{name}: it is missing"
            for name, spec in cls.model_fields.items()
            if spec.default is _REQUIRED and name not in values
        ]
        if missing:
            raise FieldError(missing)
        return cls(**values)


def _mistyped(value: Any, kind: Any) -> str | None:
    """What a value would have to be, or None if it is."""
    if get_origin(kind) in (Union, UnionType):
        return None if value is None else _mistyped(value, next(k for k in get_args(kind) if k is not type(None)))
    if get_origin(kind) is Literal:
        right = isinstance(value, str) and value in get_args(kind)
        return None if right else f"must be {' or '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        right = isinstance(value, tuple) and all(isinstance(one, str) for one in value)
        return None if right else "must be a list of strings"
    if kind is bool:
        return None if isinstance(value, bool) else "must be true or false"
    if kind is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "must be a whole number"
    if kind is float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return None if right else "must be a number"
    return None if isinstance(value, kind) else "must be a string"


def _from_text(text: str, kind: Any) -> Any:
    """The value that a text stands for, or the text itself, which is then of the wrong type."""
    stripped = text.strip()
    if kind is bool:
        return _TRUTHS.get(stripped.lower(), text)
    if kind is int and _WHOLE.fullmatch(stripped):
        return int(stripped)
    if kind is float:
        try:
            return float(stripped)
        except ValueError:
            return text
    return text
