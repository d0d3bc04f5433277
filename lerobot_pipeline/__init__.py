"""Training engine and workflow for LeRobot policies."""

__version__ = "0.1.0"
