"""The dataset check: what is wrong with a dataset, in one line, before a training run finds out.

`sequence.CHECKS` is the list to begin reading with.
"""

from lerobot_pipeline.data.check.trainable import require_trainable

__all__ = ["require_trainable"]
