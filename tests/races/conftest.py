"""The engines and models of tests/engine, here as well."""

from tests.engine.conftest import lively, start_engine

__all__ = ["lively", "start_engine"]
