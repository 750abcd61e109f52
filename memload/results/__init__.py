"""Rows that are computed once and kept."""
