"""Feeds a training loop with array data at the speed of memory: a drop-in for torch's DataLoader."""
