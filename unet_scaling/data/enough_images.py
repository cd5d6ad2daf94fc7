"""Verify that a data folder has images enough for a run, from their number alone. Needs no torch."""

from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError


def count_test_images(count: int, test_share: float) -> int:
    """Return how many of `count` images are kept for evaluation: at least one, and not all.

    Raises UserError (65) where there are fewer than two images, one for each part.
    """
    if count < 2:
        raise UserError(
            f"data.folder: {count} image cannot be split into training and test; at least 2 are needed",
            EXIT_BAD_DATA,
        )
    return min(count - 1, max(1, round(count * test_share)))


def require_enough_images(config: RunConfig, train_images: int) -> None:
    """Raise UserError (65) where an epoch fills no step; a run that only evaluates has none."""
    training = config.training
    if training.epochs > 0:
        available = train_images * config.data.passes_per_epoch
        require_enough(available, config.played_workers, training.batch_per_worker, training.accumulate)


def require_enough(train_images: int, workers: int, batch: int, accumulate: int) -> None:
    """Raise UserError (65) unless one epoch of `train_images` fills at least one step."""
    needed = workers * batch * accumulate
    if train_images >= needed:
        return
    most_workers = train_images // (batch * accumulate)
    largest_batch = train_images // (workers * accumulate)
    cures = []
    if most_workers:
        cures.append(f"at most {most_workers} workers with training.batch_per_worker = {batch}")
    if largest_batch:
        cures.append(f"training.batch_per_worker of at most {largest_batch} with {workers} workers")
    raise UserError(
        f"one step of {workers} workers takes {needed} images (batch_per_worker {batch}, accumulate"
        f" {accumulate}), an epoch has {train_images}; use {' or '.join(cures) or 'more images'}",
        EXIT_BAD_DATA,
    )
