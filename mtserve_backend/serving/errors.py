"""Errors with Triton's codes, and how a code survives a call from one model to another.

Triton (24.10 and the releases before it) keeps an error's message on the way from a called model to the model that
called it, and makes every code INTERNAL. So a caller can ask for the code in the message as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton_python_backend_utils as pb_utils

# The request parameter that asks for it.
CODE_PARAMETER = "error_code_in_message"
_CODED = re.compile(r"\[([A-Z_]+)\] (.*)", re.DOTALL)
# What Triton itself says of a model that is being loaded, unloaded or missing. To who asks the router each is a place
# that is not there now.
_ABSENT = re.compile(r"unknown model|is not ready|no available versions|not found")


def response(code: str, message: str) -> Any:
    """An `InferenceResponse` with an error; `code` is the name of one of Triton's."""
    # Looked up now: the stub adds TritonError to the module only after model.py has been imported.
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))


def code_wanted(request: Any) -> bool:
    """Whether the caller asked for codes in messages. Never raises: this is asked of requests that are wrong, too."""
    try:
        return json.loads(request.parameters() or "{}").get(CODE_PARAMETER) is True
    except (ValueError, AttributeError):
        return False


def with_code(code: str, message: str) -> str:
    """As `read` reads it."""
    return f"[{code}] {message}"


def read(message: str) -> tuple[str, str]:
    """Code and message of what a called model answered; what Triton itself says has no code."""
    coded = _CODED.search(message)
    if coded is not None and hasattr(pb_utils.TritonError, coded[1]):
        return coded[1], coded[2]
    if _ABSENT.search(message):
        return "UNAVAILABLE", f"{message}; it is safe to send the request again"
    return "INTERNAL", message
