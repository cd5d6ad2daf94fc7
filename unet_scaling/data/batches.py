"""Batches of one run as its workers consume them: steps to train on, a share of the test set to evaluate.

Bytes of images are gathered from a source, brought to the device, converted there and augmented; samples of
any kind come from the data sets that a task brings.

Loader processes decode batches ahead, while the training process takes its steps. They come from a fork
server: forking this process would copy the threads and locks of MPI. Each works on one thread, on the cores
of its worker. They live as long as the run and end with their worker.
"""

import atexit
import hashlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from unet_scaling.base.errors import UserError, kill_loader_processes
from unet_scaling.data.images import PackedBatch, Verification, send
from unet_scaling.data.order import Indices, Split, epoch_order, test_share_of_worker, worker_batches
from unet_scaling.format.record_lines import ComputeFacts, Phase
from unet_scaling.group.group import Group
from unet_scaling.group.identity import STOP_SIGNALS
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import NO_CLOCK, Clock
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import AUGMENTATION_STREAM, TRANSFORM_STREAM, Data, ImageScales

# Tensors, alone or nested as the task's functions take them.
Batch = Any
CropBox = tuple[int, int, int, int]
Draws = npt.NDArray[np.float64]
# The raw numbers of an image, in this order: a new one goes to the end.
FLIP_ROWS, FLIP_COLUMNS, TOP, LEFT, BRIGHTNESS, CONTRAST = range(6)
DRAWN = 6
RAW_BITS = 64
FLOAT_BITS = 53
MIDDLE_GREY = 0.5
FLIP_PROBABILITY = 0.5
Collate = Callable[[list[Any]], Batch]
Transform = Callable[[Batch, Tensor | None], Batch]
# So many samples of the training set and of the test set tell two data sets apart, and are read fast.
COMPARED_SAMPLES = 8
# Seeds are int64, and not negative.
SEED_BITS = 63
# Each process has so many waiting while it works on the next: torch's default.
PREFETCHED_BATCHES = 2
# Imported once by the fork server: a loader process then starts in milliseconds instead of seconds.
PRELOADED = ["torch", "unet_scaling.data.batches", "unet_scaling.data.images"]


@dataclass(frozen=True)
class RunData(ABC):
    """All samples of a run, and the part of this worker.

    `compute` is the profile by which it waits; none where it computes. `scales` are those of images.
    """

    source: "ImageSource | SampleSource"
    verification: Verification
    split: Split
    config: RunConfig
    group: Group
    manifest_sha256: str
    opened: float = field(default_factory=time.perf_counter)
    compute: ComputeFacts | None = None
    scales: ImageScales | None = None

    @property
    def train_images(self) -> int:
        """Return the number of images in the training split, each counted once."""
        return len(self.split.train)

    @property
    def test_images(self) -> int:
        """Return the number of images in the test split."""
        return len(self.split.test)

    @property
    def steps_per_epoch(self) -> int:
        """Return the optimizer steps: equal on all workers, what does not fill a step is left out."""
        return self.train_images * self.config.data.passes_per_epoch // self.config.images_per_step

    @property
    def images_per_epoch(self) -> int:
        """Return how many images all workers together process in one epoch."""
        return self.steps_per_epoch * self.config.images_per_step

    def steps(self, epoch: int, clock: Clock, first: int = 0) -> "Iterator[StepBatches]":
        """Yield this worker's batches of each step from `first` on; they are loaded as they are taken.

        They are a function of seed, epoch, rank and number of workers alone. Take all of a step before the
        next: memory is that of one batch, however many passes a step has.
        """
        config = self.config
        batch = config.training.batch_per_worker
        order = epoch_order(self.split.train, config.data.passes_per_epoch, config.seed, epoch)
        own = worker_batches(
            order,
            self.group.rank,
            self.group.size,
            batch,
            config.training.accumulate,
            config.plays_per_worker,
        )
        remaining = own[first:]
        requested = remaining.reshape(-1, batch)
        gathered: Iterator[Batch] = map(self.source.gather, requested)
        if config.data.loader_workers:
            gathered = self._prefetcher.batches(requested)
        ahead = AheadLoader(self, gathered) if self.group.device.type == "cuda" else None
        take = partial(ahead.take, clock) if ahead else partial(self._next, gathered, clock)
        for step in remaining:
            batches = (self._transformed(take(), epoch, indices, clock) for indices in step)
            yield StepBatches(batches, ahead)

    @cached_property
    def _prefetcher(self) -> "Prefetcher":
        return Prefetcher(self.source, self.config.data.loader_workers)

    @cached_property
    def copy_stream(self) -> torch.cuda.Stream:
        """Return the stream of a GPU on which batches are copied; one, as each keeps memory of its own."""
        return torch.cuda.Stream(self.group.device)  # type: ignore[no-untyped-call]

    def test_share(self) -> Iterator[tuple[int, Batch]]:
        """Yield this worker's test samples, a batch of each, with its position in the test split."""
        for position in test_share_of_worker(np.arange(self.test_images), self.group.rank, self.group.size):
            yield int(position), self.test_sample(int(position))

    def test_sample(self, position: int) -> Batch:
        """Return the test sample at this position of the test split, as a batch of one."""
        return self.plain_batch(self.split.test[position : position + 1])

    def plain_batch(self, indices: Indices) -> Batch:
        """Return these samples as one batch, without augmentation."""
        return self._next(map(self.source.gather, [indices]), NO_CLOCK)

    def _next(self, gathered: Iterator[Batch], clock: Clock) -> Batch:
        packed = next(self.loaded(gathered))
        clock.mark(Phase.DATA_WAIT)
        batch = self.converted(self.sent(packed))
        clock.mark(Phase.HOST_TO_DEVICE)
        return batch

    def loaded(self, gathered: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches as they are gathered: the worker waits for no other meanwhile."""
        while True:
            with blocking.suspended():
                self.verification.require_whole()
                packed = next(gathered, None)
            if packed is None:
                return
            yield packed

    @abstractmethod
    def sent(self, packed: Batch) -> Batch:
        """Return a batch on the worker's device, as it was gathered; the host does not wait for it."""

    @abstractmethod
    def converted(self, sent: Batch) -> Batch:
        """Return a batch that is on the device as floats, in the layout asked for."""

    @abstractmethod
    def _transformed(self, batch: Batch, epoch: int, indices: Indices, clock: Clock) -> Batch:
        """Return the batch of these training samples as it is trained on in this epoch."""


class AheadLoader:
    """Has one batch on its way to a GPU while the GPU works on the one before, for all frameworks alike.

    Batches are copied from pinned memory on a stream of their own, so that neither the host nor the training
    stream waits for a copy that is done in time.
    """

    def __init__(self, data: RunData, gathered: Iterator[Batch]) -> None:
        self._data = data
        self._gathered = gathered
        self._sent: list[Batch] = []

    def take(self, clock: Clock) -> Batch:
        """Return the next batch. Raises UserError where it cannot be loaded."""
        if not self._sent:
            self.load(clock)
        sent = self._sent.pop()
        training = torch.cuda.current_stream(self._data.group.device)
        training.wait_stream(self._data.copy_stream)
        _mapped(sent, lambda tensor: tensor.record_stream(training))  # whose memory was made on the other one
        batch = self._data.converted(sent)
        clock.mark(Phase.HOST_TO_DEVICE)
        return batch

    def load(self, clock: Clock) -> None:
        """Load the batch that follows, if there is one, and begin to copy it. Raises UserError as `take`."""
        for packed in islice(self._data.loaded(self._gathered), 1):
            with torch.cuda.stream(self._data.copy_stream):
                self._sent.append(self._data.sent(packed))
        clock.mark(Phase.DATA_WAIT)


class StepBatches(Iterator[Batch]):
    """This worker's batches of one step, loaded as they are taken."""

    def __init__(self, batches: Iterable[Batch], ahead: AheadLoader | None = None) -> None:
        self._batches = iter(batches)
        self._ahead = ahead

    def __next__(self) -> Batch:
        return next(self._batches)

    def load_ahead(self, clock: Clock) -> None:
        """Load the batch after the one that was taken, on a GPU; also that of the next step.

        To be called once the forward pass is queued: the GPU computes meanwhile, and no gradient is being
        averaged yet, so that no framework's averaging is taken for loading.
        """
        if self._ahead:
            self._ahead.load(clock)


class ImageSource(Protocol):
    """Images and masks of a data set, by their row in its manifest: cached, decoded, or on the device."""

    @property
    def boxes(self) -> npt.NDArray[np.int32]:
        """Return int32 [n, 4]: top, left, height, width of each picture within its padding, in pixels."""

    def gather(self, indices: Indices) -> PackedBatch:
        """Return uint8 images [b, channels, height, width], stored channels-last, and packed masks.

        Masks are [b, height, ceil(width / 8)], a bit for each pixel. Raises UserError (65) where a file
        cannot be decoded.
        """


@dataclass(frozen=True)
class ImageBatch:
    """float32 images [batch, channels, height, width] in 0..1, masks [batch, 1, height, width] in {0, 1}.

    `box` is top, left, height and width in pixels of a test image within the padding that resizing added.
    """

    images: Tensor
    masks: Tensor
    box: CropBox | None = None

    def cropped(self, maps: Tensor) -> Tensor:
        """Return maps [..., height, width] of a test image without its padding."""
        assert self.box is not None
        top, left, height, width = self.box
        inside = maps[..., top : top + height, left : left + width]
        counted = tuple(inside.shape[-2:])
        assert counted == (height, width), f"of a test image {counted} pixels, there are {height, width}"
        return inside


@dataclass(frozen=True)
class ImageData(RunData):
    """All images of a run, and the part of this worker."""

    source: ImageSource

    def test_sample(self, position: int) -> ImageBatch:
        """Return the test image at this position of the test split."""
        batch: ImageBatch = super().test_sample(position)
        top, left, height, width = self.source.boxes[self.split.test[position]].tolist()
        return replace(batch, box=(top, left, height, width))

    def sent(self, packed: PackedBatch) -> PackedBatch:
        return transfer(*packed, self.group.device)

    def converted(self, sent: PackedBatch) -> ImageBatch:
        return ImageBatch(*to_floats(*sent, self.config.training.channels_last))

    def _transformed(self, batch: ImageBatch, epoch: int, indices: Indices, clock: Clock) -> ImageBatch:
        data = self.config.data
        if not data.is_augmented:
            return batch
        draws = draw(self.config.seed, epoch, indices)
        augmented = ImageBatch(*augment(data, batch.images, batch.masks, draws))
        clock.mark(Phase.HOST_TO_DEVICE)
        return augmented


def to_device(
    images: Tensor, masks: Tensor, device: torch.device, channels_last: bool
) -> tuple[Tensor, Tensor]:
    """Convert uint8 images [b, C, H, W] and packed masks [b, H, ceil(W / 8)] to float32 on the device.

    Images become 0..1, masks [b, 1, H, W] of 0 and 1. Bytes are transferred and converted there:
    a quarter of the transfer of floats.
    """
    return to_floats(*transfer(images, masks, device), channels_last)


def transfer(images: Tensor, masks: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the same bytes on the device; nothing is copied where that is the CPU."""
    return send(images, device), send(masks, device)


def to_floats(images: Tensor, masks: Tensor, channels_last: bool) -> tuple[Tensor, Tensor]:
    """Return float32 images of 0..1 and masks [b, 1, H, W], converted where the bytes are."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    floats = images.to(torch.float32, memory_format=layout)
    return floats.div_(255), unpack_bits(masks, images.shape[-1]).unsqueeze(1).to(torch.float32)


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """Unpack uint8 [..., ceil(width / 8)] to [..., width] of 0 and 1, on their device."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, count=width))
    return shifted_out(packed, width)


def shifted_out(packed: Tensor, width: int) -> Tensor:
    """Unpack by operations that every device has."""
    # The highest bit of a byte is its first pixel.
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2)[..., :width]


def augment(data: Data, images: Tensor, masks: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Augment float32 images [b, C, H, W] of 0..1 and masks [b, 1, H, W], with a row of `draws` each.

    By random flips, crop, brightness and contrast, on the device of the batch. The result is a pure function
    of (seed, epoch, image): the same under all frameworks, at any number of workers, in any batch, and in a
    resumed run. Flips and crops move pixels and compute none, so that a mask stays a mask; brightness and
    contrast change images alone.
    """
    if data.augment_flips or data.augment_crop < 1:
        height, width = images.shape[2:]
        rows = _kept(data, height, draws[:, TOP], draws[:, FLIP_ROWS])
        columns = _kept(data, width, draws[:, LEFT], draws[:, FLIP_COLUMNS])
        images = _select(images, rows, columns)
        masks = _select(masks, rows, columns)
    if data.augment_brightness or data.augment_contrast:
        # Draws of 0..1 become -1..1.
        shift = _per_image(data.augment_brightness * (2 * draws[:, BRIGHTNESS] - 1), images)
        gain = _per_image(1 + data.augment_contrast * (2 * draws[:, CONTRAST] - 1), images)
        images = ((images - MIDDLE_GREY) * gain + (MIDDLE_GREY + shift)).clamp_(0, 1)
    return images, masks


def _kept(data: Data, length: int, offset: Draws, flip: Draws) -> Tensor:
    """Return the rows, or columns, [b, kept] of each image that are kept, in their new order."""
    kept = max(1, round(data.augment_crop * length))
    first = (offset * (length - kept + 1)).astype(np.int64)
    numbers = first[:, None] + np.arange(kept)
    flipped = (flip < FLIP_PROBABILITY) & data.augment_flips
    return torch.from_numpy(np.where(flipped[:, None], numbers[:, ::-1], numbers))


def draw(seed: int, epoch: int, images: Indices) -> Draws:
    """Return [b, DRAWN] numbers of 0..1 for these images, by their place in the data set."""
    raw = [
        np.random.PCG64([seed, epoch, int(image), AUGMENTATION_STREAM]).random_raw(DRAWN) for image in images
    ]
    integers = np.array(raw, dtype=np.uint64) >> np.uint64(RAW_BITS - FLOAT_BITS)
    return integers.astype(np.float64) * 2.0**-FLOAT_BITS


def _per_image(values: Draws, images: Tensor) -> Tensor:
    return send(torch.from_numpy(values.astype(np.float32)), images.device).view(-1, 1, 1, 1)


def _select(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return these rows and columns of each of the maps [b, c, H, W], on their device and in their layout."""
    device = maps.device
    numbers = torch.arange(len(maps), device=device)[:, None, None]
    pixels = maps.permute(0, 2, 3, 1)
    selected = pixels[numbers, send(rows, device)[:, :, None], send(columns, device)[:, None, :]]
    selected = selected.permute(0, 3, 1, 2)
    channels_last = maps.stride(1) == 1
    return selected if channels_last else selected.clone(memory_format=torch.contiguous_format)


class SampleSource:
    """Training samples, and behind them the test samples, under one numbering.

    Both are map-style data sets: `samples[i]`, tensors and numbers in any nest, is a pure function of i.
    """

    def __init__(self, train: Sequence[Any], test: Sequence[Any], collate: Collate = default_collate) -> None:
        self._train = train
        self._test = test
        self._collate = collate
        self._first_test = len(train)

    def gather(self, indices: Indices) -> Batch:
        """Return the samples of these numbers as one batch in memory."""
        return self._collate([self.sample(int(index)) for index in indices])

    def sample(self, index: int) -> Any:  # noqa: ANN401
        """Return one sample as its data set gives it."""
        if index < self._first_test:
            return self._train[index]
        return self._test[index - self._first_test]


@dataclass(frozen=True)
class SampleData(RunData):
    """All samples of a run, and the part of this worker."""

    source: SampleSource
    transform: Transform | None = None
    digests: Mapping[int, str] = field(default_factory=dict)

    def plain_batch(self, indices: Indices) -> Batch:
        return self.batch(indices)

    def batch(self, indices: Indices, epoch: int | None = None) -> Batch:
        """Return a batch of these samples on the device; training samples as they are in `epoch`."""
        batch = self.converted(self.sent(self.source.gather(indices)))
        if self.transform is None:
            return batch
        return self.transform(batch, None if epoch is None else self._seeds(epoch, indices))

    def sent(self, packed: Batch) -> Batch:
        return _mapped(packed, lambda tensor: send(tensor, self.group.device))

    def converted(self, sent: Batch) -> Batch:
        return _mapped(sent, _channels_last) if self.config.training.channels_last else sent

    def _transformed(self, batch: Batch, epoch: int, indices: Indices, clock: Clock) -> Batch:
        if self.transform is None:
            return batch
        transformed = self.transform(batch, self._seeds(epoch, indices))
        clock.mark(Phase.HOST_TO_DEVICE)
        return transformed

    def _seeds(self, epoch: int, indices: Indices) -> Tensor:
        """Return int64 [b]: a pure function of (seed, epoch, sample), at any number of workers."""
        raw = [
            np.random.PCG64([self.config.seed, epoch, int(index), TRANSFORM_STREAM]).random_raw()
            for index in indices
        ]
        return send(torch.tensor([number >> (64 - SEED_BITS) for number in raw]), self.group.device)


def _channels_last(tensor: Tensor) -> Tensor:
    """Return images [b, C, H, W] of floats stored channels-last, other tensors as they are."""
    if tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def _mapped(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """Return the batch with each of its tensors replaced by what the function makes of it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: _mapped(each, function) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(each, function) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_mapped(each, function) for each in batch)
    return batch


def sample_digests(
    source: SampleSource, split: Split, backwards: bool = False, most: int = COMPARED_SAMPLES
) -> dict[int, str]:
    """Return the SHA-256 of some samples, spread evenly over both sets, by number, and read in this order.

    `most` are of each set.
    """
    numbers: list[int] = []
    for part in (split.train, split.test):
        places = np.linspace(0, len(part) - 1, min(most, len(part))).round()
        numbers += part[places.astype(np.int64)].tolist()
    read = {index: sample_sha256(source.sample(index)) for index in sorted(numbers, reverse=backwards)}
    return {index: read[index] for index in numbers}


def samples_sha256(split: Split, digests: Mapping[int, str]) -> str:
    """Return the SHA-256 over the numbers of samples, and over these digests of some of them."""
    digest = hashlib.sha256(f"{len(split.train)} {len(split.test)} ".encode())
    for sample in digests.values():
        digest.update(sample.encode())
    return digest.hexdigest()


def sample_sha256(sample: Any) -> str:  # noqa: ANN401
    """Return the SHA-256 of the types, shapes and values in a sample."""
    digest = hashlib.sha256()
    for part in _parts(sample):
        digest.update(part)
    return digest.hexdigest()


def _parts(sample: Any) -> Iterator[bytes]:  # noqa: ANN401
    if isinstance(sample, np.ndarray):
        sample = torch.from_numpy(sample)
    if isinstance(sample, Tensor):
        yield f"{sample.dtype} {tuple(sample.shape)} ".encode()
        yield sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, dict):
        for key, each in sample.items():
            yield f"{key}: ".encode()
            yield from _parts(each)
    elif isinstance(sample, list | tuple):
        for each in sample:
            yield from _parts(each)
    else:
        yield f"{sample!r} ".encode()


class Prefetcher:
    """Loader processes that gather the batches of one source, in the order in which they are requested."""

    def __init__(self, source: ImageSource | SampleSource, processes: int) -> None:
        self._requested: list[Indices] = []
        cores = os.sched_getaffinity(0)
        _start_forkserver_with_signals_blocked(STOP_SIGNALS)
        self._loader: DataLoader[Any] = DataLoader(
            _Gathered(source),
            batch_size=None,
            sampler=self._requested,
            num_workers=processes,
            collate_fn=_identity,
            worker_init_fn=partial(_stay_on, cores),
            prefetch_factor=PREFETCHED_BATCHES,
            persistent_workers=True,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # each epoch draws a number, not from the one of dropout
        )

    def batches(self, order: Iterable[Indices]) -> Iterator[Batch]:
        """Yield the batch of each entry [b] of `order`; raises UserError as the source does."""
        self._requested[:] = order
        for batch in self._loader:
            if isinstance(batch, _Failure):
                raise UserError(*batch)
            yield batch


class _Failure(NamedTuple):
    """A UserError on its way from a loader process; pickled as an exception it would lose its exit code."""

    text: str
    exit_code: int


class _Gathered(Dataset[Any]):
    def __init__(self, source: ImageSource | SampleSource) -> None:
        self.source = source

    def __getitem__(self, indices: Indices) -> Batch | _Failure:
        try:
            return self.source.gather(indices)
        except UserError as error:
            return _Failure(str(error), error.exit_code)


def _identity(batch: Any) -> Any:  # noqa: ANN401  # DataLoader types a batch as a list
    return batch


def _stay_on(cores: set[int], _process: int) -> None:
    # The fork server keeps the cores that this process had when it was started.
    os.sched_setaffinity(0, cores)


def _start_forkserver_with_signals_blocked(signals: tuple[signal.Signals, ...]) -> None:
    """Start the fork server so that loader processes outlive the signal that asks their worker to stop.

    Slurm signals every process of a step, and the worker still needs batches up to its next safe point.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # ensure_running has unblocked SIGTERM
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.unregister(kill_loader_processes)
    atexit.register(kill_loader_processes)
