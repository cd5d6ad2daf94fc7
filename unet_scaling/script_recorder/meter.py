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

From a pass without gradients in evaluation mode on, the clock stands until training goes on. Where every
batch has one, it is part of the step, as in self-distillation: it counts, and phases are not known.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unet_scaling.format.record_lines import Epoch, Phase
from unet_scaling.group.group import Group
from unet_scaling.measure import epoch_meter
from unet_scaling.measure.counters import CounterMeter

NO_MODEL = "record.begin was given no model and optimizer, on which hooks could mark the phases"
NO_LENGTH = "the loader has no length: give run.epoch the number of batches, steps=..."
OTHER_LENGTH = "the loader gave another number of batches than its length"
NOT_ONE_FORWARD = "the model did not have one forward pass with gradients for each batch"
EVALUATED_ALWAYS = "every batch had a pass of the model in evaluation mode, which counts as training"
EVALUATED_BY_SOME = "workers waited for an evaluation that only some of them made: their seconds hold it"
PASSES_IN_UPDATE = "the optimizer's update ran the passes itself: where sync ends is not known"
UNEQUAL_WORK = "the workers had unequal numbers of batches or samples"
# The workers exchange the place of a fault in this list; the last one named stands for all.
FAULTS = ("", NO_MODEL, NO_LENGTH, OTHER_LENGTH, NOT_ONE_FORWARD, PASSES_IN_UPDATE, EVALUATED_ALWAYS)
# Draws which single steps are kept; it need not differ between runs.
SAMPLE_SEED = 0


class Marks:
    """The clock on which the phases of an epoch are marked."""

    clock: epoch_meter.Clock = epoch_meter.NO_CLOCK

    def listen(self, evaluates: Callable[[], None], trains: Callable[[], None]) -> None:
        """Call `evaluates` where a pass of an evaluation begins, and `trains` where one of training does."""

    def begin(self, clock: epoch_meter.Clock) -> None:
        """Mark the phases of an epoch on this clock from now on."""
        self.clock = clock

    def fault(self, batches: int) -> str:  # noqa: ARG002, used where hooks mark the phases
        """Return why the phases of so many batches are not those of steps; empty where they are."""
        return ""

    def close(self) -> None:
        """Mark nothing more."""
        self.clock = epoch_meter.NO_CLOCK


class LoopHooks(Marks):
    """Marks the phases of a hand-written training loop, by hooks on its model and optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        # Optimizers of Fabric and Accelerate wrap the one that updates, and call no hooks.
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        self._model = model
        self._optimizer = optimizer
        self._handles: tuple[RemovableHandle, ...] = ()

    def listen(self, evaluates: Callable[[], None], trains: Callable[[], None]) -> None:
        self._evaluates = evaluates
        self._trains = trains

    def begin(self, clock: epoch_meter.Clock) -> None:
        super().begin(clock)
        self._forwards = 0
        self._depth = 0
        self._passes_in_update = False
        self._handles = (
            # Scripts evaluate what DDP wraps, too.
            getattr(self._model, "module", self._model).register_forward_pre_hook(self._pass_begins),
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

    def _pass_begins(self, model: nn.Module, _: object) -> None:
        if not torch.is_grad_enabled() and not model.training:
            self._evaluates()

    def _forward_begins(self, *_: object) -> None:
        # A pass without gradients, such as one of a teacher, is part of what comes next.
        if torch.is_grad_enabled():
            self._passes_in_update |= self._depth > 0
            self._trains()
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
        if marks is not None:
            marks.listen(self._evaluation_begins, self._training_goes_on)
        self.remarks: list[str] = []
        self._phases: epoch_meter.PhaseClock | None = None
        self._clock: epoch_meter.Clock = epoch_meter.NO_CLOCK
        self._counters = CounterMeter(group, communication=None)
        self.sample = epoch_meter.StepSample(group.size, SAMPLE_SEED) if group.rank == 0 else None
        self._epochs = 0

    def begin(self, batches: int | None, samples: int = 0) -> None:
        """Start the clocks of all workers together, for an epoch of so many batches; None: not known.

        `samples` are those of the data set, where the epoch is one pass over all of it.
        """
        self._expected = batches
        self._batches = 0
        self._samples = 0
        self._largest = 0
        self._of_data = samples
        self._seconds = 0.0
        self._evaluated: set[int] = set()
        self._evaluates = False
        self._paused_seconds = 0.0
        self.remarks = []
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
        self._largest = max(self._largest, samples)

    def done(self) -> None:
        """End the step of a batch."""
        self._training_goes_on()
        self._clock.next_step()
        self._batches += 1

    def _evaluation_begins(self) -> None:
        if not (self._evaluates or self._is_paused):
            self._evaluates = True
            self._evaluated.add(self._batches)
            self.pause()

    def _training_goes_on(self) -> None:
        if self._evaluates:
            self._evaluates = False
            self.resume()
            self._paused_seconds += self._began - self._paused_at

    def pause(self) -> None:
        """Stop the clock, as for an evaluation."""
        self._is_paused = True
        self._clock.mark(Phase.REST)
        self._clock.pause()
        self._paused_at = epoch_meter.synchronized_seconds(self._group.device)
        self._seconds += self._paused_at - self._began

    def resume(self) -> None:
        """Continue the clock of this worker."""
        self._is_paused = False
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
        self._clock.pause()
        self._seconds += epoch_meter.synchronized_seconds(self._group.device) - self._began
        self._counters.end()
        self.close()
        fault = FAULTS.index(self._fault())
        of_data = self._largest, self._of_data
        own = (self._seconds, self._samples, self._batches, fault, len(self._evaluated), *of_data)
        seconds, samples, batches, faults, evaluated, largest, sizes = self._group.gather_array(
            np.array(own, float)
        ).T
        if not samples.any():
            return None
        no_budget = FAULTS[int(faults.max())]
        if len(set(evaluated)) > 1:
            no_budget = EVALUATED_BY_SOME
        if no_budget in (EVALUATED_ALWAYS, EVALUATED_BY_SOME):
            self.remarks.append(no_budget)
        elif self._evaluated:
            self.remarks.append(
                f"the clock stood for {self._paused_seconds:.3g} s of an evaluation within an epoch"
            )
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
            images=self._distinct(int(samples.sum()), int(largest.sum()), sizes),
            steps=int(batches.max()),
            loss=None,
            warmup=self._epochs == 1,
            budget=budget,
            no_budget=None if budget else no_budget or epoch_meter.NOT_EVERY_GRADIENT,
            cpu=cpu,
            gpu=gpu,
        )

    def _distinct(self, samples: int, most_repeated: int, sizes: NDArray[np.float64]) -> int:
        """Return the samples without those that the loader repeated to give all workers equally many.

        More than a batch of each are repeated on purpose, or each worker has data of its own.
        """
        size = int(sizes.min())
        repeated = samples - size
        if not size or size < sizes.max() or not 0 < repeated < most_repeated:
            return samples
        if samples >= self._group.size * size:
            return samples
        self.remarks.append(f"{repeated} samples that the loader repeats to fill its workers are not counted")
        return size

    def _fault(self) -> str:
        if self._batches > 1 and len(self._evaluated) == self._batches:
            self._seconds += self._paused_seconds
            return EVALUATED_ALWAYS
        if self._marks is None:
            return NO_MODEL
        if self._expected is None:
            return NO_LENGTH
        return self._marks.fault(self._batches) if self._batches == self._expected else OTHER_LENGTH
