"""From knobs and a model folder to a running engine, and the lines that say what was built."""

from __future__ import annotations

import gc
import logging
import os
import platform
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mtserve_backend import footprint
from mtserve_backend.admission import Admission, Limits
from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Geometry
from mtserve_backend.config import Config, ConfigError
from mtserve_backend.engine import Engine, Streams
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.kernels.warmup import warm_up
from mtserve_backend.models import weights
from mtserve_backend.models.contract import Reuse
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.moves import Moves
from mtserve_backend.sizes import Size
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.cuda_streams import CudaStream, HostedCudaStream
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader
from mtserve_backend.transfer.paths import DirectPath, HostPath, StagedPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import CopyStream, CpuStream, Stream, StreamBroken

log = logging.getLogger(__name__)


def build_engine(config: Config, model_folder: Path, device: torch.device | None = None) -> Engine:
    """On the CPU, or on the given GPU. Raises `ConfigError`, `ModelConfigError`, `WeightsError` or `PoolError`."""
    device = device or torch.device("cpu")
    _take(device)
    torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    dtype: torch.dtype = getattr(torch, config.dtype)
    loaded = weights.load(model_folder, device, dtype)
    model = loaded.model
    reuse, reason = model.declaration.reuse()
    mode = config.cache_mode if reuse is Reuse.EXACT else "recompute"
    geometry = plan_geometry(config, mode, model.kv_shape, dtype)
    admission = plan_admission(config, model)
    pools = Pools.allocate(geometry, model.kv_shape, device, dtype, config.host_memory == "pinned")
    streams = _streams(config, device, staged=not pools.pinned)
    completions = CompletionQueue()
    manager = CacheManager(
        geometry,
        model.window.start,
        config.offload_quota_tokens,
        Size.parse(config.user_log).amount,
        note_freed=config.zero_on_free,
    )
    moves = Moves(
        manager,
        pools,
        streams.compute,
        Onloader(pools, _host_path(config, pools, streams.load_workers), streams.onload, streams.scatter, completions),
        Offloader(
            pools,
            _host_path(config, pools, streams.save_workers),
            streams.offload,
            completions,
            zero=config.zero_on_free,
        ),
        completions,
        config.transfer_timeout_s,
    )
    engine = Engine(
        model=model,
        admission=admission,
        moves=moves,
        pools=pools,
        streams=streams,
        pass_tokens=config.pass_tokens,
        check_books=config.check_books,
    )
    _warm_up(engine, config, dtype, device)
    # What start-up made lives for ever; without this every full collection walks torch's modules once more.
    gc.collect()
    gc.freeze()
    log.info(
        "model %s: %s, digest %s; states are %s (%s)", loaded.folder, model.config, loaded.digest, reuse.value, reason
    )
    _log_environment(device)
    _log_pools(mode, geometry, pools)
    planned = footprint.footprint(model, footprint.weight_bytes(model), geometry, pools, config, dtype)
    log.info("memory planned: %s", planned)
    if device.type == "cuda":
        footprint.report_device(planned, footprint.DeviceMemory.of(device))
    else:
        footprint.report_process(planned, footprint.resident_bytes())
    return engine


def check_fit(config: Config, model: HSTU) -> None:
    """What a load would refuse of knobs and a model that are right by themselves. Raises `ConfigError`."""
    plan_geometry(config, config.cache_mode, model.kv_shape, getattr(torch, config.dtype))
    plan_admission(config, model)


def plan_admission(config: Config, model: HSTU) -> Admission:
    """What requests are let in. Raises `ConfigError`."""
    oov_item = model.config.oov_item if config.unknown_items == "oov" else None
    if config.unknown_items == "oov" and oov_item is None:
        raise ConfigError(
            "unknown_items is 'oov', but the model's config.json declares no oov_item: name its row there, or leave "
            "unknown_items at 'error'"
        )
    return Admission(
        items=model.config.items,
        actions=model.config.actions,
        oov_item=oov_item,
        limits=limits(config),
        history_needed=model.scores_last_row,
    )


def limits(config: Config) -> Limits:
    """How large a request may be, by these knobs."""
    return Limits(config.max_events, config.max_candidates, config.max_user_id_bytes)


def _take(device: torch.device) -> None:
    """Make sure of the device, and make it this thread's. Raises `ConfigError`."""
    if device.type == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"the instance asks for {device}, and torch {torch.__version__} sees no GPU here: use instance kind "
            "KIND_CPU, or a torch built for CUDA and a driver that fits it"
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"the instance asks for {device}, and there are {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(device)


def _warm_up(engine: Engine, config: Config, dtype: torch.dtype, device: torch.device) -> None:
    """Compile what requests will need. Raises `ConfigError` for what the kernels do not take."""
    if device.type == "cpu":
        return
    try:
        engine.streams.compute.submit(
            partial(warm_up, engine.compute.model.kv_shape, config.page_tokens, dtype, device)
        )
    except StreamBroken as error:
        raise ConfigError(f"the kernels cannot run this model on {device}: {error.__cause__}") from error


def _streams(config: Config, device: torch.device, staged: bool) -> Streams:
    limit = config.transfer_timeout_s

    def copying(name: str) -> CopyStream:
        return CpuStream(name, limit) if device.type == "cpu" else HostedCudaStream(name, device, limit)

    count = config.copy_workers if staged else 0
    return Streams(
        compute=CpuStream("compute", limit) if device.type == "cpu" else CudaStream("compute", device, limit),
        onload=copying("onload"),
        scatter=copying("scatter"),
        offload=copying("offload"),
        load_workers=tuple(CpuStream(f"load-{number}", limit) for number in range(count)),
        save_workers=tuple(CpuStream(f"save-{number}", limit) for number in range(count)),
    )


def _host_path(config: Config, pools: Pools, workers: tuple[Stream, ...]) -> HostPath:
    return StagedPath(pools.staging(), workers, config.zero_on_free) if workers else DirectPath()


def plan_geometry(config: Config, mode: str, kv: KVShape, dtype: torch.dtype) -> Geometry:
    """Sizes in slots. Raises `ConfigError` if a pool that the mode needs would be empty."""
    token_bytes = kv.values_per_token * dtype.itemsize

    def slots(knob: str, slot_tokens: int, needed: bool) -> int:
        if not needed:
            return 0
        text = getattr(config, knob)
        count = Size.parse(text).slots(slot_tokens, config.page_tokens, config.chunk_tokens, token_bytes)
        if count < 1 and knob != "onload_buffer":
            raise ConfigError(
                f"{knob} is {text}, less than one slot of {slot_tokens} tokens ({slot_tokens * token_bytes:,} bytes)"
            )
        return count

    return Geometry(
        page_tokens=config.page_tokens,
        chunk_tokens=config.chunk_tokens,
        device_pages=slots("device_cache", config.page_tokens, mode != "recompute"),
        onload_pages=slots("onload_buffer", config.page_tokens, mode == "hierarchical"),
        host_chunks=slots("host_cache", config.chunk_tokens, mode == "hierarchical"),
    )


def _log_environment(device: torch.device) -> None:
    log.info(
        "python %s (%s), torch %s, numpy %s, device %s, %d compute threads",
        platform.python_version(), sys.executable or sys.prefix, torch.__version__, np.__version__, device,
        torch.get_num_threads(),
    )  # fmt: skip


def _log_pools(mode: str, geometry: Geometry, pools: Pools) -> None:
    log.info(
        "cache mode %s: device %d pages (%d tokens), onload buffer %d pages (%d tokens), "
        "host %d chunks (%d tokens, %s)",
        mode,
        geometry.device_pages, geometry.device_pages * geometry.page_tokens,
        geometry.onload_pages, geometry.onload_pages * geometry.page_tokens,
        geometry.host_chunks, geometry.host_chunks * geometry.chunk_tokens,
        "page-locked" if pools.pinned else "pageable",
    )  # fmt: skip
