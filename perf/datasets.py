"""What readers of data sets share: the one error, and the account of rows that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

EXAMPLES = 5


class DatasetError(ValueError):
    """The data cannot be used at all; the message says what was looked for and what would be right."""


@dataclass
class BadRows:
    """Rows that were left out: how many for which reason, and where the first few are."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, line: int, reason: str, file: str = "") -> None:
        """`line` is counted from 1, the header included; `file` where several are read."""
        self.add_many([line], reason, file)

    def add_many(self, lines: Sequence[int], reason: str, file: str = "") -> None:
        """Several lines of one file, bad for one reason."""
        if len(lines) == 0:
            return
        self.counts[reason] += len(lines)
        place = f"{file}, line" if file else "line"
        self.examples.extend(f"{place} {line}: {reason}" for line in lines[: EXAMPLES - len(self.examples)])

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        if not self.counts:
            return "no bad rows"
        reasons = ", ".join(f"{count} with {reason}" for reason, count in self.counts.most_common())
        return f"{len(self)} rows left out ({reasons}); first: {'; '.join(self.examples)}"
