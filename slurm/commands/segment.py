"""Segment a folder of images by the network of a complete run, on this machine.

IMAGES is a folder of PNG, TIFF and JPEG files, or one with images/ and masks/: then the masks are scored.
Images of any size are brought to the size that the run trained at, and masks, of 0 and 255, back to that of
their image. The same command again makes only masks that are missing, or are of another network or image.
"""

import argparse
import csv
import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scipy import ndimage  # type: ignore[import-untyped]

from slurm.local import launch
from unet_scaling.data.folder import FilePair
from unet_scaling.inference.masks import (
    COUNTS_KEY,
    TABLE_NAME,
    files_to_segment,
    mask_path,
    read_mask,
    require_own_folder,
)
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, remove_unfinished, write_atomically
from unet_scaling.study.measurements import PixelCounts
from unet_scaling.study.texts import count
from unet_scaling.study.validation import positive

_COLUMNS = ("image", "mask", "width", "height", "area_share", "objects", "iou")
_SHOWN_SECONDS = 5.0
_EPILOG = """\
examples
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/predicted
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/predicted --workers 2

In a job of Slurm, each task of srun takes its share of the images:
  srun .venv/bin/python -m unet_scaling.inference.segment RUN IMAGES OUTPUT
"""


def main() -> int:
    arguments = command_line().parse_args()
    output: Path = arguments.output
    pairs = files_to_segment(arguments.images)
    require_own_folder(output, arguments.images, TABLE_NAME)
    cores = len(os.sched_getaffinity(0))
    if arguments.workers > cores:
        raise UserError(f"--workers {arguments.workers}: allowed: at most {cores}, the cores of this machine")
    output.mkdir(parents=True, exist_ok=True)
    remove_unfinished(output, "*.png")
    begin = time.time_ns()
    _make_masks(arguments, pairs, cores // arguments.workers, begin)
    seconds = (time.time_ns() - begin) / 1e9
    made = count(_made_since(begin, output, pairs), "new mask")
    rows, total = _table(output, pairs)
    write_atomically(output / TABLE_NAME, rows, READABLE)
    images = count(len(pairs), "image")
    scored = "" if total is None else f", IoU of these {images} {PixelCounts(*total).iou!r}"
    print(
        f"{output}: {count(len(pairs), 'mask')}, {made} in {seconds:.1f} s on "
        f"{count(arguments.workers, 'worker')}{scored}; {TABLE_NAME} has a row for each"
    )
    return EXIT_OK


def _make_masks(arguments: argparse.Namespace, pairs: list[FilePair], cores: int, begin: int) -> None:
    """Let workers make the masks that are missing, and show their number; UserError as they raise it."""
    # As workers see them, wherever they start.
    places = [str(path.resolve()) for path in (arguments.run, arguments.images, arguments.output)]
    program = ["-m", "unet_scaling.inference.segment", *places]
    if arguments.any_depth:
        program.append("--any-depth")
    shown = time.monotonic()

    def show(*_: object) -> None:
        nonlocal shown
        if time.monotonic() >= shown + _SHOWN_SECONDS:
            shown = time.monotonic()
            made = _made_since(begin, arguments.output, pairs)
            pace = made / ((time.time_ns() - begin) / 1e9)
            print(f"{made} new masks of {count(len(pairs), 'image')}, {pace:.1f} images/s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "segment.log"
        code = launch(program, arguments.workers, log, cores, show)
        said = log.read_text(errors="replace")
    if code != EXIT_OK:
        errors = [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]
        raise UserError(errors[0] if errors else f"a worker ended with code {code}:\n{said}", code)


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling segment", __doc__, _EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a complete run: logs/STUDY/RUN")
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the masks")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    any_depth = "take images of another kind or depth than the run was trained on"
    parser.add_argument("--any-depth", action="store_true", help=any_depth)
    return parser


def _made_since(begin: int, output: Path, pairs: list[FilePair]) -> int:
    """Return how many masks were written after this moment, in nanoseconds since 1970."""
    names = {mask_path(output, pair).name for pair in pairs}
    written = [entry.stat().st_mtime_ns for entry in os.scandir(output) if entry.name in names]
    return sum(moment >= begin for moment in written)


def _table(output: Path, pairs: list[FilePair]) -> tuple[str, list[int] | None]:
    """Return the rows of all masks as CSV, and the sum of their counts; None where no truth is known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    sums = []
    for pair, row, counts in _rows(output, pairs):
        writer.writerow([pair.image, mask_path(output, pair).name, *row])
        if counts:
            sums.append(counts)
    return text.getvalue(), [sum(each) for each in zip(*sums, strict=True)] or None


def _rows(output: Path, pairs: list[FilePair]) -> Iterator[tuple[FilePair, list[object], list[int]]]:
    """Yield of each mask its size, share of foreground, number of objects and IoU, and its counts."""
    for pair in pairs:
        path = mask_path(output, pair)
        made = read_mask(path)
        if made is None:
            raise UserError(f"{path} is damaged; move it away, and run the command again", EXIT_BAD_DATA)
        mask, texts = made
        _, objects = ndimage.label(mask)
        counts = [*map(int, texts.get(COUNTS_KEY, "").split())]
        iou = PixelCounts(*counts).iou if counts else None
        height, width = mask.shape
        share = f"{float((mask > 0).mean()):.6f}"
        yield pair, [width, height, share, objects, "" if iou is None else iou], counts
