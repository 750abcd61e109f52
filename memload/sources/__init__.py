"""One module per format: a path, or arrays, to fields. Rows stay where they are; only headers are read."""
