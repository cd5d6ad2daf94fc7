"""Divide the images among workers and steps, and bring batches to a device."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unet_scaling.data.enough_images import count_test_images
from unet_scaling.data.image_source import Indices
from unet_scaling.data.mask_bits import unpack_bits
from unet_scaling.study.random_streams import ORDER_STREAM, SPLIT_STREAM


@dataclass(frozen=True)
class Split:
    """Images for training and for evaluation: disjoint, sorted, together all of them."""

    train: Indices
    test: Indices


def split(count: int, test_share: float, seed: int) -> Split:
    """Draw the test images, rounded to an integer and at least one; a function of the arguments alone.

    Raises UserError (65) where there are fewer than two images, one for each part.
    """
    tests = count_test_images(count, test_share)
    order = _permutations(1, count, [seed, SPLIT_STREAM])[0]
    return Split(train=np.sort(order[tests:]), test=np.sort(order[:tests]))


def epoch_order(train: Indices, passes: int, seed: int, epoch: int) -> Indices:
    """Return the training images of one epoch, [passes * len(train)]: `passes` shuffles, one after the other.

    A pure function of (seed, epoch), the same on all workers.
    """
    order: Indices = train[_permutations(passes, len(train), [seed, epoch, ORDER_STREAM])].reshape(-1)
    return order


def worker_batches(
    order: Indices, worker: int, workers: int, batch: int, accumulate: int, plays: int = 1
) -> Indices:
    """Return the images of one worker, [steps, plays * accumulate, batch].

    One that plays several has their batches one after the other: rank r plays the ranks from r * plays on.
    All workers have equally many steps; images that do not fill one are left out. The batches of N workers
    in one step are together the next N * accumulate * batch images of the order, and those of one
    pass are the images that one worker with N times the batch would see in it.
    """
    played = workers * plays
    steps = len(order) // (played * accumulate * batch)
    used = order[: steps * played * accumulate * batch]
    of_ranks = used.reshape(steps, accumulate, played, batch).swapaxes(1, 2)
    own = of_ranks[:, worker * plays : (worker + 1) * plays]
    return np.ascontiguousarray(own.reshape(steps, plays * accumulate, batch))


def test_share_of_worker(test: Indices, worker: int, workers: int) -> Indices:
    """Return every `workers`-th test image: over all workers each once, none padded, none dropped."""
    return test[worker::workers]


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
    return images.to(device, non_blocking=True), masks.to(device, non_blocking=True)


def to_floats(images: Tensor, masks: Tensor, channels_last: bool) -> tuple[Tensor, Tensor]:
    """Return float32 images of 0..1 and masks [b, 1, H, W], converted where the bytes are."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    floats = images.to(torch.float32, memory_format=layout)
    return floats.div_(255), unpack_bits(masks, images.shape[-1]).unsqueeze(1).to(torch.float32)


def _permutations(rows: int, count: int, key: list[int]) -> Indices:
    """Return [rows, count] independent permutations.

    numpy promises the raw numbers of a bit generator to stay the same in all its versions, but not
    what Generator.permutation makes of them.
    """
    numbers = np.random.PCG64(key).random_raw(rows * count).reshape(rows, count)
    return np.argsort(numbers, axis=1, kind="stable").astype(np.int64)
