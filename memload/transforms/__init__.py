"""What users do to samples and batches, ahead of the loop."""
