"""The knobs of the router, typed and validated; model_repository/hstu_router/config.pbtxt explains them."""

from __future__ import annotations

from collections.abc import Iterator

from mtserve_backend.config import ConfigError, Knobs
from mtserve_backend.fields import Field


class RouterConfig(Knobs):
    """The knobs of one router."""

    models: str = Field(default="", description="the models among which users are divided: names with commas between")
    calls_per_model: int = Field(default=64, ge=1, le=1024, description="requests with one model at one time")
    max_waiting: int = Field(
        default=4096, ge=1, le=1_000_000, description="requests that wait for one model; more are answered UNAVAILABLE"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names."""
        return tuple(name.strip() for name in self.models.split(","))

    def _inconsistencies(self) -> Iterator[str]:
        if not all(self.names):
            yield f"models is '{self.models}'; it must name at least one model, as in 'hstu_0,hstu_1'"
        elif len(set(self.names)) != len(self.names):
            yield f"models names a model twice: '{self.models}'"

    def check_not_among(self, own_name: str) -> None:
        """Raises `ConfigError` where the router is told to call itself."""
        if own_name in self.names:
            raise ConfigError(f"models names '{own_name}', this router itself; it must name the models behind it")
