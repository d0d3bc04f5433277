"""Configs: what the commands take, and the strict reader that makes them from flags and files."""
