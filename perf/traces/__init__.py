"""Traces: who asked when, and how long their history was. Readers and generators give one record, `Request`."""
