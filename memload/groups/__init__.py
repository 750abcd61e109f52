"""Many datasets at once."""
