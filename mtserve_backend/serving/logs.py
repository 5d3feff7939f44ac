"""Python's `logging` into Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class TritonHandler(logging.Handler):
    """Hands each record to the server's logger at its level. Safe on any thread."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def to_triton(model_name: str) -> None:
    """Send this package's log to Triton's, each line beginning with the model's name."""
    handler = TritonHandler()
    handler.setFormatter(logging.Formatter(f"{model_name}: %(message)s"))
    package = logging.getLogger("mtserve_backend")
    package.handlers = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False
