"""What `mtserve top` is asked: apart from what shows it, so that `mtserve --help` needs no rich."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TopOptions:
    """The command line of `mtserve top`, parsed. `model` None: all of them."""

    address: str = "localhost:8002"
    model: str | None = None
    interval: float = 2.0
    once: bool = False

    @property
    def url(self) -> str:
        address = self.address if "://" in self.address else f"http://{self.address}"
        return address if address.rstrip("/").endswith("/metrics") else f"{address.rstrip('/')}/metrics"
