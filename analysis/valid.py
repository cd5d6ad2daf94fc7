"""Contradictions in a record whose lines are all valid and in order, and in the files beside it.

A checksum shows that a line is as it was written; whether its writer could be right is asked here. The
limits are those of the record's own words: an epoch lasts as long as its slowest worker, training
seconds are the sum of the epochs', Dice follows from the counts, evaluations come when they were due, a
core gives one CPU second per second, and what was trained fits between two readings of the wall clock.
"""

import io
import math
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise, zip_longest

import numpy as np
import pandas as pd

from analysis.options import flat_options
from unet_scaling.study.config import RunConfig
from unet_scaling.study.disturbance import TICK_SECONDS
from unet_scaling.study.files import read_regular, read_verified
from unet_scaling.study.record import RECORD_NAME, Record
from unet_scaling.study.record_lines import PHASE_COLUMNS, STEPS_NAME, TOLERANCE, Epoch, Header, Result
from unet_scaling.study.study_file import LOG_NAME, older_log

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
# Of a dilated cluster: below it, some worker waits for a processor while it has quota left.
LEAST_IDLE_SHARE = 0.05
# The kernel checks quotas at its ticks, and settles what was used beyond them in later periods.
LARGEST_EXCESS_FACTOR = 1.25
# Of a long run the file has a sample of the steps. Of so many, whose times differ as much as they are long,
# the mean is known to 10 %; half of these seconds, or twice as many, are no matter of chance.
FEWEST_SAMPLED_STEPS = 100
LARGEST_SAMPLING_ERROR = 1.5


def impossible_values(record: Record) -> Iterator[str]:
    """Yield what cannot be in a complete record; each sentence starts with the file."""
    header = record.header
    assert header is not None
    samples = f"{header.config.sample}s"
    found = [*_of_epochs(record.epochs, header.config.workers, samples), *_of_work(record, header, samples)]
    found += _of_evaluations(record, header)
    if not found:
        found += _of_longest_steps(record.epochs)
        found += [*_of_framework(record.epochs, header), *_of_processors(record, header)]
        found += _of_wall_clock(record, header)
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


def _of_epochs(epochs: Sequence[Epoch], workers: int, samples: str) -> list[str]:
    found = []
    for epoch in epochs:
        each = epoch.worker_seconds
        problems = []
        if len(each) != workers:
            problems.append(f"it has the seconds of {len(each)} workers, not of {workers}")
        elif epoch.seconds != max(each):
            problems.append(f"it took {epoch.seconds} s, but its slowest worker {max(each)} s")
        if epoch.images > _LARGEST_WHOLE_NUMBER or epoch.steps > _LARGEST_WHOLE_NUMBER:
            problems.append(f"{samples} or steps do not fit into 64 bits")
        elif not epoch.steps * SHORTEST_STEP_SECONDS <= epoch.seconds <= LONGEST_EPOCH_SECONDS:
            problems.append(f"{epoch.images} {samples}, {epoch.steps} steps in {epoch.seconds} s cannot be")
        if epoch.loss is not None and abs(epoch.loss) > LARGEST_LOSS:
            problems.append(f"a loss of {epoch.loss} is beyond float32")
        found += [f"epoch {epoch.epoch}: {problem}" for problem in problems]
    return found


def _of_work(record: Record, header: Header, samples: str) -> Iterator[str]:
    """Yield epochs of more images than there are, or of other ones than their steps take."""
    config = header.config
    most = header.train_images * config.data.passes_per_epoch
    # What fills no step is left out.
    of_step = config.images_per_step
    for epoch in record.epochs:
        found = f"epoch {epoch.epoch} has {epoch.images} {samples}"
        if epoch.images > most:
            yield f"{found}, all passes over the training set {most}"
        elif epoch.images > epoch.steps * of_step:
            yield f"{found}, {epoch.steps} steps of {of_step} have fewer"
        elif epoch.images <= (epoch.steps - 1) * of_step:
            yield f"{found}, {epoch.steps} steps of {of_step} have more"


def _of_evaluations(record: Record, header: Header) -> Iterator[str]:
    after = [result.epochs for result in record.results]
    if after != sorted(set(after)):
        yield f"evaluations are not in the order of their epochs: {after}"
    every = header.config.training.evaluate_every
    missing = set(range(every, len(record.epochs), every) if every else ()) - set(after)
    if missing:
        yield f"the evaluation after {min(missing)} epochs is missing, one every {every} was asked for"
    trained = list(accumulate((epoch.seconds for epoch in record.epochs), initial=0.0))
    for result in record.results:
        at = f"evaluation after {result.epochs} epochs"
        if result.epochs >= len(trained):
            yield f"an evaluation after {result.epochs} epochs, of {len(record.epochs)}"
        elif not math.isclose(result.training_seconds, trained[result.epochs], rel_tol=_ROUNDING):
            sums = f"training took {result.training_seconds} s, its epochs {trained[result.epochs]} s"
            yield f"{at}: {sums}"
        if result.seconds < SHORTEST_STEP_SECONDS:
            yield f"{at}: {result.images} images in {result.seconds} s"
        if isinstance(result, Result):
            yield from (f"{at}: {problem}" for problem in _of_counts(result))
    weights = [
        (0, header.initial_weights_sha256),
        *((each.epochs, each.weights_sha256) for each in record.results),
    ]
    for (first, before), (last, latest) in pairwise(weights):
        if last > first and latest == before:
            same = f"{latest[:12]}..., as after {first} epochs: nothing was trained between"
            yield f"after {last} epochs the SHA-256 of the weights is {same}"


def _of_counts(result: Result) -> Iterator[str]:
    counts = (result.true_positive, result.false_positive, result.false_negative, result.true_negative)
    if max(counts) > _LARGEST_WHOLE_NUMBER:
        yield "the counts do not fit into 64 bits"
        return
    either = 2 * result.true_positive + result.false_positive + result.false_negative
    expected = 2 * result.true_positive / either if either else None
    if result.dice != expected:
        yield f"dice is {result.dice}, the counts give {expected}"


def _of_longest_steps(epochs: Sequence[Epoch]) -> Iterator[str]:
    """Yield longest steps that are shorter than the mean one, or longer than the epoch."""
    for epoch in epochs:
        longest = epoch.budget.longest_step if epoch.budget else None
        if longest is None:
            continue
        mean = epoch.seconds / epoch.steps
        if not mean * (1 - TOLERANCE) <= longest.seconds <= epoch.seconds * (1 + TOLERANCE):
            of_all = f"all {epoch.steps} took {epoch.seconds} s"
            yield f"epoch {epoch.epoch}: its longest step took {longest.seconds} s, {of_all}"


def _of_framework(epochs: Sequence[Epoch], header: Header) -> Iterator[str]:
    """Yield what no run of a framework records: another one's transport, gradients averaged in no time."""
    config = header.config
    other = "backend" if config.framework == "horovod" else "controller"
    if other in header.transport:
        yield f"a run of {config.framework} whose gradients travel by {other} {header.transport[other]}"
    budgets = [epoch.budget for epoch in epochs if epoch.budget]
    if budgets and config.workers > 1 and not any(any(budget.sync_seconds) for budget in budgets):
        yield f"{config.workers} workers averaged their gradients in 0 s"
    computing = sum(
        sum(epoch.budget.forward_seconds) + sum(epoch.budget.backward_seconds)
        for epoch in epochs
        if epoch.budget and epoch.cpu
    )
    used = sum(facts.process_seconds for epoch in epochs if epoch.budget for facts in epoch.cpu or ())
    on_cpu = not (header.is_emulated or any(worker.device_uuid for worker in header.workers))
    if on_cpu and used < LEAST_CPU_SHARE * computing:
        yield f"forward and backward passes on CPUs took {computing:.3g} s, and {used:.3g} s of a processor"


def _of_processors(record: Record, header: Header) -> Iterator[str]:
    """Yield each worker that had more CPU time than its cores have; dilated ones have a quota (`infidelity`).

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
            if not epoch.cpu:
                continue
            facts, seconds = epoch.cpu[rank], epoch.worker_seconds[rank]
            thread = facts.thread_seconds.get("training", 0.0) + (facts.training_runqueue_seconds or 0.0)
            for words, used, most in (
                ("to run and to wait for a core, the training thread", thread, seconds),
                ("all threads", facts.process_seconds, seconds * max(facts.cores, cores)),
            ):
                if used > LARGEST_CPU_EXCESS * most + CPU_ROUNDING_SECONDS:
                    found = f"{words} of worker {rank} took {used} s, at most {most} s can be"
                    beyond.append((used / most, f"epoch {epoch.epoch}: {found}"))
        yield from (text for _, text in sorted(beyond, reverse=True)[2 * saved :][:1])


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
        try:
            lasted = (datetime.fromisoformat(end or "") - datetime.fromisoformat(begin)).total_seconds()
        except (ValueError, TypeError):  # one is not known; TypeError: one without its time zone
            continue
        if seconds > lasted + WALL_CLOCK_TOLERANCE_SECONDS:
            yield f"{len(epochs)} epochs took {seconds:.0f} s, but {begin} to {end} are {lasted:.0f} s"


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


def infidelity(record: Record, stalled: Collection[int] = ()) -> str:
    """Return why the epochs in use of a run were not slowed as they should be, with both values, or nothing.

    Empty for a run of a machine at speed. A worker whose quota is used up is throttled, and rightly so: at
    speed it would have run on. A thread that polls for messages uses all of its quota and is throttled all
    the time; it takes its core there, too. So the limit of throttling follows from what was used: of the
    periods of its quota, a worker uses up no larger share than the share of its quota that it used, and in
    each it is throttled for all but the k-th part that it runs.
    """
    assert record.header is not None
    dilation = record.header.dilation
    used = [epoch for epoch in record.epochs if not epoch.warmup and epoch.epoch not in stalled]
    if dilation is None or not used:
        return ""
    sums = []
    for worker in range(len(record.header.workers)):
        rows = []
        for epoch in used:
            facts = epoch.cpu[worker] if epoch.cpu else None
            if facts is None or facts.quota is None:
                return (
                    "a dilated cluster, and how it was slowed is not recorded: train on Linux with "
                    'training.budget = "on"'
                )
            seconds, quota = epoch.worker_seconds[worker], facts.quota
            # Threads of a worker with several cores are throttled one by one, as one core on one processor
            # is.
            processors_of_a_core = 1 if facts.cores > 1 else quota.processors
            most = quota.used_seconds * (processors_of_a_core - 1 / dilation)
            rows.append((
                seconds, facts.cores * seconds, quota.used_seconds, quota.throttled_seconds,
                quota.idle_share * seconds, most, facts.thread_seconds["training"],
            ))  # fmt: skip
        sums.append(np.sum(rows, axis=0).tolist())
    return next((fault for worker, each in enumerate(sums) for fault in _of_quota(worker, each)), "")


def _of_quota(worker: int, sums: Sequence[float]) -> Iterator[str]:
    """Yield in what a worker was not slowed as it should be, by its sums in seconds of the slowed machine."""
    seconds, quota, used, throttled, idle, most, training = sums

    def accepted(given: float) -> float:
        return LARGEST_EXCESS_FACTOR * given + TICK_SECONDS

    share = idle / seconds
    if share < LEAST_IDLE_SHARE:
        yield (
            f"the machine was idle for {100 * share:.1f} % of the time, and {100 * LEAST_IDLE_SHARE:.0f} "
            "% are needed for its workers to have their parts of it: slow it more, or run nothing beside"
        )
    if used > accepted(quota):
        yield (
            f"worker {worker} used {used:.3g} CPU seconds, its quota gives {quota:.3g}, and up to "
            f"{LARGEST_EXCESS_FACTOR:g} times as many are accepted"
        )
    if quota > seconds and training > accepted(seconds):
        yield (
            f"the training thread of worker {worker} used {training:.3g} CPU seconds in {seconds:.3g} s, "
            "more than the one core that a thread has"
        )
    if throttled > accepted(most):
        yield (
            f"worker {worker} was throttled for {throttled:.3g} s, and what it used explains {most:.3g}, of "
            f"which up to {LARGEST_EXCESS_FACTOR:g} times as many are accepted"
        )


def step_faults(record: Record) -> tuple[tuple[str, ...], str]:
    """Return where the file of single steps contradicts the record beside it, and why it cannot be read."""
    path = record.path.with_name(STEPS_NAME)
    if not path.exists():
        return (), ""
    try:
        steps = pd.read_parquet(io.BytesIO(read_verified(path)))
        seconds = steps[list(PHASE_COLUMNS)].sum(axis="columns", skipna=False)
        kept = seconds.groupby([steps["epoch"], steps["worker"]]).agg(["size", "sum"]).reset_index()
    except (OSError, ValueError, KeyError) as error:
        return (), f"{STEPS_NAME} cannot be read: {str(error).splitlines()[0]}"
    # The phases of an epoch are NaN where they could not be told apart.
    kept = kept[~kept["epoch"].isin(steps.loc[seconds.isna(), "epoch"])]
    from_the_start = record.header is None or record.header.resumed is None
    faults = _of_steps(kept, record.epochs, from_the_start)
    return tuple(f"{path}: {fault} in {record.path.name}" for fault in faults), ""


def _of_steps(kept: pd.DataFrame, epochs: Sequence[Epoch], from_the_start: bool) -> Iterator[str]:
    """Yield where kept steps cannot be of what the record says of their epochs, by epoch and worker."""
    told = [
        (epoch.epoch, worker, epoch.steps, seconds, longest.seconds if longest else 0.0)
        for epoch in epochs
        for longest in [epoch.budget.longest_step if epoch.budget else None]
        for worker, seconds in enumerate(epoch.worker_seconds)
    ]
    recorded = pd.DataFrame(told, columns=["epoch", "worker", "steps", "whole", "longest"])
    table = kept.merge(recorded, on=["epoch", "worker"], how="left")
    sampled = table["size"] < table["steps"]
    beyond = table["sum"] - table["whole"]
    rounding = TOLERANCE * table["whole"]
    other = ~(table["size"] <= table["steps"]) | (beyond > rounding) | (~sampled & (beyond < -rounding))
    for row in table[other].to_dict("records"):
        where = f"steps of worker {row['worker']} in epoch {row['epoch']} took {row['sum']:.9g} s"
        yield f"{row['size']} {where}, {row['steps']:.0f} {row['whole']:.9g} s"
    missing = {epoch.epoch for epoch in epochs if epoch.budget} - set(kept["epoch"])
    if missing and from_the_start and not sampled.any():
        yield f"no step of epoch {min(missing)}, {epochs[min(missing)].steps} steps"
    for worker, rows in table[sampled].groupby("worker"):
        # The longest step may be half of an epoch, and be kept or not: the means are without it.
        usual = (rows["whole"] - rows["longest"]).sum() / (rows["steps"] - 1).sum()
        mean = rows["sum"].sum() / rows["size"].sum()
        most = LARGEST_SAMPLING_ERROR * usual + rows["longest"].sum() / rows["size"].sum()
        if rows["size"].sum() >= FEWEST_SAMPLED_STEPS and not usual / LARGEST_SAMPLING_ERROR <= mean <= most:
            yield f"the steps of worker {worker} take {mean:.6g} s in the mean, {usual:.6g} s"
