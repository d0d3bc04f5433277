"""Training: assembling a run, the loop, metrics and tracking."""
