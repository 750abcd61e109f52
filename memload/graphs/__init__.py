"""Datasets of graphs."""
