"""The batches of one epoch of a script: what it iterates over instead of its loader."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from unet_scaling.study.errors import UserError

Item = TypeVar("Item")


class EpochListener(Protocol):
    """What is told of every batch; begin_epoch and end_epoch are collective."""

    def begin_epoch(self, batches: int | None) -> None: ...
    def batch_arrived(self, samples: int) -> None: ...
    def batch_done(self) -> None: ...
    def end_epoch(self) -> None: ...


class RecordedBatches(Generic[Item]):
    """The batches of a loader, at most `steps` of them; iterating over them is an epoch."""

    def __init__(
        self,
        listener: EpochListener,
        batches: Iterable[Item],
        steps: int | None,
        samples: Callable[[Item], int],
    ) -> None:
        self._listener = listener
        self._batches = batches
        self._steps = steps
        self._samples = samples

    def __len__(self) -> int:
        """Return the number of batches; raises TypeError where the loader does not tell it."""
        if self._steps is None:
            return len(self._batches)  # type: ignore[arg-type]
        with suppress(TypeError):
            return min(self._steps, len(self._batches))  # type: ignore[arg-type]
        return self._steps

    def __iter__(self) -> Iterator[Item]:
        self._listener.begin_epoch(self._length())
        for batch in islice(self._batches, self._steps):
            self._listener.batch_arrived(self._samples(batch))
            yield batch
            self._listener.batch_done()
        # Not in a finally clause: a worker that leaves its loop early must not wait here for the others.
        self._listener.end_epoch()

    def _length(self) -> int | None:
        with suppress(TypeError):
            return len(self)
        return None


def count_samples(batch: object) -> int:
    """Return the first dimension of the first tensor of a batch; raises UserError where it has none."""
    for tensor in _tensors(batch):
        if tensor.ndim:
            return tensor.shape[0]
    raise UserError(
        f"run.epoch: the batch is of type {type(batch).__name__}, in which no tensor tells the samples; give "
        "samples=, a function that counts those of a batch"
    )


def _tensors(batch: Any) -> Iterator[Tensor]:  # noqa: ANN401, whatever a loader gives
    if isinstance(batch, Tensor):
        yield batch
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Sequence | Iterable) and not isinstance(parts, str | bytes):
        for part in parts:
            yield from _tensors(part)
