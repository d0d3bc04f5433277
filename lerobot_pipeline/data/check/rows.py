"""Checks of the data files: columns, types and shapes as declared, rows counted and in order, values finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import INDEX_COLUMNS, StoredDataset, read_columns
from lerobot_pipeline.progress import follow

_RESTORE = "restore the file from where the dataset came from"
_DECLARE = "declare in meta/info.json what the file holds, or write the column again"


def check_columns(dataset: StoredDataset) -> Iterator[Finding]:
    """Every data file has the declared columns, no others, and each of the declared dtype."""
    declared = {name: feature for name, feature in dataset.features.items() if feature["dtype"] != "video"}
    for path in dataset.data_paths:
        schema, where = pq.ParquetFile(path).schema_arrow, dataset.relative(path)
        if lacking := [name for name in declared if name not in schema.names]:
            yield _data("column-missing", where, f"lacks columns: {', '.join(lacking)}", _RESTORE)
        if others := [name for name in schema.names if name not in declared]:
            message = f"has columns that meta/info.json does not declare: {', '.join(others)}"
            yield _data("column-undeclared", where, message, _DECLARE)
        for name, feature in declared.items():
            if name in schema.names and (message := _type_fault(schema.field(name).type, feature)):
                yield _data("column-dtype", where, f"{name} {message}", _DECLARE)


def _type_fault(found: pa.DataType, feature: dict[str, Any]) -> str:
    dtype, depth = feature["dtype"], 0
    if dtype == "language":
        return ""
    if dtype == "image":
        return (
            ""
            if pa.types.is_struct(found) and found.get_field_index("bytes") >= 0
            else f"is {found}, not an image with bytes"
        )
    element = _storage(found)
    while _is_list(element):
        element, depth = _storage(element.value_type), depth + 1
    expected_depth = 0 if feature["shape"] == [1] else len(feature["shape"])
    if depth != expected_depth:
        return f"is {found}, but shape {feature['shape']} is declared"
    expected = pa.string() if dtype == "string" else pa.from_numpy_dtype(np.dtype(dtype))
    is_same = element == expected or (dtype == "string" and pa.types.is_large_string(element))
    return "" if is_same else f"holds {element}, but {dtype} is declared"


def check_order(dataset: StoredDataset) -> Iterator[Finding]:
    """The rows are as many as declared, and index, episode_index and frame_index count without gaps."""
    for path in dataset.data_paths:
        table = read_columns(path, list(INDEX_COLUMNS))
        if empty := [name for name in INDEX_COLUMNS if table.column(name).null_count]:
            yield _data("column-null", dataset.relative(path), f"has empty cells in {', '.join(empty)}", _RESTORE)
            return
    lengths, num_rows = dataset.lengths, len(dataset.column("index"))
    if num_rows != lengths.sum():
        message = f"the data files have {num_rows} rows, but the episodes' lengths add up to {lengths.sum()}"
        yield _data("rows-count", "data", message, "restore the data files that are short or missing")
        return
    starts = np.cumsum(lengths) - lengths
    expected = {
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(num_rows),
        "frame_index": np.arange(num_rows) - np.repeat(starts, lengths),
    }
    for name, values in expected.items():
        wrong = dataset.column(name) != values
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"{name} is {dataset.column(name)[row]} in row {row}, where {values[row]} belongs"
            yield _data("rows-order", "data", message, "restore the file, or write the rows in order")
    yield from _check_places(dataset)


def _check_places(dataset: StoredDataset) -> Iterator[Finding]:
    for path, expected in dataset.rows_by_data_path.items():
        num_rows = pq.ParquetFile(path).metadata.num_rows
        if num_rows != expected:
            message = f"has {num_rows} rows, but the episodes that name it have {expected}"
            yield _data("rows-count", dataset.relative(path), message, _RESTORE)


def check_values(dataset: StoredDataset) -> Iterator[Finding]:
    """Every cell is filled and has the declared shape; observations and actions are finite."""
    found: set[str] = set()
    for path in follow(dataset.data_paths, "values"):
        for name, feature in dataset.features.items():
            if feature["dtype"] in ("video", "image", "language", "string") or name in found:
                continue
            column = read_columns(path, [name]).column(name)
            if fault := _value_fault(column, name, feature["shape"]):
                found.add(name)
                yield _data(fault[0], dataset.relative(path), f"{name} {fault[1]}", _RESTORE)


def _value_fault(column: pa.ChunkedArray, name: str, shape: list[int]) -> tuple[str, str] | None:
    num_rows = len(column)
    for array in column.chunks:
        array = _unwrap(array)
        for size in [] if shape == [1] else shape:
            if array.null_count:
                return "column-null", "has empty cells"
            if pc.unique(pc.list_value_length(array)).to_pylist() not in ([size], []):
                return "column-shape", f"does not have the declared shape {shape} in every row"
            array = _unwrap(array.flatten())
        if array.null_count:
            return "column-null", "has empty cells"
        if pa.types.is_floating(array.type) and name.split(".")[0] in ("observation", "action"):
            num_bad = len(array) - (pc.sum(pc.is_finite(array)).as_py() or 0)
            if num_bad:
                return "values-not-finite", f"holds NaN or infinity {num_bad} times in {num_rows} rows"
    return None


def _is_list(found: pa.DataType) -> bool:
    return pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)


def _storage(found: pa.DataType) -> pa.DataType:
    return found.storage_type if isinstance(found, pa.BaseExtensionType) else found


def _unwrap(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _data(code: str, where: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=where, message=message, fix=fix)
