"""For all tests: the same examples on every run, and no deadline for one of them on a loaded machine."""

from hypothesis import settings

settings.register_profile("mtserve", derandomize=True, deadline=None)
settings.load_profile("mtserve")
