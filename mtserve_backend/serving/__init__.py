"""Triton's face: requests in, responses out. The only room that imports the Python backend's utilities."""
