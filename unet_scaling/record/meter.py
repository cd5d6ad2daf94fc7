"""Measure the epochs of a script: seconds, samples and batches, and its phases where marks give them.

    data wait        until the loader gives a batch
    host to device   from there until the forward pass
    forward          of the model alone
    backward         the loss, and until the last gradient of the worker is ready (measure/epoch_meter.py)
    sync             until the optimizer begins its update: with Horovod, until it has the averages
    optimizer        the update
    rest             until the next batch is asked for

What the script does between the backward pass and the update, such as clipping, is part of sync. A step is a
batch, whether or not an update follows: scripts accumulate gradients, and loss scaling skips updates.
"""

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unet_scaling.group.group import Group
from unet_scaling.measure import epoch_meter
from unet_scaling.measure.counters import CounterMeter
from unet_scaling.study.record_lines import Epoch, Phase

NO_MODEL = "record.begin was given no model and optimizer, on which hooks could mark the phases"
NO_LENGTH = "the loader has no length: give run.epoch the number of batches, steps=..."
OTHER_LENGTH = "the loader gave another number of batches than its length"
NOT_ONE_FORWARD = "the model did not have one forward pass with gradients for each batch"
PASSES_IN_UPDATE = "the optimizer's update ran the passes itself: where sync ends is not known"
UNEQUAL_WORK = "the workers had unequal numbers of batches or samples"
# The workers exchange the place of a fault in this list; the last one named stands for all.
FAULTS = ("", NO_MODEL, NO_LENGTH, OTHER_LENGTH, NOT_ONE_FORWARD, PASSES_IN_UPDATE)
# Of the sample of single steps, which has to be a sample, but not to be drawn again.
SAMPLE_SEED = 0


class Marks:
    """The clock on which the phases of an epoch are marked."""

    clock: epoch_meter.Clock = epoch_meter.NO_CLOCK

    def begin(self, clock: epoch_meter.Clock) -> None:
        """Mark the phases of an epoch on this clock from now on."""
        self.clock = clock

    def fault(self, batches: int) -> str:  # noqa: ARG002, whoever marks by hooks has to compare
        """Return why the phases of so many batches are not those of steps; empty where they are."""
        return ""

    def close(self) -> None:
        """Mark nothing more."""
        self.clock = epoch_meter.NO_CLOCK


class LoopHooks(Marks):
    """Marks the phases of a hand-written training loop, by hooks on its model and optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        # Those of Fabric and Accelerate hold the optimizer that updates, and call no hooks.
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        self._model = model
        self._optimizer = optimizer
        self._handles: tuple[RemovableHandle, ...] = ()

    def begin(self, clock: epoch_meter.Clock) -> None:
        super().begin(clock)
        self._forwards = 0
        self._depth = 0
        self._passes_in_update = False
        self._handles = (
            self._model.register_forward_pre_hook(self._forward_begins),
            self._model.register_forward_hook(self._forward_ends),
            self._optimizer.register_step_pre_hook(self._update_begins),
            self._optimizer.register_step_post_hook(self._update_ends),
        )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def fault(self, batches: int) -> str:
        if self._passes_in_update:
            return PASSES_IN_UPDATE
        return "" if self._forwards == batches else NOT_ONE_FORWARD

    def _forward_begins(self, *_: object) -> None:
        # A pass without gradients, such as one of a teacher, is part of what comes next.
        if torch.is_grad_enabled():
            self._passes_in_update |= self._depth > 0
            self.clock.mark(Phase.HOST_TO_DEVICE)

    def _forward_ends(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._forwards += 1
            self.clock.mark(Phase.FORWARD)

    def _update_begins(self, *_: object) -> None:
        # Horovod's optimizer waits for the averages in its step, and calls that of the wrapped one inside.
        self._depth += 1
        self.clock.mark(Phase.SYNC)

    def _update_ends(self, *_: object) -> None:
        self.clock.mark(Phase.OPTIMIZER)
        self._depth -= 1


class ScriptMeter:
    """Measures one epoch after the other: begin, then arrived and done for every batch, then end.

    begin and end are collective: all workers call them. The gradients of `model` are marked by its own hooks,
    its other phases by `marks`; without either, no phases are measured.
    """

    def __init__(self, group: Group, model: nn.Module | None, marks: Marks | None) -> None:
        self._group = group
        self._model = model
        self._marks = marks
        self._phases: epoch_meter.PhaseClock | None = None
        self._clock: epoch_meter.Clock = epoch_meter.NO_CLOCK
        self._counters = CounterMeter(group, communication=None)
        self.sample = epoch_meter.StepSample(group.size, SAMPLE_SEED) if group.rank == 0 else None
        self._epochs = 0

    def begin(self, batches: int | None) -> None:
        """Start the clocks of all workers together, for an epoch of so many batches; None: not known."""
        self._expected = batches
        self._batches = 0
        self._samples = 0
        self._seconds = 0.0
        self._clock = epoch_meter.NO_CLOCK
        if self._model is not None and self._marks is not None:
            if batches:
                if self._phases is None or self._phases.steps != batches:
                    self._phases = epoch_meter.phase_clock(self._model, batches, 1, self._group.device)
                else:
                    self._phases.attach()
                self._phases.begin()
                self._clock = self._phases
            self._marks.begin(self._clock)
        self._group.wait_for_all()
        self._counters.begin()
        self.resume()

    def arrived(self, samples: int) -> None:
        """Count a batch that the loader has just given."""
        if self._batches == self._expected:
            # More steps than the clock was told: no more phases are marked.
            self._clock = epoch_meter.NO_CLOCK
            if self._phases and self._marks:
                self._phases.close()
                self._marks.clock = epoch_meter.NO_CLOCK
        self._clock.mark(Phase.DATA_WAIT)
        self._samples += samples

    def done(self) -> None:
        """End the step of a batch."""
        self._clock.next_step()
        self._batches += 1

    def pause(self) -> None:
        """Stop the clock between two batches, as for an evaluation."""
        self._clock.pause()
        self._seconds += epoch_meter.synchronized_seconds(self._group.device) - self._began

    def resume(self) -> None:
        """Continue the clock of this worker."""
        self._began = epoch_meter.synchronized_seconds(self._group.device)
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
        own = (self._seconds, self._samples, self._batches, FAULTS.index(self._fault()))
        seconds, samples, batches, faults = self._group.gather_array(np.array(own, float)).T
        if not samples.any():
            return None
        no_budget = FAULTS[int(faults.max())]
        if not no_budget and (len(set(samples)) > 1 or len(set(batches)) > 1):
            no_budget = UNEQUAL_WORK
        budget = None
        if not no_budget:
            assert self._phases is not None
            phases = self._phases.seconds(self._seconds)
            paced = self._phases.host_paced_seconds
            budget = epoch_meter.gather_budget(self._group, self._epochs, phases, paced, self.sample)
        cpu, gpu = self._counters.gather()
        self._epochs += 1
        return Epoch(
            epoch=self._epochs - 1,
            seconds=float(seconds.max()),
            worker_seconds=seconds.tolist(),
            images=int(samples.sum()),
            steps=int(batches.max()),
            loss=None,
            warmup=self._epochs == 1,
            budget=budget,
            no_budget=None if budget else no_budget or epoch_meter.NOT_EVERY_GRADIENT,
            cpu=cpu,
            gpu=gpu,
        )

    def _fault(self) -> str:
        if self._marks is None:
            return NO_MODEL
        if self._expected is None:
            return NO_LENGTH
        return self._marks.fault(self._batches) if self._batches == self._expected else OTHER_LENGTH
