"""Checks of images that are stored inside the data files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import StoredDataset
from lerobot_pipeline.progress import follow

_ROWS_AT_ONCE = 256
_RESTORE = "restore the file from where the dataset came from"


def check_images(dataset: StoredDataset) -> Iterator[Finding]:
    """Every row has its image's bytes; images spread over each data file decode and have the declared size."""
    for path in follow(dataset.data_paths, "images") if dataset.cameras("image") else ():
        for camera in dataset.cameras("image"):
            if fault := _image_fault(path, camera, dataset.features[camera], dataset.strictness.sample_frames):
                code, message = fault
                yield Finding(code=code, where=dataset.relative(path), message=f"{camera} {message}", fix=_RESTORE)


def _image_fault(path: Path, camera: str, feature: dict[str, Any], sample_frames: int) -> tuple[str, str] | None:
    parquet = pq.ParquetFile(path)
    sampled = set(spread(parquet.metadata.num_rows, sample_frames).tolist())
    row = 0
    for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[camera]):
        for cell in batch.column(camera):
            content = cell["bytes"].as_py() if cell.is_valid else None
            if not content:
                return "image-missing", f"has no image bytes in row {row} of the file"
            if row in sampled and (fault := _decode_fault(content, feature)):
                return fault[0], f"in row {row} of the file {fault[1]}"
            row += 1
    return None


def _decode_fault(content: bytes, feature: dict[str, Any]) -> tuple[str, str] | None:
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            size = (image.height, image.width)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return "image-decode", f"does not decode ({error})"
    declared = declared_size(feature)
    if declared and declared != size:
        return "image-size", f"is {size[0]}x{size[1]}, but {declared[0]}x{declared[1]} is declared"
    return None


def declared_size(feature: dict[str, Any]) -> tuple[int, int] | None:
    """Height and width that a camera declares; None where its shape and names do not say which is which."""
    shape, names = feature["shape"], feature.get("names")
    if isinstance(names, list) and "height" in names and "width" in names and len(names) == len(shape):
        return shape[names.index("height")], shape[names.index("width")]
    if shape[2] in (1, 3, 4):
        return shape[0], shape[1]
    return (shape[1], shape[2]) if shape[0] in (1, 3, 4) else None


def spread(num_items: int, num_samples: int) -> np.ndarray:
    """Positions of up to `num_samples` items spread evenly over `num_items`, first and last included."""
    return np.unique(np.linspace(0, num_items - 1, min(num_samples, num_items)).round().astype(np.int64))
