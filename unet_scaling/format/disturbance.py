"""Judge whether a launch was disturbed: by programs that took its workers' cores, by a stall or by pauses.

Pure functions of a record, for the submission and the analysis alike: neither torch nor pandas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

from unet_scaling.base.texts import count
from unet_scaling.format.record import Record
from unet_scaling.format.record_lines import CpuFacts, Epoch, Provenance

# Of 210 launches on an ordinary machine (published_gap_* in logs/evidence) 190 lost less than 0.002 of their
# time and all but one less than this; that one had a quarter of its core taken. What is lost below the bound
# is of the size by which launches differ anyway (2 to 5 %).
DISTURBED_SHARE = 0.05
MOST_DISTURBED = 2  # launches again of a run: a machine that stays busy disturbs each further one as well
# The cores' counters advance in ticks of 10 ms: 5 % of less than a second is less than 5 of them: noise.
SHORTEST_JUDGED_SECONDS = 1.0
TICK_SECONDS = 0.01
# Epochs of one run differ by less than a factor of 2 even under changing load; a stall lasts seconds.
STALL_FACTOR = 3.0
# Median absolute deviations from the median: 10 are about 7 standard deviations of normal noise.
STALL_DEVIATIONS = 10.0
# Of two epochs the shorter is taken as usual: nothing makes an epoch three times as fast.
FEWEST_EPOCHS = 2
# A paused process or virtual machine, or memory that is paged in. Of 404 recorded launches that tell, 392
# have less than 0.02 of it; 11 of the others, up to 0.45, are of one study (published_gap_mpich).
UNCOUNTED = "went to nothing that was counted"
# The part of a stall that one worker's own work must explain for it to be named.
MOST_OF_IT = 0.5


@dataclass(frozen=True)
class Stall:
    """An epoch far longer than the others of its run, or one step (`step`) far longer than the others.

    `worker` is None where no one worker's own work was that much longer.
    """

    epoch: int
    seconds: float
    usual_seconds: float
    worker: int | None
    step: int | None = None

    @property
    def beyond_seconds(self) -> float:
        """Return how much longer it took than usual."""
        return self.seconds - self.usual_seconds

    def __str__(self) -> str:
        who = f"worker {self.worker} stalled" if self.worker is not None else "the workers stalled"
        where = f"epoch {self.epoch}" if self.step is None else f"step {self.step} of epoch {self.epoch}"
        return f"{who} in {where}: {self.seconds:.3g} s, usually {self.usual_seconds:.3g} s"


@dataclass(frozen=True)
class Disturbance:
    """The disturbances of a launch. `busy_share` is of the worker that lost most; None where not known.

    `stalled_share` is the share of the launch's seconds that its stalls took beyond usual epochs, and
    `uncounted_share` that of the own work of a worker in which it did not work, by no counter.
    """

    busy_share: float | None
    stalls: tuple[Stall, ...]
    stalled_share: float
    uncounted_share: float | None = None

    @property
    def stalled_epochs(self) -> frozenset[int]:
        """Return the epochs to leave out of speed; an epoch with one stalled step stays, with its launch."""
        return frozenset(stall.epoch for stall in self.stalls if stall.step is None)

    @property
    def reason(self) -> str:
        """Return why the launch counts as disturbed; empty where it does not."""
        reasons = []
        if self.busy_share is not None and self.busy_share >= DISTURBED_SHARE:
            reasons.append(f"{100 * self.busy_share:.0f} % of a worker's time went to other processes")
        if self.stalled_share >= DISTURBED_SHARE:
            longest = max(self.stalls, key=lambda stall: stall.beyond_seconds)
            others = len(self.stalls) - 1
            reasons.append(f"{longest}, and {count(others, 'other stall')}" if others else str(longest))
        # Stalls and time of another virtual machine are not counted either: report what is beyond them.
        explained = (self.busy_share or 0.0) + self.stalled_share
        if (self.uncounted_share or 0.0) - explained * bool(reasons) >= DISTURBED_SHARE:
            reasons.append(f"{100 * (self.uncounted_share or 0.0):.0f} % of a worker's own time {UNCOUNTED}")
        return "; ".join(reasons)


def disturbance(record: Record) -> Disturbance:
    """Judge the epochs after the warm-up; launches shorter than a second are never called disturbed."""
    epochs = [epoch for epoch in record.epochs if not epoch.warmup]
    seconds = sum(epoch.seconds for epoch in epochs)
    if record.provenance is None or seconds < SHORTEST_JUDGED_SECONDS:
        return Disturbance(None, (), 0.0)
    stalls = _stalled_epochs(epochs)
    stalled = {stall.epoch for stall in stalls}
    averages_weights = record.header is not None and record.header.config.strategy.synchronise_every > 1
    others = [epoch for epoch in epochs if epoch.epoch not in stalled]
    stalls += _stalled_steps(others, seconds, averages_weights)
    share = sum(stall.beyond_seconds for stall in stalls) / seconds
    uncounted = _uncounted_share(others) if _waits_are_counted(record) else None
    return Disturbance(_busy_share(record.provenance, epochs), tuple(stalls), share, uncounted)


def _stalled_steps(epochs: Sequence[Epoch], launch_seconds: float, averages_weights: bool) -> list[Stall]:
    """Return the single steps that by themselves disturbed the launch, in epochs that are otherwise usual.

    A long epoch can hold a stall of minutes and be no outlier among epochs. Steps differ more than epochs do
    (files, caches), so only one that matters for the speed of the whole launch is called a stall. Where some
    steps end with the mean of the weights, the longest step of each epoch is one of them.
    """
    longest = [
        (epoch, epoch.budget.longest_step) for epoch in epochs if epoch.budget and epoch.budget.longest_step
    ]
    if not longest:
        return []
    usual = median(epoch.seconds / epoch.steps for epoch in epochs)
    if averages_weights:
        usual = median_low(step.seconds for _, step in longest)
    stalls = []
    for epoch, step in longest:
        if step.seconds <= STALL_FACTOR * usual:
            continue
        own = step.work_seconds - usual >= MOST_OF_IT * (step.seconds - usual)
        stall = Stall(epoch.epoch, step.seconds, usual, step.worker if own else None, step.step)
        if stall.beyond_seconds >= DISTURBED_SHARE * launch_seconds:
            stalls.append(stall)
    return stalls


def _stalled_epochs(epochs: Sequence[Epoch]) -> list[Stall]:
    if len(epochs) < FEWEST_EPOCHS:
        return []
    # Per step, as the last epoch of an attempt may hold another number of them.
    step_seconds = [epoch.seconds / epoch.steps for epoch in epochs]
    usual = median_low(step_seconds)
    deviation = median_low(abs(seconds - usual) for seconds in step_seconds)
    limit = max(STALL_FACTOR * usual, usual + STALL_DEVIATIONS * deviation)
    return [
        Stall(epoch.epoch, epoch.seconds, usual * epoch.steps, _stalled_worker(epoch, epochs))
        for epoch, seconds in zip(epochs, step_seconds, strict=True)
        if seconds > limit
    ]


def _stalled_worker(stalled: Epoch, epochs: Sequence[Epoch]) -> int | None:
    """Return the worker whose own work, without sync, was that much longer: the others waited for it."""
    stalled_work = _own_work(stalled)
    if stalled_work is None:
        return None
    all_work = filter(None, map(_own_work, epochs))
    usual = [median(of_worker) for of_worker in zip(*all_work, strict=True)]
    longer = [work - expected for work, expected in zip(stalled_work, usual, strict=True)]
    most = max(longer)
    beyond = stalled.seconds - median(epoch.seconds for epoch in epochs)
    return longer.index(most) if most >= MOST_OF_IT * beyond else None


def _own_work(epoch: Epoch) -> list[float] | None:
    """Return the seconds that each worker did not spend in sync; None where they are not recorded."""
    if epoch.budget is None:
        return None
    pairs = zip(epoch.worker_seconds, epoch.budget.sync_seconds, strict=True)
    return [seconds - sync for seconds, sync in pairs]


def _busy_share(header: Provenance, epochs: Sequence[Epoch]) -> float | None:
    """Return the share of its time that other processes took, of the worker that lost most."""
    count_cores = _may_count_cores(header)
    launch_seconds = sum(epoch.seconds for epoch in epochs)
    shares = []
    for worker in range(len(epochs[0].worker_seconds)):
        lost_seconds = 0.0
        for epoch in epochs:
            share = _lost_share(epoch, worker, count_cores)
            if share is None:
                return None
            lost_seconds += share * epoch.seconds
        shares.append(lost_seconds / launch_seconds)
    return max(shares, default=None)


def _waits_are_counted(record: Record) -> bool:
    """Return whether the training threads have to wait for nothing but samples and other workers.

    They wait for a GPU, for a profile's time, for statistics of norm layers and for threads that share an
    operation (6 to 15 % of the time of 2 and 4 of libgomp's); what a script waits for is not known.
    """
    if record.header is None or record.header.is_emulated or record.header.dilation:
        return False
    is_exchanging = record.header.config.model.batch_norm == "sync"
    workers = record.header.workers
    return not is_exchanging and all(worker.device == "cpu" and worker.threads == 1 for worker in workers)


def _uncounted_share(epochs: Sequence[Epoch]) -> float | None:
    """Return the share of its own work, all but sync, in which a worker slept; of the one that slept most.

    It may sleep while it waits for samples: only what no wait for them can have been counts. As its work for
    samples is the same in each step, that is at most what it is in the epoch in which it could be most.
    """
    shares = []
    for worker in range(len(epochs[0].worker_seconds) if epochs else 0):
        slept = [sleep for epoch in epochs if (sleep := _sleep(epoch, worker))]
        if len(slept) < len(epochs):
            return None
        least = min(0.0, *(without for _, _, without in slept))
        uncounted = sum(max(0.0, min(in_all, without - least)) for _, in_all, without in slept)
        shares.append(uncounted / sum(own for own, _, _ in slept))
    return max(shares, default=None)


def _sleep(epoch: Epoch, worker: int) -> tuple[float, float, float] | None:
    """Return seconds of a step: own work, how long the worker slept in it, and so without waits for samples.

    At least that long: it may have worked all through sync, and slept through those waits, so down to < 0.
    """
    facts = epoch.cpu[worker] if epoch.cpu else None
    if epoch.budget is None or facts is None or facts.training_runqueue_seconds is None:
        return None
    own = epoch.worker_seconds[worker] - epoch.budget.sync_seconds[worker]
    slept = own - facts.thread_seconds.get("training", 0.0) - facts.training_runqueue_seconds
    without = slept - epoch.budget.data_wait_seconds[worker]
    return own / epoch.steps, slept / epoch.steps, without / epoch.steps


def _may_count_cores(header: Provenance) -> bool:
    """Return whether what happens on a worker's cores concerns that worker alone.

    It does not where two workers have a core in common, nor beside a GPU: what others do on cores that its
    worker leaves idle takes nothing from it.
    """
    cores = [(worker.host, core) for worker in header.workers for core in worker.cores]
    return len(set(cores)) == len(cores) and all(worker.device == "cpu" for worker in header.workers)


def _lost_share(epoch: Epoch, worker: int, count_cores: bool) -> float | None:
    """Return the share of an epoch that other processes took from a worker; None where it is not known."""
    if epoch.cpu is None or worker >= len(epoch.cpu):
        return None
    facts = epoch.cpu[worker]
    seconds = epoch.worker_seconds[worker]
    sync = epoch.budget.sync_seconds[worker] if epoch.budget else seconds
    if facts.other_seconds is not None and count_cores:
        return _taken(facts, seconds, sync)
    if facts.other_workers_seconds is None:
        return _waited(facts, seconds, sync)
    # Without its phases, all that the thread waited for a core counts: other programs had more of them.
    waited = _waited(facts, seconds, sync if epoch.budget else 0.0)
    # Other programs took nothing from the workers where they had cores that these left idle.
    return None if waited is None else min(waited, _taken(facts, seconds, sync))


def _taken(facts: CpuFacts, seconds: float, sync: float) -> float:
    """Return the share of the cores' time that other programs had while the worker was not asleep in sync.

    A core that DDP leaves while it waits for gradients may serve others. The counters are known to a tick.
    """
    harmless = facts.cores * (min(sync, asleep_seconds(facts, seconds)) + TICK_SECONDS)
    other = (facts.other_seconds or 0.0) - (facts.other_workers_seconds or 0.0)
    return max(0.0, other - harmless) / (facts.cores * seconds)


def _waited(facts: CpuFacts, seconds: float, sync: float) -> float | None:
    """Return the share in which the training thread waited for a core that its own helpers did not have.

    Others cannot have had more of the cores than the process left. Early records have this only.
    """
    waiting = waiting_seconds(facts, seconds, sync)
    if waiting is None:
        return None
    left = seconds - facts.process_seconds / facts.cores
    own = helper_seconds(facts) / facts.cores
    return max(0.0, min(waiting - own, left)) / seconds


def waiting_seconds(facts: CpuFacts, seconds: float, sync: float) -> float | None:
    """Return for how long the training thread was ready outside sync, and had no core; at least that long.

    A thread that polls for its gradients is ready all through sync, one that sleeps there is not: what it
    slept is taken as part of sync, and the rest of sync as time in which it may have waited.
    """
    if facts.training_runqueue_seconds is None:
        return None
    awake_in_sync = max(0.0, sync - asleep_seconds(facts, seconds))
    return max(0.0, facts.training_runqueue_seconds - awake_in_sync)


def asleep_seconds(facts: CpuFacts, seconds: float) -> float:
    """Return for how long the training thread neither ran nor was ready to."""
    ran = facts.thread_seconds.get("training", 0.0)
    return max(0.0, seconds - ran - (facts.training_runqueue_seconds or 0.0))


def helper_seconds(facts: CpuFacts) -> float:
    """Return the CPU seconds of all threads of the process but the one that trains."""
    return max(0.0, facts.process_seconds - facts.thread_seconds.get("training", 0.0))
