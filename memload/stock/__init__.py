"""Passes on torch's own machinery."""
