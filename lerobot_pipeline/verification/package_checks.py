"""Are the installed packages the ones that lerobot and this package ask for."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from lerobot_pipeline.provenance import installed_versions
from lerobot_pipeline.verification.result import CheckResult

_PYTHON = (3, 12)
_NAMED_PACKAGES = ("lerobot", "torch", "accelerate")
_OWN_PACKAGE = "lerobot-pipeline"
_PLUGIN_PREFIXES = ("lerobot_robot_", "lerobot_camera_", "lerobot_teleoperator_", "lerobot_policy_", "lerobot_env_")
_SLURM_PLUGIN = "snakemake-executor-plugin-slurm"
_KUBERNETES_PLUGIN = "snakemake-executor-plugin-kubernetes"


def check_versions() -> CheckResult:
    """Hold what is installed against the bounds that lerobot and this package declare."""
    missing, outside = [], []
    for owner, requirement in _requirements():
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{requirement.name} (for {owner})")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            outside.append(f"{requirement.name} {version}, {owner} wants {requirement.specifier}")
    named = installed_versions(_NAMED_PACKAGES)
    data = {"python": sys.version.split()[0], "missing": missing, "outside": outside, "versions": named}
    if sys.version_info < _PYTHON:
        detail = f"Python {data['python']}; lerobot needs {'.'.join(map(str, _PYTHON))} or later"
        return CheckResult(name="versions", status="fail", detail=detail, fix="make the environment anew", data=data)
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return CheckResult(name="versions", status="fail", detail=detail, fix="run make setup", data=data)
    if outside:
        fix = "run make setup, or keep the override if you meant it"
        return CheckResult(name="versions", status="warn", detail="; ".join(outside), fix=fix, data=data)
    detail = ", ".join(f"{name} {version}" for name, version in named.items())
    return CheckResult(name="versions", status="ok", detail=f"{detail}: within their bounds", data=data)


def check_workflow(profile: str) -> CheckResult:
    """Find Snakemake, and what a cluster profile needs beside it."""
    wanted = {"slurm": _SLURM_PLUGIN, "kubernetes": _KUBERNETES_PLUGIN}.get(profile)
    names = ["snakemake", *([wanted] if wanted else [])]
    data = installed_versions(names)
    missing = [name for name in names if name not in data]
    if profile == "slurm":
        missing += [name for name in ("sbatch", "squeue") if shutil.which(name) is None]
    if missing:
        is_slurm = missing[0] in ("sbatch", "squeue")
        fix = "run this where Slurm's commands are, on a login node" if is_slurm else f"install {missing[0]}"
        detail = f"profile {profile} needs {', '.join(missing)}"
        return CheckResult(name="workflow", status="fail", detail=detail, fix=fix, data=data)
    detail = ", ".join(f"{name} {version}" for name, version in data.items())
    return CheckResult(name="workflow", status="ok", detail=detail, data=data)


def check_plugins() -> CheckResult:
    """List the lerobot plugins that are installed (robots, cameras, policies, environments)."""
    found = {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := (distribution.name or "").replace("-", "_")).startswith(_PLUGIN_PREFIXES)
    }
    detail = ", ".join(f"{name} {version}" for name, version in sorted(found.items())) or "none installed"
    return CheckResult(name="lerobot plugins", status="ok", detail=detail, data=found)


def _requirements() -> Iterator[tuple[str, Requirement]]:
    """Yield what must be installed: this package's requirements, and lerobot's with the extras that it asks for."""
    extras: set[str] = set()
    for text in _declared_by(_OWN_PACKAGE):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            extras |= requirement.extras if requirement.name == "lerobot" else set()
            yield _OWN_PACKAGE, requirement
    yield from _with_extras("lerobot", extras)


def _with_extras(package: str, extras: set[str]) -> Iterator[tuple[str, Requirement]]:
    for text in _declared_by(package):
        requirement = Requirement(text)
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if not applies:
            continue
        if requirement.name == package:
            # An extra that is made of others names its own package: lerobot[training] asks for lerobot[dataset].
            yield from _with_extras(package, set(requirement.extras) - extras)
        else:
            yield package, requirement


def _declared_by(package: str) -> list[str]:
    try:
        return importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
