"""Third-party LeRobot plugins: packages that add policies and environments to the choices."""

from __future__ import annotations

import importlib.metadata
from functools import cache

_PREFIXES = ("lerobot_policy_", "lerobot_env_")
"""Names by which lerobot 0.6.1 knows such packages."""


@cache
def installed_plugins() -> tuple[str, ...]:
    """Return the names of the installed plugins. Imports none of them."""
    names = {(distribution.name or "").replace("-", "_") for distribution in importlib.metadata.distributions()}
    return tuple(sorted(name for name in names if name.startswith(_PREFIXES)))


def register_plugins() -> None:
    """Import the installed plugins, which adds what they bring to LeRobot's choices."""
    if installed_plugins():
        from lerobot.utils.import_utils import register_third_party_plugins

        register_third_party_plugins()
