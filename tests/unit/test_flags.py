"""The table of flags is what the configs say, and the help and the documents are what the table says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from lerobot_pipeline.cli import COMMANDS, main
from lerobot_pipeline.config import flag_page, flags
from lerobot_pipeline.config.help import EXTRA_KEYS
from lerobot_pipeline.config.reader import flatten, parse_flags, typed
from lerobot_pipeline.config.schema import Node
from lerobot_pipeline.errors import EXIT_DONE, EXIT_WRONG_USE, ConfigError
from tests.conftest import PROJECT

README = PROJECT / "README.md"
PAGE = PROJECT / "docs" / "flags.md"

REQUIRED = {
    "verify": (),
    "collect": ("output_dir",),
    "check-dataset": (),
    "train": ("dataset.repo_id",),
    "launch": ("dataset.repo_id",),
    "convert-dcp": ("checkpoint_dir",),
    "eval": ("env.type",),
    "publish": ("policy.path",),
    "resolve": ("config_files",),
    "tables": ("config_files",),
    "figures": ("config_files", "experiment", "figure"),
}
"""Command -> keys without which it does nothing."""

ASK_FOR_HELP = """
import sys
from lerobot_pipeline.cli import main
for arguments in {arguments}:
    assert main(arguments) == 0, arguments
loaded = sorted({{"torch", "lerobot", "draccus"}} & set(sys.modules))
sys.exit(f"imported: {{', '.join(loaded)}}" if loaded else 0)
"""


def _schema(command: str) -> Node:
    return flags.schema_of("train" if command == "launch" else command)


def _field(command: str, key: str) -> Node:
    """Return the schema of a dotted key. Raises `KeyError` where there is none."""
    node = _schema(command)
    for name in key.split("."):
        node = node["fields"][name]
    return node


def _readme_table() -> dict[str, str]:
    """Key -> default, as the README's table of flags has them."""
    rows = re.findall(r"^\| `--([\w.]+)` \| `(.+?)` \|", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(rows)


def _readme_commands() -> list[list[str]]:
    """The command lines of the README's shell blocks, as words after `lerobot-pipeline`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.replace("-m lerobot_pipeline", "lerobot-pipeline")) for line in lines]
    return [line[line.index("lerobot-pipeline") + 1 :] for line in words]


def test_the_page_of_flags_is_what_the_configs_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == flag_page.render(), (
        "run: python -m lerobot_pipeline.config.flag_page > docs/flags.md"
    )


def test_the_page_follows_a_change_of_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"fields": {**_schema("verify")["fields"], "brand_new": {"kind": "int", "default": 3, "help": "New."}}}
    monkeypatch.setattr(flag_page, "schema_of", lambda name: changed if name == "verify" else flags.schema_of(name))
    assert "| `--brand_new` | int | `3` | New. |" in flag_page.render()


def test_the_table_of_flags_is_what_the_configs_say() -> None:
    described = json.loads(json.dumps(flags.build_table()))
    stored = json.loads(flags.TABLE_PATH.read_text(encoding="utf-8"))
    assert stored["lerobot"] == described["lerobot"]
    for command in flags.GENERATED:
        assert _leaves(stored["commands"][command]) == _leaves(described["commands"][command]), (
            "run: python -m lerobot_pipeline.config.flags"
        )
    assert stored == described


def _leaves(schema: Node) -> dict[str, object]:
    """Flat, so that a difference is told by its place instead of as two long texts."""
    return flatten(schema)


def test_the_readme_names_keys_and_defaults_that_exist() -> None:
    table = _readme_table()
    assert len(table) >= 8, "the README's table of flags was not found"
    for key, default in table.items():
        stored = _field("train", key)["default"]
        assert default == (stored if isinstance(stored, str) else json.dumps(stored)), key


def test_the_readme_shows_commands_that_are_accepted() -> None:
    shown = _readme_commands()
    assert {"train", "launch", "eval", "publish"} <= {command for command, *_ in shown}
    for command, *arguments in shown:
        given = {key: value for key, value in parse_flags(arguments).items() if key not in EXTRA_KEYS.get(command, {})}
        typed(_schema(command), given)
    with pytest.raises(ConfigError, match="batch_sise"):
        typed(_schema("train"), parse_flags(["--batch_sise=8"]))


def test_every_command_has_its_required_keys_listed_here() -> None:
    assert list(REQUIRED) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_required_keys(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == EXIT_DONE
    told = capsys.readouterr().out
    assert told.startswith(f"usage: lerobot-pipeline {command} ")
    for key in REQUIRED[command]:
        assert re.search(rf"^  --{re.escape(key)}\b", told, flags=re.MULTILINE), f"--{key} is not in the help"


@pytest.mark.parametrize("command", [command for command, keys in REQUIRED.items() if keys])
def test_a_required_key_is_missed_by_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == EXIT_WRONG_USE
    assert capsys.readouterr().err.startswith(f"lerobot-pipeline {command}: {REQUIRED[command][0]}: ")


def test_help_of_a_policy_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "--policy.type=act"]) == EXIT_DONE
    with_policy = capsys.readouterr().out
    assert main(["train", "--help"]) == EXIT_DONE
    without = capsys.readouterr().out
    assert "--policy.chunk_size" in with_policy
    assert "--policy.chunk_size" not in without


def test_help_imports_nothing_heavy() -> None:
    arguments = [["--help"], ["--version"], ["train", "--help", "--policy.type=act"]]
    arguments += [[command, "--help"] for command in COMMANDS]
    script = ASK_FOR_HELP.format(arguments=arguments)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    planted = subprocess.run(
        [sys.executable, "-c", f"import draccus\n{script}"], capture_output=True, text=True, timeout=60
    )
    assert planted.stderr == "imported: draccus\n"
