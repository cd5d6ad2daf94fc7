"""The files of `unet-scaling segment`: the images of a folder, and the masks made of them.

Imported by the command: needs no torch.
"""

from pathlib import Path

from PIL import Image

from unet_scaling.data.folder import MASKS_FOLDER, FilePair, find_pairs, images_in
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

# Texts of a mask's PNG: the weights and the image that it was made of, and the four counts of the test.
ORIGIN_KEY = "unet-scaling segment"
COUNTS_KEY = "counts"


def files_to_segment(folder: Path) -> list[FilePair]:
    """Return the images of a folder, sorted, each with its true mask where the folder is one of a study.

    The mask is "" without one. Raises UserError (65) where a file is none, or has no partner.
    """
    if (folder / MASKS_FOLDER).is_dir():
        pairs, problems = find_pairs(folder)
    else:
        names, problems = images_in(folder)
        pairs = [FilePair(stem, name, "") for stem, name in sorted(names.items())]
    if problems or not pairs:
        raise UserError(problems[0] if problems else f"{folder} has no images", EXIT_BAD_DATA)
    return pairs


def mask_path(output: Path, pair: FilePair) -> Path:
    """Return where the mask of an image is written."""
    return output / f"{pair.stem}.png"


def texts_of(path: Path) -> dict[str, str]:
    """Return the texts of a mask; none of a file that is no PNG."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image.load()
            return {str(key): str(value) for key, value in getattr(image, "text", {}).items()}
    except (OSError, SyntaxError, ValueError):
        return {}
