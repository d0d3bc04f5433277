"""`python -m lerobot_pipeline ...`: the same command as `lerobot-pipeline`."""

import sys

from lerobot_pipeline.cli import main

# The guard matters: spawned data workers import this module again.
if __name__ == "__main__":
    sys.exit(main())
