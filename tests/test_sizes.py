"""Sizes as an operator writes them."""

from __future__ import annotations

import pytest

from mtserve_backend.sizes import Size


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("2GiB", 2 * 2**30, "bytes"),
        ("1.5 gib", 3 * 2**29, "bytes"),
        (" 10 MB ", 10**7, "bytes"),
        ("7B", 7, "bytes"),
        ("1 page", 1, "pages"),
        ("4096 pages", 4096, "pages"),
        ("64 Chunks", 64, "chunks"),
        ("100000 tokens", 100_000, "tokens"),
    ],
)
def test_sizes_that_are(text: str, amount: int, unit: str) -> None:
    assert Size.parse(text) == Size(amount, unit)


@pytest.mark.parametrize(
    "text", ["", "5", "GiB", "-1GiB", "1.5 pages", "1 furlong", "1 GiB more", "1e3 MB", "1,000 MB"]
)
def test_sizes_that_are_not(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write for example"):
        Size.parse(text)


@pytest.mark.parametrize(
    ("text", "slots"), [("4096B", 4), ("4095B", 3), ("6 pages", 3), ("3 chunks", 12), ("17 tokens", 2), ("0 pages", 0)]
)
def test_whole_slots_that_fit(text: str, slots: int) -> None:
    """Slots of 8 tokens; pages of 4, chunks of 32; 128 bytes a token."""
    assert Size.parse(text).slots(slot_tokens=8, page_tokens=4, chunk_tokens=32, token_bytes=128) == slots
