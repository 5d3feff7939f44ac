"""What an operator can see, free of Triton: what is counted, how it is named, and when it is told.

    state.py       what is known at one moment: of the engine, by its own thread; of requests, by the one that answers
    meter.py       keeps both up to date, off the path of a request
    families.py    every metric: name, kind, meaning, and how it is read from a state. docs/metrics.md is made from it
    publisher.py   tells a sink what has changed since it was told last

serving/metrics.py is the sink: Triton's metrics port.
"""
