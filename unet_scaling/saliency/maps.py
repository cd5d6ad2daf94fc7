"""Make the maps of a run: the same bytes whatever the number of workers and whatever they share out.

The trained network is a black box: scores of masked images against its prediction for the clean one.
Masks pass through the network in fixed batches, since a batch's rounding may depend on its size. A number is
computed by one worker and summed with the zeros of all others, which changes no bit of it; and each sum over
the masks is one worker's, in the order of the masks.

Each file is written once, whole or not at all, with its SHA-256 beside it. What an earlier attempt finished
stays, as long as it is of the same weights, images and options.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unet_scaling.base.errors import EXIT_BUG, EXIT_DIVERGED, UserError, or_user_error
from unet_scaling.base.files import read_verified, remove_unfinished, write_atomically, write_verified
from unet_scaling.base.progress import progress
from unet_scaling.data.batches import CropBox, ImageBatch, ImageData
from unet_scaling.data.folder import read_manifest
from unet_scaling.format.record_lines import SALIENCY_FOLDER, SALIENCY_ORIGIN_NAME
from unet_scaling.format.saliency import (
    SALIENCY_MANIFEST_NAME,
    SCORES,
    ExplainedImage,
    SaliencyFile,
    SaliencyManifest,
)
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import PartClock
from unet_scaling.model import UNet
from unet_scaling.saliency.masks import Doubles, MaskStore, Method
from unet_scaling.study.config import RunConfig

# How maps follow from weights. Change it with any change of the bytes of maps: a resumed run then makes its
# earlier maps again instead of mixing both.
ARITHMETIC = "batch norm folded; on CPUs channels last"
MAPS_FOLDER = "maps"
PICTURES_FOLDER = "overlays"
ENTRIES_FOLDER = "entries"
# Takes how many images all workers are done with.
AfterEach = Callable[[int], None]


class NotFiniteError(UserError):
    """What the network predicts on a test image is not finite."""

    def __init__(self, image: str = "a test image") -> None:
        super().__init__(f"saliency: the network's prediction for {image} is not finite", EXIT_DIVERGED)


class ExplainedNetwork:
    """A copy of the run's U-Net that is made for inference, in the memory layout in which it takes images.

    On CPUs images have channels last, which with folded norms makes a map of the reference network 1.08 times
    as fast. Of a GPU that is not known: there, `training.channels_last` decides.
    """

    def __init__(self, model: nn.Module, config: RunConfig) -> None:
        assert isinstance(model, UNet), f"maps are of the built-in U-Net, not of {type(model).__name__}"
        is_on_cpu = next(model.parameters()).device.type == "cpu"
        is_last = is_on_cpu or config.training.channels_last
        self._layout = torch.channels_last if is_last else torch.contiguous_format
        self.model: nn.Module = model.for_inference().to(memory_format=self._layout)  # type: ignore[call-overload]

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return float32 logits [n, height, width] of images [n, channels, height, width]."""
        # Copied, since kernels are chosen by strides, and one channel has several that mean the same.
        stored = torch.empty(
            images.shape, dtype=torch.float32, device=images.device, memory_format=self._layout
        )
        logits: Tensor = self.model(stored.copy_(images))
        return logits[:, 0].float()


@dataclass(frozen=True)
class CleanImage:
    """An image, and the region that the network predicts on it, both without its padding.

    `region` is bool [height, width] on the device, `reference` the scores [2] of the image itself, `fill`
    what hidden pixels become, float64 [channels, 1, 1]; None for black.
    """

    batch: ImageBatch
    region: Tensor
    reference: Doubles
    fill: Tensor | None
    network: ExplainedNetwork

    @property
    def box(self) -> CropBox:
        assert self.batch.box is not None
        return self.batch.box

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is predicted: then no score exists."""
        return not bool(self.region.any())

    def scores(self, masks: NDArray[np.generic]) -> Doubles:
        """Return the scores [n, 2] of the image under masks [n, height, width] of its padded size.

        One forward pass: its sums may depend on how many masks there are.
        """
        kept = torch.from_numpy(np.ascontiguousarray(masks)).to(self.batch.images.device).unsqueeze(1)
        images = self.batch.images * kept
        if self.fill is not None:
            # Compute in float64, as xaitk does.
            images = (images.double() + (1 - kept.float()) * self.fill).float()
        return self.scores_of(images)

    def scores_of(self, images: Tensor) -> Doubles:
        """Return the scores [n, 2] of images [n, channels, height, width] that stand for the clean one."""
        return region_scores(self.batch.cropped(self.network.logits(images)), self.region)

    def scores_of_image(self, kept: NDArray[np.bool_]) -> Doubles:
        """Return the scores [n, 2] where masks are of the image without its padding, which stays."""
        top, left, height, width = self.box
        padded = np.ones((len(kept), *self.batch.images.shape[-2:]), np.bool_)
        padded[:, top : top + height, left : left + width] = kept
        return self.scores(padded)


def clean_image(network: ExplainedNetwork, batch: ImageBatch, config: RunConfig) -> CleanImage:
    """Return what the network predicts on a test image; NotFiniteError (70) where that is not finite."""
    logits = batch.cropped(network.logits(batch.images))
    if not bool(torch.isfinite(logits).all()):
        raise NotFiniteError
    region = logits[0] > 0
    fill = None
    if config.saliency.fill == "mean":
        fill = batch.cropped(batch.images).mean(dim=(0, 2, 3), dtype=torch.float64)[:, None, None]
    return CleanImage(batch, region, region_scores(logits, region)[0], fill, network)


def region_scores(logits: Tensor, region: Tensor) -> Doubles:
    """Return the scores [n, 2] of logits [n, height, width] against a region [height, width].

    The first is the mean probability within the region, the second the IoU of the predicted pixels with it;
    neither is a number where the region is empty.
    """
    probability = (torch.sigmoid(logits) * region).sum(dim=(1, 2), dtype=torch.float64)
    predicted = logits > 0
    common = (predicted & region).sum(dim=(1, 2))
    either = (predicted | region).sum(dim=(1, 2))
    scores = torch.stack([probability / region.sum(), common.double() / either], dim=1)
    found: Doubles = scores.cpu().numpy()
    return found


class MapFiles:
    """The folder `saliency` of a run folder. What writes raises UserError (1) where that fails."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / SALIENCY_FOLDER

    def prepare(self, origin: dict[str, Any]) -> None:
        """Make the folders, and remove what is unfinished or of another origin. Called on one worker."""
        text = json.dumps(origin, sort_keys=True)
        with _or_stop(self.folder):
            for name in (MAPS_FOLDER, PICTURES_FOLDER, ENTRIES_FOLDER):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
                remove_unfinished(self.folder / name, "*")
            remove_unfinished(self.folder, "*")
            named = self.folder / SALIENCY_ORIGIN_NAME
            if not named.exists() or named.read_text() != text:
                for name in (MAPS_FOLDER, ENTRIES_FOLDER):
                    for path in (self.folder / name).iterdir():
                        path.unlink()
                write_atomically(named, text)

    def has_map(self, position: int, shape: tuple[int, ...]) -> bool:
        """Return whether the map of a test image is there, whole and as it was written."""
        try:
            return self.read_map(position).shape == shape
        except (OSError, ValueError):
            return False

    def is_mapped(self, position: int) -> bool:
        """Return whether the map of a test image was written, by whichever worker."""
        return self._map_path(position).exists()

    def read_map(self, position: int) -> NDArray[np.float32]:
        """Return the map of a test image, float32 [scores, height, width]. Raises OSError and ValueError."""
        content = io.BytesIO(read_verified(self._map_path(position)))
        saliency: NDArray[np.float32] = np.load(content, allow_pickle=False)
        return saliency

    def write_map(self, position: int, saliency: NDArray[np.float64]) -> None:
        """Write the map of a test image in float32."""
        file = io.BytesIO()
        np.save(file, saliency.astype(np.float32))
        path = self._map_path(position)
        with _or_stop(path):
            write_verified(path, file.getvalue())

    def map_file(self, position: int) -> SaliencyFile:
        """Return how the manifest names the map of a test image."""
        return self._file(self._map_path(position))

    def write_picture(self, position: int, name: str, png: bytes) -> SaliencyFile:
        """Write a picture of a test image; return how the manifest names it."""
        path = self.folder / PICTURES_FOLDER / f"{position:05d}_{name}.png"
        with _or_stop(path):
            write_atomically(path, png)
        return self._file(path)

    def write_entry(self, entry: ExplainedImage) -> None:
        """Write what is known of a test image, for a later attempt."""
        path = self._entry_path(entry.position)
        with _or_stop(path):
            write_verified(path, entry.model_dump_json().encode())

    def read_entry(self, position: int) -> ExplainedImage | None:
        """Return what an earlier attempt found out, where its files are still as it left them."""
        try:
            entry = ExplainedImage.model_validate_json(read_verified(self._entry_path(position)))
            named = [*entry.pictures.values(), *entry.overlays.values(), *([entry.map] if entry.map else [])]
            is_current = all(self._file(self.folder / file.file) == file for file in named)
        except (OSError, ValueError):
            return None
        is_mapped = entry.map is not None
        return entry if is_current and is_mapped == self.is_mapped(position) else None

    def write_manifest(self, manifest: SaliencyManifest) -> str:
        """Write the manifest; return its SHA-256."""
        content = manifest.model_dump_json(indent=1).encode() + b"\n"
        path = self.folder / SALIENCY_MANIFEST_NAME
        with _or_stop(path):
            write_atomically(path, content)
        return hashlib.sha256(content).hexdigest()

    def _entry_path(self, position: int) -> Path:
        return self.folder / ENTRIES_FOLDER / f"{position:05d}.json"

    def _map_path(self, position: int) -> Path:
        return self.folder / MAPS_FOLDER / f"{position:05d}.npy"

    def _file(self, path: Path) -> SaliencyFile:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return SaliencyFile(file=path.relative_to(self.folder).as_posix(), sha256=digest)


def _or_stop(path: Path) -> AbstractContextManager[None]:
    cure = "make room and start the run again: it goes on with the maps that are missing"
    return or_user_error(f"{path} cannot be written", cure, EXIT_BUG)


@dataclass(frozen=True)
class MapMaker:
    """All that the maps of a run are made of, on one worker."""

    config: RunConfig
    network: ExplainedNetwork
    data: ImageData
    masks: MaskStore
    method: Method
    files: MapFiles

    def clean(self, position: int) -> CleanImage:
        """Return the test image at this position with the network's prediction.

        Raises NotFiniteError (70) where that is not finite.
        """
        batch = self.data.test_sample(position)
        try:
            return clean_image(self.network, batch, self.config)
        except NotFiniteError:
            raise self.not_finite(position) from None

    def not_finite(self, position: int) -> NotFiniteError:
        """Return the error that names the image."""
        return NotFiniteError(f"the test image {image_names(self.config, self.data)[position]}")

    def saliency(self, clean: CleanImage) -> Doubles:
        """Return the map of an image, float64 [scores, height, width], made by this worker alone."""
        return self.weighed(clean, self.scores(clean, 0, 1))

    def weighed(self, clean: CleanImage, perturbed: Doubles) -> Doubles:
        """Return the map of an image from the scores [masks, scores] of all masked ones."""
        rows = self.masks.rows(0, self.masks.height)
        return self.method.finish(self.method.sum_rows(rows, clean.reference, perturbed))

    def scores(self, clean: CleanImage, first: int, apart: int) -> Doubles:
        """Return [masks, scores] with those of every `apart`-th batch of masks, and zeros elsewhere."""
        size = self.config.saliency.batch
        scores = np.zeros((self.masks.count, len(SCORES)))
        for begin in range(first * size, self.masks.count, apart * size):
            scores[begin : begin + size] = clean.scores(self.masks.read(begin, begin + size))
        return scores

    def own(self, positions: Sequence[int]) -> list[int]:
        """Return the images of this worker, which writes and checks their maps."""
        group = self.data.group
        return [position for position in positions if position % group.size == group.rank]


def image_names(config: RunConfig, data: ImageData) -> list[str]:
    """Return the names of the test images, by position."""
    pairs = read_manifest(config.data.manifest_path).pairs
    return [pairs[number].stem for number in data.split.test]


def make_maps(
    maker: MapMaker, positions: Sequence[int], split: str, clock: PartClock, after_each: AfterEach
) -> None:
    """Make the maps of these test images; all workers call `after_each` equally often.

    Raises UserError where a prediction is not finite (70), or a map cannot be written (1).
    """
    group = maker.data.group
    if split == "images":
        own = maker.own(positions)
        take_turns(group, own, lambda position: _make_alone(maker, position, clock), "saliency", after_each)
    else:
        images = progress(positions, len(positions), "saliency", group.rank == 0)
        for done, position in enumerate(images, 1):
            _make_together(maker, position, clock)
            after_each(done)


def take_turns(
    group: Group, own: Sequence[int], turn: Callable[[int], None], title: str, after_each: AfterEach
) -> None:
    """Call `turn` for each of this worker's images; all workers call `after_each` equally often.

    It takes the turns of all workers so far. A worker on which a turn raises UserError takes no more of
    them, since the others may wait for it. After the last round all raise alike.
    """
    counts = group.gather_numbers(len(own))
    rounds = int(max(counts))
    problem: UserError | None = None
    for number in progress(range(rounds), rounds, title, group.rank == 0):
        try:
            if problem is None and number < len(own):
                turn(own[number])
        except UserError as error:
            problem = error
        after_each(int(sum(min(count, number + 1) for count in counts)))

    def raise_own_problem() -> None:
        if problem is not None:
            raise problem

    group.run_on_all(raise_own_problem)


def _make_alone(maker: MapMaker, position: int, clock: PartClock) -> None:
    with clock.part("forward"):
        clean = maker.clean(position)
        if clean.is_empty:
            return
        perturbed = maker.scores(clean, 0, 1)
    with clock.part("weighting"):
        saliency = maker.weighed(clean, perturbed)
    with clock.part("files"):
        maker.files.write_map(position, saliency)


def _make_together(maker: MapMaker, position: int, clock: PartClock) -> None:
    group = maker.data.group

    def sum_over_workers(own: Doubles) -> Doubles:
        with clock.part("sum"), blocking:
            total: Doubles = group.sum_over_workers(torch.from_numpy(own).to(group.device)).cpu().numpy()
        return total

    with clock.part("forward"):
        clean: CleanImage | None = None
        own_scores = np.zeros((maker.masks.count, len(SCORES)))
        try:
            clean = maker.clean(position)
            if not clean.is_empty:
                own_scores = maker.scores(clean, group.rank, group.size)
        except NotFiniteError:
            pass
        flags = np.repeat([[clean is None], [clean is not None and clean.is_empty]], len(SCORES), axis=1)
    # Workers on unlike devices may differ: what one calls empty or not finite, all do.
    *perturbed, not_finite, empty = sum_over_workers(np.vstack([own_scores, flags]))
    if clean is None or not_finite.any():
        raise maker.not_finite(position)
    if empty.any():
        return
    with clock.part("weighting"):
        # The rows of the map that are this worker's, and zeros elsewhere.
        height = maker.masks.height
        top, bottom = (height * rank // group.size for rank in (group.rank, group.rank + 1))
        rows = maker.masks.rows(top, bottom)
        own_rows = maker.method.sum_rows(rows, clean.reference, np.array(perturbed))
        own_sums = np.zeros((len(own_rows), height, maker.masks.width))
        own_sums[:, top:bottom] = own_rows
    sums = sum_over_workers(own_sums)
    if maker.own([position]):
        with clock.part("weighting"):
            saliency = maker.method.finish(sums)
        with clock.part("files"):
            maker.files.write_map(position, saliency)
