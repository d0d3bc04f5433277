"""The tensors of a model's shards under the policy's own names."""

from __future__ import annotations

from dataclasses import replace

from lerobot_pipeline.checkpoint.dcp_metadata import Contents, ShardedTensor

WRAPPER = "model"
"""accelerate and LeRobot save `{"model": state_dict}`, which puts this and a dot in front of every name."""


def model_tensors(contents: Contents) -> list[ShardedTensor]:
    """Return what shards hold of a model, without the wrapper in front of all names.

    Raises:
        ValueError: they are no state dict of a model.
    """
    wrapper = _wrapper(contents)
    if contents.others:
        raise ValueError(f"{next(iter(contents.others))!r} is no tensor, and safetensors holds nothing else")
    return [replace(tensor, name=tensor.name.removeprefix(wrapper)) for tensor in contents.tensors.values()]


def _wrapper(contents: Contents) -> str:
    """Return what stands in front of every name, dot included: a policy's own names may begin with `model.` as well.

    torch's planner keeps the path of each name through the nested state dict, which tells. Where another has written
    the metadata, the convention is taken to hold.
    """
    wrapper = WRAPPER
    if contents.paths:
        roots = {path[0] if len(path) > 1 else None for path in contents.paths.values()}
        wrapper = str(roots.pop()) if len(roots) == 1 and None not in roots else ""
    if wrapper == "optimizer":
        raise ValueError("it describes an optimizer's state, not a model")
    is_wrapped = wrapper and all(name.startswith(f"{wrapper}.") for name in (*contents.tensors, *contents.others))
    return f"{wrapper}." if is_wrapped else ""
