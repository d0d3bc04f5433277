"""One function for each policy of LeRobot that can be built offline."""

from . import classic, paligemma, vision_language, world_model

__all__ = ["classic", "paligemma", "vision_language", "world_model"]
