"""Contradictions in a record whose lines are all valid and in order.

A checksum shows that a line is as it was written; whether its writer could be right is asked here. The
limits are those of the record's own words: an epoch lasts as long as its slowest worker, training
seconds are the sum of the epochs', Dice follows from the counts, evaluations come when they were due, a
core gives one CPU second per second, and what was trained fits between two readings of the wall clock.
"""

import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise, zip_longest

from analysis.loading.options import flat_options
from unet_scaling.run.older_log import older_log
from unet_scaling.study.config import RunConfig
from unet_scaling.study.files import read_regular
from unet_scaling.study.measurements import TOLERANCE, CpuFacts
from unet_scaling.study.record import RECORD_NAME, Record
from unet_scaling.study.record_lines import Epoch, Evaluation, Header, Result
from unet_scaling.study.study_file import LOG_NAME

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
# Counters are read just outside the clock: of 1,900 epochs at speed in logs/ none is beyond 1.02.
# A quarter more is beyond the accounting of any guest system; seconds that were halved are beyond it.
LARGEST_CPU_EXCESS = 1.25
CPU_ROUNDING_SECONDS = 0.05
# A worker that computes on CPUs had a hundredth of one at least: of 450 runs in logs/ the least is 0.14.
LEAST_CPU_SHARE = 0.01
# Threads of the process may then have cores that its training thread has not.
_BINDING = re.compile("AFFINITY|BIND|PIN|PROGRESS")
# Clocks of hosts differ by less, even where nobody keeps them.
WALL_CLOCK_TOLERANCE_SECONDS = 600.0


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
    found = found or (
        *(problem for epoch in record.epochs for problem in _of_longest_step(epoch)),
        *_of_framework(record.epochs, record.header),
        *_of_processors(record, record.header),
        *_of_wall_clock(record, record.header),
    )
    yield from (f"{record.path}: {problem}" for problem in found)
    yield from _of_older_log(record)


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
        if result.seconds < SHORTEST_STEP_SECONDS:
            yield f"evaluation after {result.epochs} epochs: {result.images} images in {result.seconds} s"
        if isinstance(result, Result):
            yield from _of_counts(result)
    weights = [(0, header.initial_weights_sha256), *((each.epochs, each.weights_sha256) for each in results)]
    for (first, before), (last, after) in pairwise(weights):
        if last > first and after == before:
            same = f"{after[:12]}..., as after {first} epochs: nothing was trained between"
            yield f"after {last} epochs the SHA-256 of the weights is {same}"


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


def _of_longest_step(epoch: Epoch) -> Iterator[str]:
    """Yield that the longest step is shorter than the mean one, or longer than the epoch."""
    longest = epoch.budget.longest_step if epoch.budget else None
    if longest is None:
        return
    mean = epoch.seconds / epoch.steps
    if not mean * (1 - TOLERANCE) <= longest.seconds <= epoch.seconds * (1 + TOLERANCE):
        of_all = f"all {epoch.steps} took {epoch.seconds} s"
        yield f"epoch {epoch.epoch}: its longest step took {longest.seconds} s, {of_all}"


def _of_processors(record: Record, header: Header) -> Iterator[str]:
    """Yield each worker that had more CPU time than its cores have; dilated ones have a quota (fidelity.py).

    The counters run on while a checkpoint is saved and the clock stands: as many epochs are passed over as
    checkpoints may have been saved in.
    """
    minutes = header.config.training.checkpoint_minutes
    trained = sum(epoch.seconds for epoch in record.epochs) + sum(each.seconds for each in record.results)
    saved = int(min(trained / (60 * minutes), len(record.epochs))) if minutes else 0
    for rank, worker in enumerate(header.workers) if header.dilation is None else ():
        is_bound = any(map(_BINDING.search, worker.environment or {}))
        cores = math.inf if is_bound else len(worker.cores)
        beyond = []
        for epoch in record.epochs:
            facts = epoch.cpu[rank] if epoch.cpu else None
            times = _processor_times(facts, epoch.worker_seconds[rank], cores) if facts else ()
            for words, used, most in times:
                if used > LARGEST_CPU_EXCESS * most + CPU_ROUNDING_SECONDS:
                    found = f"{words} of worker {rank} took {used} s, at most {most} s can be"
                    beyond.append((used / most, f"epoch {epoch.epoch}: {found}"))
        yield from (text for _, text in sorted(beyond, reverse=True)[2 * saved :][:1])


def _processor_times(facts: CpuFacts, seconds: float, cores: float) -> Iterator[tuple[str, float, float]]:
    """Yield what a worker used of its processors in so many seconds, and the most that there is."""
    thread = facts.thread_seconds.get("training", 0.0) + (facts.training_runqueue_seconds or 0.0)
    yield "to run and to wait for a core, the training thread", thread, seconds
    yield "all threads", facts.process_seconds, seconds * max(facts.cores, cores)


def _of_framework(epochs: Sequence[Epoch], header: Header) -> Iterator[str]:
    """Yield what no run of a framework records: another one's transport, gradients averaged in no time."""
    other = "backend" if header.config.framework == "horovod" else "controller"
    if other in header.transport:
        carried = f"gradients travel by {other} {header.transport[other]}"
        yield f"a run of {header.config.framework} whose {carried}"
    budgets = [epoch.budget for epoch in epochs if epoch.budget]
    if budgets and header.config.workers > 1 and not any(any(budget.sync_seconds) for budget in budgets):
        yield f"{header.config.workers} workers averaged their gradients in 0 s"
    computing = sum(
        sum(epoch.budget.forward_seconds) + sum(epoch.budget.backward_seconds)
        for epoch in epochs
        if epoch.budget and epoch.cpu
    )
    used = sum(facts.process_seconds for epoch in epochs if epoch.budget for facts in epoch.cpu or ())
    on_cpu = not (header.is_emulated or any(worker.device_uuid for worker in header.workers))
    if on_cpu and used < LEAST_CPU_SHARE * computing:
        yield f"forward and backward passes on CPUs took {computing:.3g} s, and {used:.3g} s of a processor"


def _of_wall_clock(record: Record, header: Header) -> Iterator[str]:
    """Yield epochs that took longer than there was between two starts of attempts, or start and end."""
    first = header.resumed.epoch if header.resumed else 0
    ended = record.end.ended_utc if record.end else None
    # The epoch in which the run was resumed belongs to both attempts.
    own = record.epochs[first + 1 if header.resumed and header.resumed.step else first :]
    for begin, end, epochs in (
        (header.first_started_utc, header.started_utc, record.epochs[:first] if header.earlier else ()),
        (header.started_utc, ended, own),
    ):
        seconds = sum(epoch.seconds for epoch in epochs) * (header.dilation or 1.0)
        lasted = _seconds_between(begin, end)
        if seconds > lasted + WALL_CLOCK_TOLERANCE_SECONDS:
            yield f"{len(epochs)} epochs took {seconds:.0f} s, but {begin} to {end} are {lasted:.0f} s"


def _seconds_between(begin: str, end: str | None) -> float:
    """Return the seconds between two times in ISO 8601; infinity where one is not known."""
    try:
        return (datetime.fromisoformat(end or "") - datetime.fromisoformat(begin)).total_seconds()
    except (ValueError, TypeError):  # TypeError: one without its time zone
        return math.inf


def _of_older_log(record: Record) -> Iterator[str]:
    """Yield the first line of log.csv that is not what this record gives; a launch set aside has none."""
    path = record.path.with_name(LOG_NAME)
    if not record.results or record.path.name != RECORD_NAME:
        return
    try:
        lines = read_regular(path).decode(errors="replace").splitlines()[1:]
    except OSError:
        return
    given = older_log(list(record.epochs), record.results[-1]).splitlines()[1:]
    for number, (line, expected) in enumerate(zip_longest(lines, given), start=2):
        if line != expected:
            yield f"{path}:{number}: it says {line}, {record.path.name} {expected}"
            return
