"""Measure the epochs of a script: seconds, samples and updates, and its phases where marks give them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import nn

from unet_scaling.group.group import Group
from unet_scaling.measure.epoch_counters import CounterMeter
from unet_scaling.measure.epoch_meter import NOT_EVERY_GRADIENT, gather_budget
from unet_scaling.measure.phases import NO_CLOCK, Clock, PhaseClock, phase_clock
from unet_scaling.measure.step_sample import StepSample
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.record.loop_hooks import NOT_ONE_FORWARD, PASSES_IN_UPDATE
from unet_scaling.study.measurements import Budget, Phase
from unet_scaling.study.record_lines import Epoch

NO_MODEL = "record.begin was given no model and optimizer, on which hooks could mark the phases"
NO_LENGTH = "the loader has no length: give run.epoch the number of batches, steps=..."
OTHER_LENGTH = "the loader gave another number of batches than its length"
UNEQUAL_WORK = "the workers had unequal numbers of batches or samples"
Numbers = npt.NDArray[np.float64]
# The workers exchange the place of a fault in this list; the last one named stands for all.
FAULTS = ("", NO_MODEL, NO_LENGTH, OTHER_LENGTH, NOT_ONE_FORWARD, PASSES_IN_UPDATE)
# Of the sample of single steps, which has to be a sample, but not to be drawn again.
SAMPLE_SEED = 0


class Marks(Protocol):
    """What marks the phases of one epoch on a clock, and counts the updates in it."""

    clock: Clock
    updates: int

    def fault(self, batches: int) -> str:
        """Return why the phases of so many batches are not those of steps; empty where they are."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class MarkedModel:
    """The model whose gradients are marked, and what makes the marks of its other phases."""

    model: nn.Module
    marks: Callable[[Clock], Marks]


class ScriptMeter:
    """Measures one epoch after the other: begin, then arrived and done for every batch, then end.

    begin and end are collective: all workers call them.
    """

    def __init__(self, group: Group, marked: MarkedModel | None) -> None:
        self._group = group
        self._marked = marked
        self._marks: Marks | None = None
        self._phases: PhaseClock | None = None
        self._clock: Clock = NO_CLOCK
        self._counters = CounterMeter(group, communication=None)
        self._sample = StepSample(group.size, SAMPLE_SEED) if group.rank == 0 else None
        self._epochs = 0

    def begin(self, batches: int | None) -> None:
        """Start the clocks of all workers together, for an epoch of so many batches; None: not known."""
        self._expected = batches
        self._batches = 0
        self._samples = 0
        self._seconds = 0.0
        self._open_clock()
        self._group.wait_for_all()
        self._counters.begin()
        self.resume()

    def _open_clock(self) -> None:
        self._clock = NO_CLOCK
        if self._marked is None:
            return
        if self._expected:
            self._clock = self._phases = self._phase_clock(self._marked.model, self._expected)
            self._phases.begin()
        self._marks = self._marked.marks(self._clock)

    def _phase_clock(self, model: nn.Module, batches: int) -> PhaseClock:
        """Return the clock with its hooks; that of the epoch before where this one is as long."""
        if self._phases is None or self._phases.steps != batches:
            return phase_clock(model, batches, 1, self._group.device)
        self._phases.attach()
        return self._phases

    def arrived(self, samples: int) -> None:
        """Count a batch that the loader has just given."""
        if self._batches == self._expected:
            self._stop_phases()
        self._clock.mark(Phase.DATA_WAIT)
        self._samples += samples

    def _stop_phases(self) -> None:
        """Mark no more phases: there are more steps than the clock was told."""
        self._clock = NO_CLOCK
        if self._phases and self._marks:
            self._phases.close()
            self._marks.clock = NO_CLOCK

    def done(self) -> None:
        """End the step of a batch."""
        self._clock.next_step()
        self._batches += 1

    def pause(self) -> None:
        """Stop the clock between two batches, as for an evaluation."""
        self._seconds += synchronized_seconds(self._group.device) - self._began
        self._clock.pause()

    def resume(self) -> None:
        """Continue the clock of this worker."""
        self._began = synchronized_seconds(self._group.device)
        self._clock.resume(self._began)

    def close(self) -> None:
        """Take all hooks off model and optimizer; of an epoch that was left, this is the end."""
        if self._phases:
            self._phases.close()
        if self._marks:
            self._marks.close()

    def end(self) -> Epoch | None:
        """Return the epoch, the same on all workers; None where it had no sample."""
        self.pause()
        self._counters.end()
        self.close()
        seconds, samples, batches, updates, faults = self._gather_numbers().T
        if not samples.any():
            return None
        no_budget = _why_no_budget(samples, batches, faults)
        budget = None if no_budget else self._budget()
        cpu, gpu = self._counters.gather()
        self._epochs += 1
        return Epoch(
            epoch=self._epochs - 1,
            seconds=float(seconds.max()),
            worker_seconds=seconds.tolist(),
            images=int(samples.sum()),
            steps=int(updates.max() or batches.max()),
            loss=None,
            warmup=self._epochs == 1,
            budget=budget,
            no_budget=None if budget else no_budget or NOT_EVERY_GRADIENT,
            cpu=cpu,
            gpu=gpu,
        )

    def steps_file(self) -> bytes | None:
        """Return the content of steps.parquet on worker 0, None elsewhere."""
        return self._sample.parquet() if self._sample else None

    def _gather_numbers(self) -> Numbers:
        """Return seconds, samples, batches, updates and fault of every worker, [workers, 5]."""
        updates = self._marks.updates if self._marks else 0
        own = (self._seconds, self._samples, self._batches, updates, FAULTS.index(self._fault()))
        return self._group.gather_array(np.array(own, dtype=np.float64))

    def _fault(self) -> str:
        if self._marks is None:
            return NO_MODEL
        if self._expected is None:
            return NO_LENGTH
        return self._marks.fault(self._batches) if self._batches == self._expected else OTHER_LENGTH

    def _budget(self) -> Budget | None:
        assert self._phases is not None
        return gather_budget(self._group, self._epochs, self._phases.seconds(self._seconds), self._sample)


def _why_no_budget(samples: Numbers, batches: Numbers, faults: Numbers) -> str:
    """Return why the phases of an epoch are not known, from numbers of every worker; empty where they are."""
    is_equal = len(set(samples)) == len(set(batches)) == 1
    return FAULTS[int(faults.max())] or ("" if is_equal else UNEQUAL_WORK)
