"""Small data folders on disk, sound ones and broken ones, for the tests of unet_scaling/data."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from unet_scaling.base.errors import UserError
from unet_scaling.study.options import Data

Array = npt.NDArray[Any]


def noise(height: int = 12, width: int = 16, seed: int = 0, bits: int = 8) -> Array:
    """A grey picture of random values over the whole range."""
    values = np.random.default_rng(seed).integers(0, 2**bits, (height, width))
    return values.astype(np.uint8 if bits == 8 else np.uint16)


def blob(height: int = 12, width: int = 16, value: int = 255, dtype: type = np.uint8) -> Array:
    """A mask: a rectangle of `value` on 0."""
    mask: Array = np.zeros((height, width), dtype)
    mask[2:6, 3:9] = value
    return mask


def save(path: Path, pixels: Array | Image.Image) -> Path:
    """Write a picture as its suffix says, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".tif", ".tiff"):
        tifffile.imwrite(path, np.asarray(pixels))
    else:
        (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path)
    return path


def make_folder(
    folder: Path, count: int = 4, suffix: str = ".png", height: int = 12, width: int = 16
) -> Path:
    """A sound data folder: pictures p0, p1, ... with masks of 0 and 255."""
    for index in range(count):
        save(folder / "images" / f"p{index}{suffix}", noise(height, width, index))
        save(folder / "masks" / f"p{index}{suffix}", blob(height, width))
    return folder


def options(folder: Path, **changes: object) -> Data:
    """The data table of a study on such a folder."""
    values = {"folder": str(folder), "image_height": 16, "image_width": 16} | changes
    return Data.model_validate(values)


def cut(path: Path, keep: float) -> None:
    """Leave the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def refused(caught: pytest.ExceptionInfo[UserError], code: int, *parts: object) -> bool:
    """Tell whether the error has this exit code and names all of these."""
    text = str(caught.value)
    missing = [str(part) for part in parts if str(part) not in text]
    assert not missing, f"{missing} not in {text!r}"
    assert caught.value.exit_code == code
    return True
