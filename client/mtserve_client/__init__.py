"""Client for mtserve: ranks candidates for a user, sending only the history the server does not know."""

from mtserve_client.aio import AsyncRankingClient
from mtserve_client.client import RankingClient
from mtserve_client.errors import (
    ClientClosed,
    DeadlineExceeded,
    HistoryNeeded,
    InvalidRequest,
    ModelNotFound,
    MtserveError,
    ServerFault,
    ServerUnavailable,
)
from mtserve_client.events import Events
from mtserve_client.exchange import Retry
from mtserve_client.protocol import CacheInfo, Ranking

__version__ = "0.1.0"

__all__ = [
    "AsyncRankingClient",
    "CacheInfo",
    "ClientClosed",
    "DeadlineExceeded",
    "Events",
    "HistoryNeeded",
    "InvalidRequest",
    "ModelNotFound",
    "MtserveError",
    "Ranking",
    "RankingClient",
    "Retry",
    "ServerFault",
    "ServerUnavailable",
    "__version__",
]
