"""Experiments: files into runs, runs into tables, figures and a record of where every number comes from."""
