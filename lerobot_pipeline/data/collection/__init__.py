"""Demonstrations of PushT: a planning expert acts in the simulator, and what it saw and did becomes a dataset."""
