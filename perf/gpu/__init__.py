"""`python -m perf.gpu`: one command that measures a GPU and mtserve on it. See `__main__.py`."""
