"""The files of `unet-scaling segment`: the images of a folder, and the masks made of them.

Imported by the command: needs no torch.
"""

import io
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_RESUME, UserError, or_user_error
from unet_scaling.base.files import read_regular, real_path
from unet_scaling.base.texts import called
from unet_scaling.data.folder import IMAGES_FOLDER, MASKS_FOLDER, FilePair, find_pairs, images_in
from unet_scaling.format.record import Record
from unet_scaling.format.run_state import recorded_run
from unet_scaling.study.config import RunConfig
from unet_scaling.study.near_paths import describe_no_run
from unet_scaling.study.study_file import config_path, read_config

# Texts of a mask's PNG: the weights and the image that it was made of, and the four counts of the test.
ORIGIN_KEY = "unet-scaling segment"
COUNTS_KEY = "counts"
TABLE_NAME = "segments.csv"
# Begins the line of a worker about an image that has no mask.
REFUSED_PREFIX = "refused: "
# The folder, in that of the masks, of scripts and outputs of jobs.
JOBS_FOLDER = ".segment"


def files_to_segment(folder: Path) -> tuple[list[FilePair], list[str]]:
    """Return the images of a folder, sorted, each with its true mask where the folder is one of a study.

    The mask is "" without one. The second list says which files are none, or have no partner. Raises
    UserError (65) where there is no image.
    """
    if (folder / MASKS_FOLDER).is_dir():
        pairs, problems = find_pairs(folder)
    else:
        names, problems = images_in(folder)
        pairs = [FilePair(stem, name, "") for stem, name in sorted(names.items())]
    if not pairs:
        cure = "name a folder of PNG, TIFF or JPEG files"
        raise UserError(problems[0] if problems else f"{folder} has no images; {cure}", EXIT_BAD_DATA)
    return pairs, problems


def trained_network(run: Path) -> tuple[RunConfig, Record]:
    """Return configuration and record of a complete run of the built-in task; UserError for any other."""
    if not os.path.lexists(config_path(run)):
        raise UserError(describe_no_run(run))
    config = read_config(config_path(run))
    recorded = recorded_run(run, config)
    if config.has_own_task or config.is_emulated:
        what = "a task of its own" if config.has_own_task else "emulated workers, which learn nothing"
        raise UserError(f"{run} is of {what}; masks are made by the built-in U-Net")
    if not recorded.state.is_complete or not recorded.record:
        state = recorded.state.reason or recorded.state.state
        raise UserError(f"{run} is not complete: {state}; {called('status', run.parent)} says how it goes on")
    return config, recorded.record


def image_path(folder: Path, pair: FilePair) -> Path:
    """Return the image of a pair that `files_to_segment` found in a folder."""
    return (folder / IMAGES_FOLDER if pair.mask else folder) / pair.image


def require_own_folder(output: Path, images: Path, table: str) -> None:
    """Raise UserError where masks and table would come among images, or what a study takes for true masks."""
    own, read = map(real_path, (output, images))
    data = read if (images / MASKS_FOLDER).is_dir() else read.parent
    taken = {read, data / IMAGES_FOLDER, data / MASKS_FOLDER}
    if any(folder == own or folder in own.parents for folder in taken):
        cure = f"name another one, such as {data}_predicted"
        raise UserError(f"--output {output} lies in the data folder {data}; {cure}")
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is no folder; name a new one")
    names = [path.name for path in output.iterdir()] if output.is_dir() else []
    known = {table, Path(table).with_suffix(".svg").name, JOBS_FOLDER}
    foreign = [name for name in sorted(names) if not name.endswith(".png") and name not in known]
    if foreign:
        raise UserError(f"--output {output} holds {foreign[0]!a}; name a folder of its own")


def mask_path(output: Path, pair: FilePair) -> Path:
    """Return where the mask of an image is written."""
    return output / f"{pair.stem}.png"


def or_resumable(output: Path) -> AbstractContextManager[None]:
    """Let an OSError inside, as of a full disk, become a UserError (75): the same command goes on."""
    cure = "make room, or name another --output; the same command goes on"
    return or_user_error(f"{output} cannot be written", cure, EXIT_RESUME)


def packed_mask(mask: npt.NDArray[np.uint8], origin: str, counts: Sequence[int]) -> bytes:
    """Return the PNG of a mask [h, w], with what it was made of and, where a truth is known, its counts."""
    texts = PngImagePlugin.PngInfo()
    texts.add_text(ORIGIN_KEY, origin)
    if counts:
        texts.add_text(COUNTS_KEY, " ".join(map(str, counts)))
    packed = io.BytesIO()
    Image.fromarray(mask).save(packed, "PNG", pnginfo=texts)
    return packed.getvalue()


def read_mask(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, str]] | None:
    """Return a mask [h, w] and its texts; None for what is no whole PNG."""
    try:
        with Image.open(io.BytesIO(read_regular(path)), formats=["PNG"]) as image:
            pixels = np.asarray(image)
            return pixels, {str(key): str(value) for key, value in getattr(image, "text", {}).items()}
    except (OSError, SyntaxError, ValueError):
        return None
