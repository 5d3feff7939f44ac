"""A model's config.json, validated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class ModelConfigError(ValueError):
    """config.json is missing, unreadable or wrong; the message names the file and each field."""


class HSTUConfig(BaseModel):
    """Everything HSTU's arithmetic depends on besides its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: Literal["hstu"] = "hstu"
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    hidden: int = Field(ge=1)
    items: int = Field(ge=1, description="item IDs are 0 .. items - 1")
    actions: int = Field(ge=1, description="action IDs are 0 .. actions - 1")
    max_history: int = Field(ge=1, description="history tokens the positions reach")
    window_stride: int = Field(default=0, ge=0, description="0 = a quarter of max_history")
    attention_n: int = Field(default=0, ge=0, description="the constant N of 1/N; 0 = max_history")
    scoring: Literal["target", "next_item"] = "target"
    tasks: tuple[str, ...] = ()
    head_hidden: int = Field(default=0, ge=0, description="0 = hidden")
    tie_output: bool = Field(default=True, description="score with the item embeddings; false = output.weight")
    norm_eps: float = Field(default=1e-6, gt=0)
    oov_item: int | None = Field(default=None, ge=0, description="the row that stands for unknown item IDs")

    @model_validator(mode="after")
    def _consistent(self) -> HSTUConfig:
        if self.scoring == "next_item" and self.tasks:
            raise ValueError("scoring 'next_item' has one score a candidate: leave tasks empty")
        if self.tasks and not self.tie_output:
            raise ValueError("a model with a task head has no output matrix: leave tie_output true")
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("tasks must have different names")
        if self.window_stride > self.max_history:
            raise ValueError("window_stride must not exceed max_history")
        if self.oov_item is not None and self.oov_item >= self.items:
            raise ValueError(f"oov_item must be below items ({self.items})")
        return self

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
            return cls.model_validate_json(content)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']} (got {e['input']!r:.60})" for e in error.errors()
            )
            raise ModelConfigError(f"{path}: {problems}") from error
