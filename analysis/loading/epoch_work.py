"""Steps and images of an epoch of a log in the older layout, from what its reader states."""

from dataclasses import dataclass

from unet_scaling.study.errors import UserError

# Of images: more than any data set has, and few enough that products stay exact.
_LARGEST = 10**9


@dataclass(frozen=True)
class EpochWork:
    """Steps and images of an epoch, which the layout does not record.

    images  of an epoch over all workers, every pass over the training images counted
    batch   images of a worker's step

    As in the reference study, a worker takes its share of the images, rounded up, in full batches, and drops
    the rest: at 1,792 images and a batch of 16, 112 steps on 1 worker, 56 on 2, 18 on 6, 8 on 14.
    """

    images: int
    batch: int

    def steps(self, workers: int) -> int:
        """Return the steps of an epoch."""
        share = -(-self.images // workers)
        return share // self.batch

    def images_trained(self, workers: int) -> int:
        """Return the images that all workers together took in these steps."""
        return self.steps(workers) * self.batch * workers


def epoch_work(images: int | None, batch: int | None) -> EpochWork | None:
    """Return what --images and --batch state, or None where neither is given.

    Raises UserError where one is missing, or is no count.
    """
    if images is None and batch is None:
        return None
    if images is None or batch is None:
        raise UserError("--images and --batch are given together: steps need both")
    for option, value in (("--images", images), ("--batch", batch)):
        if not 1 <= value <= _LARGEST:
            raise UserError(f"{option} is {value}, it must be from 1 to {_LARGEST:,}")
    return EpochWork(images, batch)
