"""Records: types and limits are checked, and all that is wrong is said."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

from mtserve_backend.fields import Field, FieldError, Record


class Sample(Record):
    count: int = Field(ge=1, le=9)
    share: float = Field(default=0.5, gt=0)
    on: bool = False
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    row: int | None = Field(default=None, ge=0)
    text: str = ""


def test_text_becomes_values() -> None:
    given = {"count": " 3 ", "share": "1e-3", "on": "Yes", "kind": "b", "text": " x"}
    assert Sample.from_text(given) == Sample(count=3, share=1e-3, on=True, kind="b", text=" x")


@pytest.mark.parametrize("text", ["true", "1", "on", "YES"])
def test_truths(text: str) -> None:
    assert Sample.from_text({"count": "1", "on": text}).on is True


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("count", "0", r"count: must be greater than or equal to 1 \(got '0'\)"),
        ("count", "10", r"count: must be less than or equal to 9 \(got '10'\)"),
        ("count", "1.5", r"count: must be a whole number \(got '1.5'\)"),
        ("count", "9" * 40, r"count: must be a whole number"),
        ("share", "0", "share: must be greater than 0"),
        ("share", "nan", "share: must be a number"),
        ("share", "inf", "share: must be a number"),
        ("on", "perhaps", "on: must be true or false"),
        ("kind", "c", "kind: must be 'a' or 'b'"),
    ],
)
def test_wrong_text_is_named_and_shown(name: str, text: str, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        Sample.from_text({"count": "1", name: text})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"count": True}, "count: must be a whole number"),
        ({"count": "1"}, "count: must be a whole number"),
        ({"count": None}, "count: must be a whole number"),
        ({"count": 1, "share": "1"}, "share: must be a number"),
        ({"count": 1, "on": 1}, "on: must be true or false"),
        ({"count": 1, "kind": ["a"]}, "kind: must be"),
        ({"count": 1, "names": ["a", 1]}, "names: must be a list of strings"),
        ({"count": 1, "names": "ab"}, "names: must be a list of strings"),
        ({"count": 1, "row": -1}, "row: must be greater than or equal to 0"),
        ({"count": 1, "text": 1}, "text: must be a string"),
        ({"count": 1, "colour": 2}, "colour: there is no such field"),
        ({}, "count: it is missing"),
        ([], "file: it must be a JSON object"),
    ],
)
def test_wrong_json_is_named(content: object, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        Sample.from_json(content)


def test_json_comes_back_the_same() -> None:
    sample = Sample(count=2, names=("x", "y"), row=3, share=2)
    assert isinstance(sample.share, float)
    assert Sample.from_json(sample.to_json()) == sample


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(FieldError) as error:
        Sample.from_text({"count": "0", "share": "0", "kind": "x"})
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["count", "share", "kind"]


def test_a_copy_is_checked_as_well() -> None:
    with pytest.raises(FieldError, match="count"):
        dataclasses.replace(Sample(count=1), count=0)
