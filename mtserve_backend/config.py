"""Every knob, typed and validated: the one place that reads Triton's `parameters`.

The table of knobs in docs/operations.md is made from the descriptions here (`python -m mtserve_backend.config`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtserve_backend.fields import Field, FieldError, Record
from mtserve_backend.sizes import Size

if TYPE_CHECKING:
    from typing_extensions import Self

# Keys of the Python backend itself, which Triton leaves among a model's parameters.
TRITON_KEYS = frozenset(
    {"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH", "DISABLE_AUTO_COMPLETE"}
)

SIZES = ("device_cache", "onload_buffer", "host_cache", "user_log")


class ConfigError(ValueError):
    """A knob is unknown or has a value it cannot have; the message says which, and what would be right."""


class Knobs(Record):
    """Knobs as Triton's `parameters` carry them."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """From `parameters { key value { string_value } }`. Raises `ConfigError` naming every wrong knob."""
        own = {key: value for key, value in parameters.items() if key not in TRITON_KEYS}
        unknown = sorted(own.keys() - cls.model_fields.keys())
        if unknown:
            raise ConfigError("; ".join(unknown_key(key, cls) for key in unknown))
        try:
            return cls.from_text({key: value for key, value in own.items() if value != "" or key == "model_dir"})
        except FieldError as error:
            raise ConfigError(str(error)) from error


class Config(Knobs):
    """The knobs of one model."""

    model_dir: str = Field(
        default="", description="folder of config.json and model.safetensors; empty: `weights` beside model.py"
    )
    cache_mode: Literal["hierarchical", "device", "recompute"] = Field(
        default="hierarchical", description="keep user states on device and host, on the device only, or not at all"
    )
    page_tokens: int = Field(default=32, ge=1, le=4096, description="tokens in a device page")
    chunk_tokens: int = Field(
        default=1024, ge=1, le=65536, description="tokens in a host chunk; a multiple of page_tokens"
    )
    device_cache: str = Field(default="1GiB", description="device memory for user states (size)")
    onload_buffer: str = Field(
        default="256MiB", description="device memory in which loaded states are read in place (size)"
    )
    host_cache: str = Field(default="4GiB", description="host memory for user states (size)")
    host_memory: Literal["pinned", "pageable"] = Field(
        default="pinned",
        description="pinned: copied to and from directly; pageable: through two pinned staging buffers each way",
    )
    copy_workers: int = Field(
        default=2, ge=1, le=64, description="threads that copy into and out of a pageable host cache"
    )
    offload_quota_tokens: int = Field(
        default=65536,
        ge=0,
        description="tokens in transient offload buffers; at least chunk_tokens, or 0: never offload",
    )
    user_log: str = Field(
        default="256MiB", description="memory for the users' token logs, in bytes; the longest unseen are forgotten"
    )
    pass_tokens: int = Field(default=8192, ge=16, description="rows computed at once; longer work is done in slices")
    max_candidates: int = Field(default=10_000, ge=1, description="candidates in one request")
    max_events: int = Field(default=100_000, ge=1, description="history events in one request")
    max_user_id_bytes: int = Field(
        default=128, ge=1, le=128, description="bytes of a user's ID where it is a string; 128 is Triton's own limit"
    )
    zero_on_free: bool = Field(
        default=False, description="overwrite pages and chunks as they become free, and transient buffers after use"
    )
    unknown_items: Literal["error", "oov"] = Field(
        default="error",
        description="an item ID outside the vocabulary is an error, or the model's out-of-vocabulary row",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="of weights, states and products; on a CPU float32 is the fast one"
    )
    threads: int = Field(
        default=0, ge=0, le=1024, description="processor threads for compute; 0: as many as there are cores"
    )
    transfer_timeout_s: float = Field(
        default=2.0, gt=0, description="a load later than this is given up and the user recomputed"
    )
    request_timeout_s: float = Field(default=60.0, gt=0, description="a batch later than this is answered UNAVAILABLE")
    check_books: bool = Field(
        default=False,
        description="debugging: check the cache's books after every batch; slow; a difference ends service",
    )

    def _inconsistencies(self) -> Iterator[str]:
        wrong = [problem for name in SIZES if (problem := _wrong_size(name, getattr(self, name)))]
        if wrong:
            yield from wrong
            return
        if self.chunk_tokens % self.page_tokens:
            yield f"chunk_tokens ({self.chunk_tokens}) must be a multiple of page_tokens ({self.page_tokens})"
        if 0 < self.offload_quota_tokens < self.chunk_tokens:
            yield (
                f"offload_quota_tokens ({self.offload_quota_tokens}) is less than a chunk and would never save one; "
                f"give at least chunk_tokens ({self.chunk_tokens}), or 0 to stop offloading"
            )
        if Size.parse(self.user_log).unit != "bytes":
            yield "user_log is given in bytes, for example '256MiB'"


def _wrong_size(name: str, text: str) -> str | None:
    try:
        Size.parse(text)
    except ValueError as error:
        return f"{name}: {error}"
    return None


def unknown_key(key: str, knobs: type[Knobs] = Config) -> str:
    """A sentence that names the nearest known knob."""
    near = difflib.get_close_matches(key.lower(), knobs.model_fields, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(knobs.model_fields))}"
    return f"unknown parameter '{key}': {hint}"


def knob_table() -> str:
    """The knobs as a Markdown table."""
    rows = [f"| `{name}` | `{field.default!s}` | {field.description} |" for name, field in Config.model_fields.items()]
    return "\n".join(["| knob | default | meaning |", "|---|---|---|", *rows])


def weights_folder(config: Config, version_folder: Path) -> Path:
    """Where the model's weights are. A relative `model_dir` starts at the model's version folder."""
    return version_folder / (config.model_dir or "weights")


if __name__ == "__main__":
    import sys

    sys.stdout.write(knob_table() + "\n")
