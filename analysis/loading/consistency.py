"""Contradictions in a record whose lines are all valid and in order.

A checksum shows that a line is as it was written; whether its writer could be right is asked here. The
limits are those of the record's own words: an epoch lasts as long as its slowest worker, training
seconds are the sum of the epochs', Dice follows from the counts, evaluations come when they were due.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from analysis.loading.options import flat_options
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import Epoch, Evaluation, Header, Result

# The tables hold whole numbers in 64 bits.
_LARGEST_WHOLE_NUMBER = 2**63 - 1
# Sums and quotients of recorded numbers agree but for their rounding, a relative 1e-16 in each step.
_ROUNDING = 1e-9
# Forward, backward, update of the smallest network (width 1, depth 1) on 2x2 pixels take 800 microseconds on
# a processor's core, for which Python alone spends more than a tenth: a hundredth cannot be.
SHORTEST_STEP_SECONDS = 1e-5
# No job lasts so long: a century.
LONGEST_EPOCH_SECONDS = 100 * 365 * 86_400.0
# The loss is a mean over float32 numbers.
LARGEST_LOSS = 3.5e38


def impossible_values(record: Record) -> Iterator[str]:
    """Yield what cannot be in a complete record; each sentence starts with the file."""
    assert record.header is not None
    workers = record.header.config.workers
    samples = f"{record.header.config.sample}s"
    most, of_step = _images(record.header)
    found = (
        *_of_epochs(record.epochs, workers, samples),
        *(problem for epoch in record.epochs for problem in _of_work(epoch, samples, most, of_step)),
        *_of_evaluations(record.header, record.epochs, record.results),
    )
    yield from (f"{record.path}: {problem}" for problem in found)


def impossible_epochs(record: Record, workers: int) -> Iterator[str]:
    """Yield what cannot be in the epochs of so many workers; each sentence starts with the file."""
    yield from (f"{record.path}: {problem}" for problem in _of_epochs(record.epochs, workers, "images"))


def too_large(config: RunConfig) -> Iterator[str]:
    """Yield the whole numbers of a configuration that no table can hold."""
    named = {"workers": config.workers, "repeat": config.repeat, "seed": config.seed, **flat_options(config)}
    for name, value in named.items():
        if isinstance(value, int) and value > _LARGEST_WHOLE_NUMBER:
            yield f"{name} does not fit into 64 bits"


def _of_epochs(epochs: Sequence[Epoch], workers: int, samples: str) -> Iterator[str]:
    return (problem for epoch in epochs for problem in _of_epoch(epoch, workers, samples))


def _of_epoch(epoch: Epoch, workers: int, samples: str) -> Sequence[str]:
    """Return contradictions in an epoch; a list, as generators for millions of epochs take twice the time."""
    found = _of_seconds(epoch, workers) + _of_size(epoch, samples)
    if epoch.loss is not None and abs(epoch.loss) > LARGEST_LOSS:
        found.append(f"a loss of {epoch.loss} is beyond float32")
    return [f"epoch {epoch.epoch}: {problem}" for problem in found]


def _of_seconds(epoch: Epoch, workers: int) -> list[str]:
    each = epoch.worker_seconds
    if len(each) != workers:
        return [f"it has the seconds of {len(each)} workers, not of {workers}"]
    if epoch.seconds != max(each):
        return [f"it took {epoch.seconds} s, but its slowest worker {max(each)} s"]
    return []


def _of_size(epoch: Epoch, samples: str) -> list[str]:
    if epoch.images > _LARGEST_WHOLE_NUMBER or epoch.steps > _LARGEST_WHOLE_NUMBER:
        return [f"{samples} or steps do not fit into 64 bits"]
    shortest = epoch.steps * SHORTEST_STEP_SECONDS
    if not shortest <= epoch.seconds <= LONGEST_EPOCH_SECONDS:
        return [f"{epoch.images} {samples}, {epoch.steps} steps in {epoch.seconds} s cannot be"]
    return []


def _images(header: Header) -> tuple[int, int]:
    """Return the most images that an epoch has, and those of one step; what fills no step is left out."""
    config = header.config
    of_step = config.played_workers * config.training.accumulate * config.training.batch_per_worker
    return header.train_images * config.data.passes_per_epoch, of_step


def _of_work(epoch: Epoch, samples: str, most: int, of_step: int) -> Sequence[str]:
    found = f"epoch {epoch.epoch} has {epoch.images} {samples}"
    if epoch.images > most:
        return [f"{found}, all passes over the training set {most}"]
    if epoch.images > epoch.steps * of_step:
        return [f"{found}, {epoch.steps} steps of {of_step} have fewer"]
    if epoch.images <= (epoch.steps - 1) * of_step:
        return [f"{found}, {epoch.steps} steps of {of_step} have more"]
    return []


def _of_evaluations(
    header: Header, epochs: tuple[Epoch, ...], results: tuple[Evaluation, ...]
) -> Iterator[str]:
    yield from _of_evaluation_order(header, len(epochs), [result.epochs for result in results])
    trained = list(accumulate((epoch.seconds for epoch in epochs), initial=0.0))
    for result in results:
        if result.epochs >= len(trained):
            yield f"an evaluation after {result.epochs} epochs, of {len(epochs)}"
        elif not math.isclose(result.training_seconds, trained[result.epochs], rel_tol=_ROUNDING):
            sums = f"training took {result.training_seconds} s, its epochs {trained[result.epochs]} s"
            yield f"evaluation after {result.epochs} epochs: {sums}"
        if isinstance(result, Result):
            yield from _of_counts(result)


def _of_evaluation_order(header: Header, epochs: int, after: list[int]) -> Iterator[str]:
    """Yield what is wrong with the epochs after which a record of so many epochs has evaluations."""
    if after != sorted(set(after)):
        yield f"evaluations are not in the order of their epochs: {after}"
    every = header.config.training.evaluate_every
    missing = set(range(every, epochs, every) if every else ()) - set(after)
    if missing:
        yield f"the evaluation after {min(missing)} epochs is missing, one every {every} was asked for"


def _of_counts(result: Result) -> Iterator[str]:
    counts = (result.true_positive, result.false_positive, result.false_negative, result.true_negative)
    if max(counts) > _LARGEST_WHOLE_NUMBER:
        yield f"evaluation after {result.epochs} epochs: the counts do not fit into 64 bits"
        return
    either = 2 * result.true_positive + result.false_positive + result.false_negative
    expected = 2 * result.true_positive / either if either else None
    if result.dice != expected:
        yield f"evaluation after {result.epochs} epochs: dice is {result.dice}, the counts give {expected}"
