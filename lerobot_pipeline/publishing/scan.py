"""The last look before anything leaves: no secret, and nothing that says whose machine this was."""

from __future__ import annotations

import contextlib
import json
import mmap
import netrc
import os
import pwd
import re
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import get_token
from safetensors import safe_open

from lerobot_pipeline.provenance import SECRET_SHAPES

_SECRET_VARIABLE = re.compile(r".*(TOKEN|API_?KEY|SECRET|PASSWORD)", re.IGNORECASE)
_SHORTEST_SECRET = 8
"""Shorter values (`1`, `true`, `none`) are found everywhere and protect nothing."""

_WEB_ADDRESS = re.compile(r"\b(?:https?|hf|s3|gs|git|ssh)://[^\s\"'<>]*")
_ABSOLUTE_PATH = re.compile(r"(?:^|(?<==))/[\w.@+~-]{2,}|(?<![\w/.~<-])/(?:[\w.@+~-]+/)+[\w.@+~-]+|file:/+\w")

_SHARED_NAMES = frozenset(
    {"root", "user", "users", "ubuntu", "debian", "admin", "administrator", "runner", "docker", "jovyan", "nobody"}
    | {"localhost", "lerobot", "robot"}
)
"""Accounts and hosts that many machines have: they identify nobody, and appear as ordinary words."""

_SHORTEST_NAME = 3


@dataclass(frozen=True)
class Finding:
    """Something in a file that may not be published. Holds its kind, never the thing itself."""

    file: str
    place: str
    kind: str

    def __str__(self) -> str:
        return f"{self.file} ({self.place}): {self.kind}" if self.place else f"{self.file}: {self.kind}"


@dataclass(frozen=True)
class _Object:
    """A JSON object as it is written: of two equal keys, a dictionary would hide the first."""

    pairs: list[tuple[str, Any]]


def scan(paths: Collection[Path], public_names: Collection[str]) -> list[Finding]:
    """Look through every file; return what has to stop the publication, one finding for each file, place and kind.

    Text, JSON and safetensors headers are searched for secrets and for this machine's names and paths. Tensor data
    is searched for secrets only: in gigabytes of random bytes a short name always turns up.
    `public_names` are words that are published on purpose (the user's own Hub name), so that an account of the same
    name is nothing to hide.
    """
    secrets, identity = _secrets(), _identity(public_names)
    findings: dict[Finding, None] = {}
    for path in paths:
        for place, text in _passages(path):
            kinds = [kind for kind, pattern in (*secrets.items(), *identity.items()) if re.search(pattern, text)]
            if _ABSOLUTE_PATH.search(_WEB_ADDRESS.sub("", text)):
                kinds.append("an absolute path of this machine")
            shown = "" if any(re.search(pattern, place) for pattern in secrets.values()) else place
            findings.update(dict.fromkeys(Finding(path.name, shown, kind) for kind in kinds))
        if path.suffix == ".safetensors":
            kinds = _search_bytes(path, secrets)
            findings.update(dict.fromkeys(Finding(path.name, "tensor data", kind) for kind in kinds))
    return list(findings)


def _secrets() -> dict[str, str]:
    """Kind -> pattern. Values that this machine knows come first, then the shapes of secrets it may not know."""
    values = {f"the value of {name}": value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)}
    values["the saved Hugging Face token"] = get_token() or ""
    values["the saved Weights & Biases key"] = _saved_wandb_key()
    known = {kind: re.escape(value) for kind, value in values.items() if len(value) >= _SHORTEST_SECRET}
    return known | SECRET_SHAPES


def _saved_wandb_key() -> str:
    try:
        login = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        return ""
    return (login[2] or "") if login else ""


def _identity(public_names: Collection[str]) -> dict[str, str]:
    """Kind -> pattern for the home directory, the account and the host that this process runs under."""
    homes, users = {str(Path.home())}, {os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    with contextlib.suppress(KeyError):  # containers often run under a user id that has no account
        account = pwd.getpwuid(os.getuid())
        homes.add(account.pw_dir)
        users.add(account.pw_name)
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    harmless = {name.lower() for name in public_names} | _SHARED_NAMES
    patterns = {
        "the home directory": [rf"(?<![\w.-]){re.escape(home)}(?![\w-])" for home in homes - {"/"}],
        "the user name": [_whole_word(name) for name in users if _identifies(name, harmless)],
        "the host name": [_whole_word(name) for name in hosts if _identifies(name, harmless)],
    }
    return {kind: "|".join(sorted(alternatives)) for kind, alternatives in patterns.items() if alternatives}


def _identifies(name: str, harmless: Collection[str]) -> bool:
    return len(name) >= _SHORTEST_NAME and name.lower() not in harmless


def _whole_word(name: str) -> str:
    return rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"


def _passages(path: Path) -> Iterator[tuple[str, str]]:
    """(place, text) pairs of a file: a line of text, a value in JSON by its dotted key, a header's metadata."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as tensors:
            yield from _json_passages(_Object(list((tensors.metadata() or {}).items())), "metadata")
            yield from (("tensor names", name) for name in tensors.keys())  # noqa: SIM118, it is no mapping
    elif path.suffix == ".json":
        yield from _json_passages(json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_Object), "")
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from ((f"line {number}", line) for number, line in enumerate(lines, start=1))


def _json_passages(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Object):
        for key, item in value.pairs:
            inner = f"{place}.{key}" if place else key
            # A key may be a secret itself, also one that holds an object or nothing.
            yield inner, key
            yield from _json_passages(item, inner)
    elif isinstance(value, list):
        for item in value:
            yield from _json_passages(item, place)
    else:
        # The key belongs to the passage: some secrets are only known by it.
        yield place, f"{place.rpartition('.')[2]}={value}"


def _search_bytes(path: Path, secrets: dict[str, str]) -> list[str]:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [kind for kind, pattern in secrets.items() if re.search(pattern.encode(), content)]
