"""Which images serve for what: training or test, in which order, on which worker. Needs no torch.

Pure functions of their keys. numpy promises the raw numbers of a bit generator to stay the same in all its
versions, but not what Generator.permutation makes of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.texts import count
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import ORDER_STREAM, SPLIT_STREAM

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Images for training and for evaluation: disjoint, sorted, together all of them."""

    train: Indices
    test: Indices


def split(count: int, test_share: float, seed: int) -> Split:
    """Draw the test images, a function of the arguments alone. Raises UserError as `count_test_images`."""
    tests = count_test_images(count, test_share)
    order = _permutations(1, count, [seed, SPLIT_STREAM])[0]
    return Split(train=np.sort(order[tests:]), test=np.sort(order[:tests]))


def count_test_images(count: int, test_share: float) -> int:
    """Return how many of `count` images are kept for evaluation: at least one, and not all.

    Raises UserError (65) where there are fewer than two images, one for each part.
    """
    if count < 2:
        found = f"{count} image cannot be split into training and test"
        raise UserError(f"data.folder: {found}; at least 2 are needed", EXIT_BAD_DATA)
    return min(count - 1, max(1, round(count * test_share)))


def epoch_order(train: Indices, passes: int, seed: int, epoch: int) -> Indices:
    """Return the training images of one epoch, [passes * len(train)]: `passes` shuffles, one after the other.

    A pure function of (seed, epoch), the same on all workers.
    """
    order: Indices = train[_permutations(passes, len(train), [seed, epoch, ORDER_STREAM])].reshape(-1)
    return order


def _permutations(rows: int, count: int, key: list[int]) -> Indices:
    """Return [rows, count] independent permutations."""
    numbers = np.random.PCG64(key).random_raw(rows * count).reshape(rows, count)
    return np.argsort(numbers, axis=1, kind="stable").astype(np.int64)


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


def steps_of(config: RunConfig, train_images: int) -> int:
    """Return the optimizer steps that a run takes in all its epochs."""
    return train_images * config.data.passes_per_epoch // config.images_per_step * config.training.epochs


def require_enough_images(config: RunConfig, train_images: int) -> None:
    """Raise UserError (65) where an epoch fills no step; a run that only evaluates has none."""
    workers = config.played_workers
    batch, accumulate = config.training.batch_per_worker, config.training.accumulate
    needed = config.images_per_step
    available = train_images * config.data.passes_per_epoch
    if config.training.epochs == 0 or available >= needed:
        return
    most_workers = available // (batch * accumulate)
    largest_batch = available // (workers * accumulate)
    cures = [f"at most {count(most_workers, 'worker')}"] if most_workers else []
    cures += [f"training.batch_per_worker of at most {largest_batch}"] if largest_batch else []
    found = f"one step of {count(workers, 'worker')} takes {needed} images, an epoch has {available}"
    raise UserError(f"{found}; use {' or '.join(cures) or 'more images'}", EXIT_BAD_DATA)
