"""Datasets: the order of samples, loading, collection in a simulator, and checks."""
