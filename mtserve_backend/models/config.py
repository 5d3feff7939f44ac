"""A model's config.json, validated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mtserve_backend.fields import Field, Record

# Rows of a table and positions are counted in 32 bits.
_MOST = 2**31 - 1


class ModelConfigError(ValueError):
    """config.json is missing, unreadable or wrong; the message names the file and each field."""


class HSTUConfig(Record):
    """Everything HSTU's arithmetic depends on besides its weights."""

    architecture: Literal["hstu"] = "hstu"
    layers: int = Field(ge=1, le=1024)
    heads: int = Field(ge=1, le=1024)
    head_dim: int = Field(ge=1, le=1024)
    hidden: int = Field(ge=1, le=65536)
    items: int = Field(ge=1, le=_MOST, description="item IDs are 0 .. items - 1")
    actions: int = Field(ge=1, le=_MOST, description="action IDs are 0 .. actions - 1")
    max_history: int = Field(ge=1, le=_MOST, description="history tokens the positions reach")
    window_stride: int = Field(default=0, ge=0, description="0 = a quarter of max_history")
    attention_n: int = Field(default=0, ge=0, le=_MOST, description="the constant N of 1/N; 0 = max_history")
    scoring: Literal["target", "next_item"] = "target"
    tasks: tuple[str, ...] = ()
    head_hidden: int = Field(default=0, ge=0, le=65536, description="0 = hidden")
    tie_output: bool = Field(default=True, description="score with the item embeddings; false = output.weight")
    norm_eps: float = Field(default=1e-6, gt=0)
    oov_item: int | None = Field(default=None, ge=0, description="the row that stands for unknown item IDs")

    def _inconsistencies(self) -> Iterator[str]:
        if self.scoring == "next_item" and self.tasks:
            yield "scoring 'next_item' has one score a candidate: leave tasks empty"
        if self.tasks and not self.tie_output:
            yield "a model with a task head has no output matrix: leave tie_output true"
        if len(set(self.tasks)) != len(self.tasks):
            yield "tasks must have different names"
        if self.window_stride > self.max_history:
            yield "window_stride must not exceed max_history"
        if self.oov_item is not None and self.oov_item >= self.items:
            yield f"oov_item must be below items ({self.items})"

    @property
    def stride(self) -> int:
        return self.window_stride or max(1, self.max_history // 4)

    @property
    def n(self) -> int:
        return self.attention_n or self.max_history

    @classmethod
    def read(cls, path: Path) -> HSTUConfig:
        """Raises `ModelConfigError`."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelConfigError(f"cannot read the model's configuration {path}: {error.strerror}") from error
        try:
            return cls.from_json(json.loads(content))
        except (ValueError, RecursionError) as error:  # JSON's own errors and FieldError are ValueErrors
            raise ModelConfigError(f"{path}: {error}") from error
