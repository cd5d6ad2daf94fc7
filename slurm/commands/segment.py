"""Segment a folder of images by the network of a complete run, on this machine.

IMAGES is a folder of PNG, TIFF and JPEG files, or one with images/ and masks/: then the masks are scored.
Images of any size are brought to the size that the run trained at, and masks, of 0 and 255, back to that of
their image. The same command again makes only masks that are missing, or are of another network or image.
"""

import csv
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]

from slurm.commands.options import new_console
from slurm.local import launch
from unet_scaling.data.folder import FilePair
from unet_scaling.inference.masks import COUNTS_KEY, files_to_segment, mask_path, texts_of
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, remove_unfinished, write_atomically
from unet_scaling.study.measurements import PixelCounts
from unet_scaling.study.texts import count
from unet_scaling.study.validation import positive

_TABLE_NAME = "segments.csv"
_LOG_NAME = "segment.log"
_COLUMNS = ("image", "mask", "width", "height", "area_share", "objects", "iou")
_SHOWN_SECONDS = 5.0
_EPILOG = """\
examples
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/masks
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/masks --workers 2

In a job of Slurm, each task of srun takes its share of the images:
  srun .venv/bin/python -m unet_scaling.inference.segment RUN IMAGES OUTPUT
"""


def main() -> int:
    arguments = command_line().parse_args()
    output: Path = arguments.output
    pairs = files_to_segment(arguments.images)
    cores = len(os.sched_getaffinity(0)) // arguments.workers
    if not cores:
        raise UserError(
            f"--workers {arguments.workers}: this machine has {len(os.sched_getaffinity(0))} cores"
        )
    output.mkdir(parents=True, exist_ok=True)
    remove_unfinished(output, "*.png")
    # As workers see them, wherever they start.
    places = [str(path.resolve()) for path in (arguments.run, arguments.images, output)]
    program = ["-m", "unet_scaling.inference.segment", *places, *["--any-depth"] * arguments.any_depth]
    console = new_console()
    shown = begin = time.monotonic()
    before = len(_made(output, pairs))

    def show(*_: object) -> None:
        nonlocal shown
        if time.monotonic() >= shown + _SHOWN_SECONDS:
            shown = time.monotonic()
            done = len(_made(output, pairs))
            pace = (done - before) / (shown - begin)
            console.print(f"{done} of {count(len(pairs), 'mask')}, {pace:.1f} images/s", markup=False)

    log = output / _LOG_NAME
    log.unlink(missing_ok=True)
    code = launch(program, arguments.workers, log, cores, show)
    if code != EXIT_OK:
        said = log.read_text(errors="replace").strip().rpartition("error: ")[2].splitlines()
        raise UserError(said[0] if said else f"a worker ended with code {code}; see {log}", code)
    log.unlink()
    seconds = time.monotonic() - begin
    rows, total = _table(output, pairs)
    write_atomically(output / _TABLE_NAME, rows, READABLE)
    scored = "" if total is None else f", IoU {PixelCounts(*total).iou!r}"
    made = count(len(pairs) - before, "new mask")
    console.print(
        f"{output}: {count(len(pairs), 'mask')}, {made} in {seconds:.1f} s on "
        f"{count(arguments.workers, 'worker')}{scored}; {_TABLE_NAME} has a row for each",
        markup=False,
    )
    return EXIT_OK


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling segment", __doc__, _EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a complete run: logs/STUDY/RUN")
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the masks")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    any_depth = "take images of another kind or depth than the run was trained on"
    parser.add_argument("--any-depth", action="store_true", help=any_depth)
    return parser


def _made(output: Path, pairs: list[FilePair]) -> list[FilePair]:
    there = {entry.name for entry in os.scandir(output)}
    return [pair for pair in pairs if mask_path(output, pair).name in there]


def _table(output: Path, pairs: list[FilePair]) -> tuple[str, list[int] | None]:
    """Return the rows of all masks as CSV, and the sum of their counts; None where no truth is known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    sums = []
    for pair, row, counts in _rows(output, pairs):
        writer.writerow([pair.image, mask_path(output, pair).name, *row])
        sums += [counts] * bool(counts)
    return text.getvalue(), [sum(each) for each in zip(*sums, strict=True)] or None


def _rows(output: Path, pairs: list[FilePair]) -> Iterator[tuple[FilePair, list[object], list[int]]]:
    """Yield of each mask its size, share of foreground, number of objects and IoU, and its counts."""
    for pair in pairs:
        path = mask_path(output, pair)
        try:
            mask = np.asarray(Image.open(path))
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error}); run the command again", EXIT_BAD_DATA
            ) from None
        _, objects = ndimage.label(mask)
        counts = [*map(int, texts_of(path).get(COUNTS_KEY, "").split())]
        iou = PixelCounts(*counts).iou if counts else None
        height, width = mask.shape
        share = f"{float((mask > 0).mean()):.6f}"
        yield pair, [width, height, share, objects, "" if iou is None else iou], counts
