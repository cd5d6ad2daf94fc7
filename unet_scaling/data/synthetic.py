"""A data folder of synthetic indents, made in the layout of a real one."""

import os
from functools import partial
from pathlib import Path

from PIL import Image
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from unet_scaling.data.indents import draw_indents
from unet_scaling.data.pairs import IMAGES_FOLDER, MASKS_FOLDER
from unet_scaling.data.parallel import map_in_order
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import READABLE, write_atomically

PARAMETERS_NAME = "synthetic.json"


class Parameters(BaseModel):
    """Everything that the pictures depend on; `format` is raised whenever they change for other reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int = 1
    count: PositiveInt
    height: PositiveInt
    width: PositiveInt
    seed: NonNegativeInt
    complete: bool = False


def make(folder: Path, count: int, height: int, width: int, seed: int) -> bool:
    """Write images/ and masks/ with `count` PNG pairs; return False where they all exist already.

    An interrupted folder is finished. Raises UserError (2) for a folder that holds anything else, or
    that cannot be written.
    """
    parameters = _parameters(count, height, width, seed)
    try:
        if _is_complete(folder, parameters):
            return False
        for part in (IMAGES_FOLDER, MASKS_FOLDER):
            (folder / part).mkdir(exist_ok=True, parents=True)
        _write_parameters(folder, parameters)
        list(map_in_order(partial(_write_pair, folder, parameters), range(count), "drawing"))
        _write_parameters(folder, parameters.model_copy(update={"complete": True}))
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another folder") from None
    return True


def _parameters(count: int, height: int, width: int, seed: int) -> Parameters:
    try:
        return Parameters(count=count, height=height, width=width, seed=seed)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(f"--{fault['loc'][0]}: found {fault['input']}; {fault['msg']}") from None


def _is_complete(folder: Path, wanted: Parameters) -> bool:
    """Return whether the folder is finished; UserError where it holds anything not made for `wanted`."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    cure = "it is left as it is; name another folder, empty or new"
    try:
        existing = Parameters.model_validate_json((folder / PARAMETERS_NAME).read_bytes())
    except (OSError, ValidationError):
        raise UserError(f"{folder} is not empty and holds no sound {PARAMETERS_NAME}; {cure}") from None
    if existing.model_copy(update={"complete": False}) != wanted:
        raise UserError(f"{folder} was made with other parameters, {existing}; {cure}")
    return existing.complete


def _write_parameters(folder: Path, parameters: Parameters) -> None:
    write_atomically(folder / PARAMETERS_NAME, parameters.model_dump_json() + "\n", READABLE)


def _write_pair(folder: Path, parameters: Parameters, index: int) -> None:
    pictures = draw_indents(parameters.height, parameters.width, parameters.seed, index)
    for part, pixels in zip((IMAGES_FOLDER, MASKS_FOLDER), pictures, strict=True):
        path = folder / part / f"indent_{index:05d}.png"
        # Written under a hidden name first: an interrupted picture must not pass for a finished one.
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        Image.fromarray(pixels).save(hidden, "PNG")
        hidden.replace(path)
