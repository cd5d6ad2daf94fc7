"""Segment a folder of images by the network of a complete run, on this machine or as a job of Slurm.

IMAGES is a folder of PNG, TIFF and JPEG files, or one with images/ and masks/: then the masks are scored.
Images of any size are taken at the scale that the run trained at, and masks, of 0 and 255, have the size of
their image. An image that cannot be read is named, and the others are made: exit code 65. The same command
again makes only masks that are missing, or are of another network or image.
"""

import argparse
import csv
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scipy import ndimage  # type: ignore[import-untyped]

from slurm.cluster import Cluster, plan_geometry, read_cluster
from slurm.commands.options import new_console
from slurm.launch.processes import launch
from slurm.one_job import new_job_folder, run_as_job
from slurm.scheduler.protocol import GONE, Scheduler, is_over
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_BUG, EXIT_OK, EXIT_RESUME, UserError
from unet_scaling.base.files import READABLE, read_regular, real_path, remove_unfinished, write_atomically
from unet_scaling.base.texts import count
from unet_scaling.base.validation import positive
from unet_scaling.data.folder import FilePair
from unet_scaling.format.record_lines import PixelCounts
from unet_scaling.inference import masks
from unet_scaling.study.study_file import OUTPUT_NAME

_COLUMNS = ("image", "mask", "width", "height", "area_share", "objects", "iou")
# `report --csv` reads the first two columns; the others are for people.
_SPEEDS_HEADER = "workers,throughput (images/s),images,seconds\n"
LEAST_SECONDS = 1.0
_JOB_NAME = "segment"
_SHOWN_SECONDS = 5.0
_EPILOG = """\
examples
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/predicted
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/predicted --workers 2
  unet-scaling segment logs/MY_STUDY/pytorch_native-w02-r1 $WORK/images --output $WORK/predicted \\
    --workers 8 --cluster slurm/clusters/MINE.toml --speeds $WORK/speeds.csv
  unet-scaling report --csv $WORK/speeds.csv
"""


def main() -> int:
    arguments = command_line().parse_args()
    output: Path = arguments.output
    masks.trained_network(arguments.run)  # refuse now, not after hours in the queue
    pairs, problems = masks.files_to_segment(arguments.images)
    masks.require_own_folder(output, arguments.images, masks.TABLE_NAME)
    cores = len(os.sched_getaffinity(0))
    cluster = read_cluster(arguments.cluster) if arguments.cluster else None
    if cluster:
        if arguments.cores:
            raise UserError(f"--cores: leave it out; cores_per_worker of {arguments.cluster} says it")
        plan_geometry(cluster, arguments.workers)
        _require_no_job(cluster.get_scheduler(), output)
    elif arguments.workers > cores:
        raise UserError(f"--workers {arguments.workers}: allowed: at most {cores}, the cores of this machine")
    elif arguments.cores * arguments.workers > cores:
        most = f"at most {cores // arguments.workers}, as this machine has {count(cores, 'core')}"
        raise UserError(f"--cores {arguments.cores}: allowed with --workers {arguments.workers}: {most}")
    if arguments.speeds:
        _require_table(arguments.speeds, output)
    with masks.or_resumable(output):
        output.mkdir(parents=True, exist_ok=True)
        remove_unfinished(output, "*.png")
        begin = _moment(output)
    refused, failure = _make_masks(arguments, cluster, pairs, begin)
    seconds = (_moment(output) - begin) / 1e9
    moments = _moments(begin, output, pairs)
    rows, made, scored = _table(output, pairs)
    with masks.or_resumable(output / masks.TABLE_NAME):
        write_atomically(output / masks.TABLE_NAME, rows, READABLE)
    images = count(len(scored), "image")
    iou = PixelCounts(*map(sum, zip(*scored, strict=True))).iou if scored else None
    score = f", IoU of these {images} {iou!r}" if scored else ""
    print(
        f"{output}: {count(made, 'mask')}, {count(len(moments), 'new mask')} in {seconds:.1f} s on "
        f"{count(arguments.workers, 'worker')}{score}; {masks.TABLE_NAME} has a row for each image"
    )
    if arguments.speeds:
        _note_speed(arguments.speeds, arguments.workers, moments)
    for problem in (*problems, *refused):
        print(f"{masks.REFUSED_PREFIX}{problem}", file=sys.stderr)
    missing = len(pairs) - made
    if not failure and missing > len(refused):
        # A shared file system may show files late to other nodes.
        text = f"{output}: {missing} of {count(len(pairs), 'mask')} missing; the same command goes on"
        failure = UserError(text, EXIT_RESUME)
    if failure:
        raise failure
    if problems or refused:
        files = count(len(problems) + len(refused), "file")
        raise UserError(f"{arguments.images}: {files} refused, {count(made, 'mask')} made", EXIT_BAD_DATA)
    return EXIT_OK


def _make_masks(
    arguments: argparse.Namespace, cluster: Cluster | None, pairs: list[FilePair], begin: int
) -> tuple[list[str], UserError | None]:
    """Let workers make the masks that are missing, and show their number.

    Return what they said of images that they refused, and with which error they ended, if any.
    """
    # Whole paths, as workers may start in another folder.
    places = [str(path.resolve()) for path in (arguments.run, arguments.images, arguments.output)]
    program = ["-m", "unet_scaling.inference.segment", *places]
    if arguments.any_depth:
        program.append("--any-depth")
    if arguments.resize:
        program.append("--resize")
    shown = time.monotonic()

    def show(*_: object) -> None:
        nonlocal shown
        if time.monotonic() >= shown + _SHOWN_SECONDS:
            shown = time.monotonic()
            moments = _moments(begin, arguments.output, pairs)
            if len(moments) > 1 and moments[-1] > moments[0]:
                pace = len(moments) / ((moments[-1] - moments[0]) / 1e9)
                said = f"{len(moments)} new masks of {count(len(pairs), 'image')}"
                print(f"{said}, {pace:.1f} images/s", flush=True)

    if cluster:
        code, said = _through_slurm(cluster, arguments, program, show)
    else:
        with tempfile.TemporaryDirectory() as place:
            log = Path(place) / "segment.log"
            cores = arguments.cores or len(os.sched_getaffinity(0)) // arguments.workers
            code = launch(program, arguments.workers, log, cores, show)
            said = f"a worker ended with code {code}:\n{log.read_text(errors='replace')}"
    lines = said.splitlines()
    prefix = masks.REFUSED_PREFIX
    refused = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return refused, UserError(errors[0] if errors else said, code) if code != EXIT_OK else None


def _through_slurm(
    cluster: Cluster, arguments: argparse.Namespace, program: list[str], show: Callable[[], None]
) -> tuple[int, str]:
    """Run the program as a job; return its exit code, and a text with its end and all that it printed."""
    folder = new_job_folder(arguments.output.resolve() / masks.JOBS_FOLDER)
    ended = run_as_job(cluster, arguments.workers, program, _JOB_NAME, folder, new_console(), show)
    printed = (folder / OUTPUT_NAME).read_text(errors="replace")
    code = {"COMPLETED": EXIT_OK, "FAILED": EXIT_BUG}.get(ended.state, EXIT_RESUME)
    if code == EXIT_OK:
        shutil.rmtree(folder)
    return code, f"the job ended as {ended.state}; the same command goes on. It printed:\n{printed}"


def _require_no_job(scheduler: Scheduler, output: Path) -> None:
    """Raise UserError where a job of an earlier call, whose terminal is gone, may still make these masks."""
    tokens = [f"{_JOB_NAME}.{folder.name}" for folder in sorted((output / masks.JOBS_FOLDER).glob("*"))]
    for token, state in scheduler.look_up(dict.fromkeys(tokens)).items() if tokens else ():
        if not is_over(state.state) and state.state != GONE:
            cure = f"wait for its end, or end it: scancel --name={token}"
            raise UserError(f"{output}: job {token} of an earlier call is {state.state.lower()}; {cure}")


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling segment", __doc__, _EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a complete run: logs/STUDY/RUN")
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder of images")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the masks")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    cores = (
        "of each worker on this machine, as training.cores_per_worker of a study (default: an equal share)"
    )
    parser.add_argument("--cores", type=positive, default=0, metavar="N", help=cores)
    cluster = "as a job of Slurm; all folders must be seen by its nodes"
    parser.add_argument("--cluster", type=Path, metavar="CLUSTER.toml", help=cluster)
    speeds = "append workers and images/s to this table, for report --csv"
    parser.add_argument("--speeds", type=Path, metavar="FILE", help=speeds)
    any_depth = "take images of another kind or depth than the run was trained on"
    parser.add_argument("--any-depth", action="store_true", help=any_depth)
    resize = "bring every image to the size of training, not to its scale"
    parser.add_argument("--resize", action="store_true", help=resize)
    return parser


def _moment(output: Path) -> int:
    """Return the time by the clock that dates the files of this folder; nanoseconds since 1970."""
    with tempfile.NamedTemporaryFile(dir=output) as file:
        return Path(file.name).stat().st_mtime_ns


def _moments(begin: int, output: Path, pairs: list[FilePair]) -> list[int]:
    """Return when masks were written since `begin`, in order; nanoseconds since 1970."""
    names = {masks.mask_path(output, pair).name for pair in pairs}
    written = (entry.stat().st_mtime_ns for entry in os.scandir(output) if entry.name in names)
    return sorted(moment for moment in written if moment >= begin)


def _require_table(path: Path, output: Path) -> None:
    """Raise UserError where no table of speeds can be written, or another file stands there."""
    if real_path(path).parent == real_path(output):
        raise UserError(f"--speeds {path} lies among the masks; name a place outside of --output")
    if not path.parent.is_dir():
        raise UserError(f"--speeds {path}: {path.parent} is no folder")
    if path.exists() and not (path.is_file() and read_regular(path).startswith(_SPEEDS_HEADER.encode())):
        raise UserError(f"--speeds {path} is no table of earlier calls; name a new file")


def _note_speed(path: Path, workers: int, moments: list[int]) -> None:
    """Append the speed from the first mask on, without the first of each worker.

    The start of workers that come later counts; a file system may date files by whole seconds.
    """
    images = len(moments) - workers
    seconds = (moments[-1] - moments[0]) / 1e9 if moments else 0.0
    if images < 1 or seconds < LEAST_SECONDS:
        print(f"{path}: no row: too few masks are new, or made too fast to time")
        return
    row = f"{workers},{images / seconds:.3f},{images},{seconds:.3f}\n"
    with path.open("a") as table:
        table.write(row if table.tell() else _SPEEDS_HEADER + row)
    print(f"{path}: {images / seconds:.1f} images/s on {count(workers, 'worker')}, after the first masks")


def _table(output: Path, pairs: list[FilePair]) -> tuple[str, int, list[list[int]]]:
    """Return a row for each image as CSV, the number of masks, and the counts of those with a known truth.

    An image without a mask has its name alone in its row.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    made = 0
    scored = []
    for pair in pairs:
        path = masks.mask_path(output, pair)
        mask, texts = masks.read_mask(path) or (None, {})
        if mask is None:
            writer.writerow([pair.image] + [""] * (len(_COLUMNS) - 1))
            continue
        made += 1
        height, width = mask.shape
        share = f"{float((mask > 0).mean()):.6f}"
        _, objects = ndimage.label(mask)
        counts = [*map(int, texts.get(masks.COUNTS_KEY, "").split())]
        if counts:
            scored.append(counts)
        iou = PixelCounts(*counts).iou if counts else None
        writer.writerow([pair.image, path.name, width, height, share, objects, "" if iou is None else iou])
    return text.getvalue(), made, scored
