"""The folder `interpreted` needs a process of its own; see `test_interpreted.py`."""

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
