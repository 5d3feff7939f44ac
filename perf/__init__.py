"""Load, traces and measurements, through a real server."""
