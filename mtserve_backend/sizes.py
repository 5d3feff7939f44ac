"""Sizes of pools as an operator writes them: bytes, pages, chunks or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BYTES = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_COUNTS = {
    "PAGE": "pages",
    "PAGES": "pages",
    "CHUNK": "chunks",
    "CHUNKS": "chunks",
    "TOKEN": "tokens",
    "TOKENS": "tokens",
}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


@dataclass(frozen=True)
class Size:
    """An amount of cache: `amount` of `unit` (bytes, pages, chunks or tokens)."""

    amount: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> Size:
        """Raises ValueError saying what a size looks like."""
        match = _FORM.fullmatch(text)
        if match:
            number, unit = float(match[1]), match[2].upper()
            if unit in _BYTES:
                return cls(int(number * _BYTES[unit]), "bytes")
            if unit in _COUNTS and number == int(number):
                return cls(int(number), _COUNTS[unit])
        raise ValueError(
            f"{text!r} is not a size; write for example '2GiB', '4096 pages', '64 chunks' or '100000 tokens'"
        )

    def slots(self, slot_tokens: int, page_tokens: int, chunk_tokens: int, token_bytes: int) -> int:
        """Whole slots of `slot_tokens` tokens that fit into this size."""
        tokens = {
            "bytes": self.amount // token_bytes,
            "pages": self.amount * page_tokens,
            "chunks": self.amount * chunk_tokens,
            "tokens": self.amount,
        }[self.unit]
        return tokens // slot_tokens
