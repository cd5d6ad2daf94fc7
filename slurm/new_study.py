"""Choose the values of a study file from a folder of images and the largest worker count."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from slurm.written_file import Choice
from unet_scaling.data.checking import FolderSample, check_folder, sample_folder
from unet_scaling.data.enough_images import count_test_images
from unet_scaling.data.manifest import MANIFEST_NAME, Manifest, read_manifest, write_manifest
from unet_scaling.data.pairs import find_pairs, name_pattern
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria, Data, Model, Training
from unet_scaling.study.texts import count

# A batch is never suggested larger than the default.
LARGEST_BATCH: int = Training.model_fields["batch_per_worker"].default
# Fewer steps would measure the pauses between epochs.
FEWEST_STEPS_PER_EPOCH = 8
# Larger images would take most GPUs' memory at the usual batch.
LONGEST_SIDE_PIXELS = 1024


@dataclass(frozen=True)
class ImageFacts:
    """What a checked folder of images holds."""

    folder: Path
    images: int
    height: int
    width: int
    sizes: int
    foreground: str
    foreground_share: float
    in_colour: bool
    names: str
    manifest: Path
    sample: FolderSample

    @property
    def training_images(self) -> int:
        """Return how many images are left when those for evaluation are taken out."""
        share: float = Data.model_fields["test_share"].default
        return self.images - count_test_images(self.images, share)


def survey_images(
    folder: Path, foreground: str | None, names: str | None = None, manifest_path: Path | None = None
) -> ImageFacts:
    """Return the facts of a folder; one without manifest is checked, every image decoded.

    Its manifest is written to `manifest_path`: the folder may be that of others. Raises UserError (65) with
    all that is wrong with the images.
    """
    path = folder / MANIFEST_NAME
    if not path.exists() and manifest_path:
        path = manifest_path
    if path.exists():
        manifest = read_manifest(path)
        manifest.require_unchanged(folder)
        manifest.require_foreground(foreground or manifest.foreground)
        sample = sample_folder(folder, manifest.files)
    else:
        sample = sample_folder(folder, find_pairs(folder, names)[0])
        manifest = check_folder(folder, foreground or sample.foreground, names)
        write_manifest(manifest, path)
    return image_facts(folder, path, manifest, sample)


def image_facts(folder: Path, path: Path, manifest: Manifest, sample: FolderSample) -> ImageFacts:
    """Return the facts of a manifest; heights and widths are medians."""
    pairs = manifest.pairs
    return ImageFacts(
        folder=folder,
        images=len(pairs),
        height=round(median(pair.height for pair in pairs)),
        width=round(median(pair.width for pair in pairs)),
        sizes=len({(pair.height, pair.width) for pair in pairs}),
        foreground=manifest.foreground,
        foreground_share=float(np.mean([pair.foreground_share for pair in pairs])),
        in_colour=Counter(pair.image.mode.startswith("RGB") for pair in pairs).most_common(1)[0][0],
        names=name_pattern(manifest.files[0]),
        manifest=path,
        sample=sample,
    )


def suggested_size(height: int, width: int) -> tuple[int, int]:
    """Return height and width of the network's input: whole at each of its levels, none too large."""
    step = 2 ** (Model().depth - 1)
    scale = min(1.0, LONGEST_SIDE_PIXELS / max(height, width))
    return max(step, int(height * scale) // step * step), max(step, int(width * scale) // step * step)


def suggested_batch(training_images: int, workers: int) -> int:
    """Return the largest power of two up to 16 with at least 8 steps per epoch at this worker count."""
    batch = LARGEST_BATCH
    while batch > 1 and training_images // (workers * batch) < FEWEST_STEPS_PER_EPOCH:
        batch //= 2
    return batch


def study_choices(
    facts: ImageFacts, workers: Sequence[int], why_workers: str, epochs: int, repeats: int, batch: int | None
) -> list[Choice]:
    """Return the keys of the study file. Raises UserError where it could measure nothing."""
    return [
        *_launch_choices(workers, why_workers, repeats),
        *_data_choices(facts),
        *_batch_choices(facts, max(workers), batch),
        _epochs_choice(epochs),
        *_criteria_choices(),
    ]


def _criteria_choices() -> list[Choice]:
    usual = Criteria()
    return [
        Choice("criteria.iou_margin", usual.iou_margin, "say what you accept: the answer rests on it"),
        Choice("criteria.efficiency_floor", usual.efficiency_floor, "below it, no more workers are advised"),
    ]


def task_choices(
    file: str,
    options: Mapping[str, object],
    workers: Sequence[int],
    why_workers: str,
    epochs: int,
    repeats: int,
    batch: int | None,
) -> list[Choice]:
    """Return the keys of the study file of a task of its own. Raises UserError as `study_choices`."""
    handed = [Choice("task.options", dict(options), "as asked for; a list is an axis")] if options else []
    return [
        *_launch_choices(workers, why_workers, repeats),
        Choice("task.file", file, "relative to this study file"),
        *handed,
        Choice("training.batch_per_worker", batch or LARGEST_BATCH, "samples of one worker in one pass"),
        _epochs_choice(epochs),
    ]


def _launch_choices(workers: Sequence[int], why_workers: str, repeats: int) -> list[Choice]:
    why = "a difference between frameworks is judged by its interval over repeats, which needs at least 3"
    return [
        Choice("frameworks", list(FRAMEWORKS), "each with every worker count"),
        Choice("workers", list(workers), why_workers),
        Choice("repeats", repeats, why),
    ]


def _epochs_choice(epochs: int) -> Choice:
    if epochs < 2:
        raise UserError(f"--epochs: found {epochs}; allowed: 2 or more, since the first warms up")
    why = "the first warms up and is not timed; for the score take as many as it needs"
    return Choice("training.epochs", epochs, why)


def _data_choices(facts: ImageFacts) -> list[Choice]:
    kinds = f"{count(facts.sizes, 'size')}, in the middle {facts.height} x {facts.width}"
    share = f"{100 * facts.foreground_share:.1f} % of the pixels"
    values = f"its values are {facts.sample.mask_values}"
    beside = "its images by their SHA-256; nothing was written into their folder"
    apart = facts.manifest.parent != facts.folder
    return [
        Choice("data.folder", _plain_path(facts.folder), f"{count(facts.images, 'image')} of {kinds} pixels"),
        *([Choice("data.manifest", _plain_path(facts.manifest), beside)] if apart else []),
        *_size_choices(facts),
        Choice("data.channels", 3 if facts.in_colour else 1, "as most of the images are"),
        Choice("data.foreground", facts.foreground, f"the rule of its manifest: {share}; {values}"),
        Choice("data.intensity", facts.sample.intensity, f"images use {facts.sample.range}"),
    ]


def _size_choices(facts: ImageFacts) -> list[Choice]:
    height, width = suggested_size(facts.height, facts.width)
    halvings = Model().depth - 1
    why = f"a multiple of {2**halvings}, which the network halves {halvings} times"
    return [
        Choice("data.image_height", height, why),
        Choice("data.image_width", width, "likewise; images of other proportions are padded"),
    ]


def _batch_choices(facts: ImageFacts, workers: int, asked: int | None) -> list[Choice]:
    batch = asked or suggested_batch(facts.training_images, workers)
    group = count(workers, "worker")
    passes = -(-FEWEST_STEPS_PER_EPOCH * workers * batch // facts.training_images)
    steps = count(facts.training_images * passes // (workers * batch), "step")
    why = f"{steps} per epoch on {group}, of {facts.training_images} images"
    return [Choice("training.batch_per_worker", batch, why), *_pass_choices(passes, group)]


def _pass_choices(passes: int, group: str) -> list[Choice]:
    why = f"one pass gives {group} fewer than {FEWEST_STEPS_PER_EPOCH} steps"
    return [Choice("data.passes_per_epoch", passes, why)] if passes > 1 else []


def _plain_path(folder: Path) -> str:
    """Return a folder of the project relative to it, as studies write it, and any other as absolute."""
    path = folder.resolve()
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)
