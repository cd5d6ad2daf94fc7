"""Measure the epochs of a run: their seconds, and with the budget their phases and counters."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from unet_scaling.group.group import Group
from unet_scaling.group.processor_quota import ProcessorQuota
from unet_scaling.measure.counters import CounterMeter
from unet_scaling.measure.phases import NO_CLOCK, Clock, Seconds, phase_clock, synchronized_seconds
from unet_scaling.measure.step_sample import StepSample
from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import (
    PHASE_COLUMNS,
    Budget,
    CpuFacts,
    GpuFacts,
    LongestStep,
    Phase,
)

# Numbers that one collective gathers at most; a longer epoch takes several.
MOST_GATHERED = 2**20
# Readers parse the record thousands of times: digits beyond this mean nothing.
NANOSECOND_DIGITS = 9
BEGUN_BEFORE = "an earlier attempt began this epoch: the phases of its steps are lost"
NOT_EVERY_GRADIENT = "not every parameter had one gradient per pass: where sync begins is not known"


@dataclass(frozen=True)
class Measures:
    """The fields of record_lines.Epoch beside its seconds, equal on all workers."""

    budget: Budget | None = None
    no_budget: str | None = None
    cpu: list[CpuFacts] | None = None
    gpu: list[GpuFacts] | None = None


class Meter:
    """The clock of an epoch and nothing else: budget = "off"."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.clock: Clock = NO_CLOCK

    def begin(self, before: float = 0.0) -> None:
        """Start the clocks of all workers together; `before` are the seconds of an attempt that began it."""
        self._seconds = self._before_it = before
        self.resume()

    def pause(self) -> float:
        """Stop the clock between two steps; return the seconds of this worker so far."""
        self._seconds += synchronized_seconds(self.group.device) - self._began
        self.clock.pause()
        return self._seconds

    def resume(self) -> None:
        """Continue the clocks of all workers together."""
        self.group.wait_for_all()
        self._began = synchronized_seconds(self.group.device)
        self.clock.resume(self._began)

    def end(self) -> float:
        """Stop the clock; return the seconds of this worker in the epoch."""
        return self.pause()

    def measures(self, epoch: int, seconds: float) -> Measures:  # noqa: ARG002, used with the budget
        """Gather what was measured in an epoch that took this worker so many seconds; outside the clock."""
        return Measures()

    def steps_file(self) -> bytes | None:
        """Return the content of steps.parquet on worker 0, None elsewhere."""
        return None


class BudgetMeter(Meter):
    """The clock with its phases, and the counters of processor and GPU around them."""

    def __init__(
        self,
        group: Group,
        config: RunConfig,
        model: nn.Module,
        steps: int,
        communication: frozenset[int],
        quota: ProcessorQuota | None = None,
    ) -> None:
        super().__init__(group)
        self.phases = phase_clock(model, steps, config.passes_per_step, group.device)
        self.clock = self.phases
        self._counters = CounterMeter(group, communication, quota)
        self._sample = StepSample(group.size, config.seed) if group.rank == 0 else None

    def begin(self, before: float = 0.0) -> None:
        # The counters of the epoch must not include the wait for a worker that starts it later.
        self.group.wait_for_all()
        self._counters.begin()
        self.phases.begin()
        super().begin(before)

    def end(self) -> float:
        seconds = super().end()
        self._counters.end()
        return seconds

    def measures(self, epoch: int, seconds: float) -> Measures:
        begun_before = self._before_it > 0
        budget = None if begun_before else self._budget(epoch, seconds)
        reason = BEGUN_BEFORE if begun_before else NOT_EVERY_GRADIENT
        cpu, gpu = self._counters.gather()
        return Measures(budget=budget, no_budget=None if budget else reason, cpu=cpu, gpu=gpu)

    def _budget(self, epoch: int, seconds: float) -> Budget | None:
        return gather_budget(self.group, epoch, self.phases.seconds(seconds), self._sample)

    def steps_file(self) -> bytes | None:
        return self._sample.parquet() if self._sample else None


def gather_budget(group: Group, epoch: int, own: Seconds, sample: StepSample | None) -> Budget | None:
    """Return the phases of an epoch of all workers, summed over its steps; `own` are [steps, phases].

    None, on all workers alike, where phases of a worker are unknown. Worker 0 adds the steps to its sample.
    """
    sums = _EpochSums(group.size)
    block = max(1, MOST_GATHERED // sums.totals.size)
    for first in range(0, len(own), block):
        phases = group.gather_array(own[first : first + block])
        sums.add(phases, first)
        if sample:
            sample.add(epoch, first, phases)
    return sums.budget()


class _EpochSums:
    """Sums over the steps of an epoch: seconds [workers, phases], the wire, and the longest step."""

    def __init__(self, workers: int) -> None:
        self.totals = np.zeros((workers, len(Phase)))
        self._wire = 0.0
        self._longest: LongestStep | None = None

    def add(self, phases: Seconds, first: int) -> None:
        """Add steps [workers, steps, phases], the first of which has this number."""
        self.totals += phases.sum(axis=1)
        self._wire += float(phases[:, :, Phase.SYNC].min(axis=0).sum())
        self._longest = _longer(self._longest, _longest_step(phases, first))

    def budget(self) -> Budget | None:
        if np.isnan(self.totals).any():
            return None
        columns = dict(zip(PHASE_COLUMNS, self.totals.T.round(NANOSECOND_DIGITS).tolist(), strict=True))
        return Budget(
            **columns, wire_seconds=round(self._wire, NANOSECOND_DIGITS), longest_step=self._longest
        )


def _longest_step(phases: Seconds, first: int) -> LongestStep | None:
    """Return the longest of these steps, [workers, steps, phases], the first of which has this number."""
    seconds = phases.sum(axis=2)
    if np.isnan(seconds).any():
        return None
    step = int(seconds.max(axis=0).argmax())
    work = seconds[:, step] - phases[:, step, Phase.SYNC]
    worker = int(work.argmax())
    return LongestStep(
        step=first + step,
        seconds=round(float(seconds[:, step].max()), NANOSECOND_DIGITS),
        worker=worker,
        work_seconds=round(float(work[worker]), NANOSECOND_DIGITS),
    )


def _longer(first: LongestStep | None, second: LongestStep | None) -> LongestStep | None:
    known = [step for step in (first, second) if step is not None]
    return max(known, key=lambda step: step.seconds, default=None)
