"""Which rows come next."""
