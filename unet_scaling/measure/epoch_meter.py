"""Measure the epochs of a run, with the phases of every training step; and the network before them.

One definition of phases for all frameworks: each moment belongs to one. A mark gives the time since the mark
before it to a phase. Where backward ends and waiting begins is marked by the gradients themselves: each
parameter reports its gradient (a post-accumulate hook, which runs before DDP's and Horovod's own), and the
last report of a pass is the mark. What follows, inside backward or after it, is sync.
"""

import io
import statistics
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unet_scaling.base.files import write_verified
from unet_scaling.base.machine import CoreQuota, clock_seconds, wall_seconds
from unet_scaling.format.record_lines import PHASE_COLUMNS, Budget, LongestStep, Phase, Probe
from unet_scaling.group.group import Group, wait_for_device
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.counters import CounterMeter
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import STEP_SAMPLE_STREAM

# A GPU with nothing queued reaches an event some 10 microseconds after it was recorded.
LATENCY_SECONDS = 100e-6
# The clocks of a GPU and its host part by some ten millionths; more is no drift.
MOST_CLOCK_DRIFT = 2e-4
# Marks of a step: 7 in each forward and backward pass, 4 outside them.
MARKS_PER_PASS = 7
MARKS_PER_STEP = 4
# These stand in the place of a step's number.
RESUMED = -1
PAUSED = -2

Seconds = npt.NDArray[np.float64]
# Numbers that one collective gathers at most; a longer epoch takes several.
MOST_GATHERED = 2**20
# Readers parse the record thousands of times: digits beyond this mean nothing.
NANOSECOND_DIGITS = 9
BEGUN_BEFORE = "an earlier attempt began this epoch: the phases of its steps are lost"
NOT_EVERY_GRADIENT = "not every parameter had one gradient per pass: where sync begins is not known"
# About 1 MB.
MOST_SAMPLED_ROWS = 20_000
ALL_REDUCE_BYTES = tuple(4**power for power in range(1, 14))  # 4 B ... 64 MiB
# A median of fewer repeats is one outlier; more than these keep training waiting.
FEWEST_ALL_REDUCE_REPEATS = 5
MOST_ALL_REDUCE_REPEATS = 20
ALL_REDUCE_SECONDS_PER_SIZE = 0.1
# No larger message follows one that took longer than this: the next would take four times as long.
LONGEST_ALL_REDUCE_SECONDS = 0.2
# The same limit by the clock on the wall, for slowed machines.
LONGEST_WAIT_SECONDS = 0.5
# Bytes of all messages of a probe: so many, or those of so many steps where that is more.
MOST_PROBE_BYTES = 2**28
MOST_PROBE_STEPS = 16


class Clock:
    """A clock that measures nothing: for training whose budget is off."""

    def mark(self, phase: Phase) -> None:
        """Assign the time since the last mark to this phase."""

    def next_step(self) -> None:
        """End a step."""

    def pause(self) -> None:
        """End what `resume` began, before the device is waited for."""

    def resume(self, now: float) -> None:
        """Begin the next step at this moment of the monotonic clock; the time before counts for none."""


NO_CLOCK = Clock()


class PhaseClock(Clock, ABC):
    """Phases of the steps of one epoch at a time, [steps, phases]; nothing is allocated in a step.

    `host_paced_seconds` are those of an epoch, once `seconds` was read, in which a GPU worked at the pace of
    the host, but for waiting for data and for averages; NaN on CPUs.
    """

    host_paced_seconds = np.nan

    def __init__(self, model: nn.Module, steps: int, passes: int) -> None:
        self.steps = steps
        self._stamps_due = steps * passes
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._gradients = len(weights)
        self._weights = weights
        self.attach()

    def attach(self) -> None:
        """Put the hooks on the model, from where `close` removed them."""
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for weight in self._weights
        ]

    def begin(self) -> None:
        """Start an epoch; `resume` follows."""
        self._step = 0
        self._stamps = 0
        self._missing = self._gradients

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def next_step(self) -> None:
        self.mark(Phase.REST)
        self._step += 1

    def seconds(self, epoch_seconds: float) -> Seconds:
        """Return the epoch's phases [steps, phases]; the remainder of its seconds is rest of the last step.

        Backward and sync are NaN where not every parameter reported once in every pass: the beginning of
        sync is not known then.
        """
        phases = self._measured(epoch_seconds)
        phases[-1, Phase.REST] += max(0.0, epoch_seconds - float(phases.sum()))
        if self._stamps != self._stamps_due or self._missing != self._gradients:
            phases[:, [Phase.BACKWARD, Phase.SYNC]] = np.nan
        return phases

    def _ready(self, _: Tensor) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.mark(Phase.BACKWARD)
            self._missing = self._gradients
            self._stamps += 1

    @abstractmethod
    def _measured(self, epoch_seconds: float) -> Seconds: ...


class HostClock(PhaseClock):
    """Phases of a CPU worker: work is done when its call returns."""

    def __init__(self, model: nn.Module, steps: int, passes: int) -> None:
        super().__init__(model, steps, passes)
        self._last = 0.0
        self._phases = np.zeros((steps, len(Phase)))

    def begin(self) -> None:
        super().begin()
        self._phases[:] = 0

    def mark(self, phase: Phase) -> None:
        now = clock_seconds()
        self._phases[self._step, phase] += now - self._last
        self._last = now

    def resume(self, now: float) -> None:
        self._last = now

    def _measured(self, epoch_seconds: float) -> Seconds:  # noqa: ARG002, there is one clock
        return self._phases.copy()


class DeviceClock(PhaseClock):
    """Phases of a GPU: a mark is an event in its queue, so that nothing waits; read after the epoch.

    A phase is the time that the GPU worked or idled for it: loading that hides behind queued work takes none.
    The host notes its own time of each mark. A GPU that reaches a mark as soon as the host has made it has
    nothing else queued: it works at the pace of the host.
    """

    def __init__(self, model: nn.Module, steps: int, passes: int, device: torch.device) -> None:
        super().__init__(model, steps, passes)
        self._stream = torch.cuda.current_stream(device)
        self._events: list[torch.cuda.Event] = []
        self._marks: list[tuple[int, Phase, float]] = []
        self._add_events(1 + steps * (MARKS_PER_PASS * passes + MARKS_PER_STEP))

    def begin(self) -> None:
        super().begin()
        self._used = 0

    def mark(self, phase: Phase) -> None:
        self._stamp(self._step, phase)

    def resume(self, now: float) -> None:  # noqa: ARG002, the device has its own clock
        # Outside the epoch's clock: here one more event may be created.
        self._add_events(1)
        self._stamp(RESUMED, Phase.REST)

    def pause(self) -> None:
        self._add_events(1)
        self._stamp(PAUSED, Phase.REST)

    def _add_events(self, marks: int) -> None:
        self._events += [torch.cuda.Event(enable_timing=True) for _ in range(marks)]  # type: ignore[no-untyped-call]
        self._marks += [(PAUSED, Phase.REST, 0.0)] * marks

    def _stamp(self, step: int, phase: Phase) -> None:
        if self._used == len(self._events):  # of a script's step, which may have more passes than one
            self._add_events(1)
        self._events[self._used].record(self._stream)
        self._marks[self._used] = step, phase, clock_seconds()
        self._used += 1

    def _measured(self, epoch_seconds: float) -> Seconds:
        """Read the events; the device has finished the epoch, for earlier they cannot be read."""
        seconds = [0.0]
        for number in range(1, self._used):
            milliseconds = self._events[number - 1].elapsed_time(self._events[number])
            seconds.append(0.0 if self._marks[number][0] == RESUMED else milliseconds / 1000)
        # Both clocks have read the ends of the epoch: their ratio is the pace of the device's clock.
        drift = epoch_seconds / sum(seconds) - 1 if any(seconds) else 0.0
        pace = 1 + drift if abs(drift) < MOST_CLOCK_DRIFT else 1.0
        phases = np.zeros((self.steps, len(Phase)))
        self.host_paced_seconds = 0.0
        first = device_seconds = 0.0
        for (step, phase, host), taken in zip(self._marks, seconds, strict=False):
            if step == RESUMED:
                first, device_seconds = host, 0.0
            if step in (RESUMED, PAUSED):
                continue
            phases[step, phase] += taken
            device_seconds += pace * taken
            is_paced = device_seconds - (host - first) < LATENCY_SECONDS
            if is_paced and phase not in (Phase.DATA_WAIT, Phase.SYNC):
                self.host_paced_seconds += taken
        return phases


def phase_clock(model: nn.Module, steps: int, passes: int, device: torch.device) -> PhaseClock:
    """Return the clock for this device, with hooks on every parameter of the model."""
    if device.type == "cuda":
        return DeviceClock(model, steps, passes, device)
    return HostClock(model, steps, passes)


def synchronized_seconds(device: torch.device) -> float:
    """Return monotonic seconds, after all work queued on the device; only differences mean anything."""
    wait_for_device(device)
    return clock_seconds()


class PartClock:
    """Seconds of the named parts of what one worker does, for each time that one ran."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def part(self, name: str, items: int = 1) -> Iterator[None]:
        """Time what runs inside as this part, for each of its items; parts do not overlap."""
        begin = synchronized_seconds(self.device)
        yield
        self.seconds[name].append((synchronized_seconds(self.device) - begin) / items)


class StepSample:
    """The phases of single steps for steps.parquet: all of a short run, a uniform sample of a long one.

    One row per epoch, step and worker; seconds. A step is kept with all its workers or not at all. Up to
    MOST_SAMPLED_ROWS rows every step is kept; beyond, a reservoir (Vitter 1985, algorithm R, seeded) in
    which each step seen so far has the same chance. Only worker 0 has one.
    """

    def __init__(self, workers: int, seed: int, most_rows: int = MOST_SAMPLED_ROWS) -> None:
        self._capacity = max(1, most_rows // workers)
        self._random = np.random.default_rng([seed, STEP_SAMPLE_STREAM])
        self._seen = 0
        self._kept: dict[int, tuple[int, int, Seconds]] = {}

    def add(self, epoch: int, first_step: int, phases: Seconds) -> None:
        """Add steps of an epoch in their order: seconds [workers, steps, phases]."""
        for offset in range(phases.shape[1]):
            self._seen += 1
            full = self._seen > self._capacity
            slot = int(self._random.integers(self._seen)) if full else self._seen - 1
            if slot < self._capacity:
                self._kept[slot] = (epoch, first_step + offset, phases[:, offset].copy())

    def write(self, path: Path) -> None:
        """Write the file, with its SHA-256 beside it; a run is no less complete without it."""
        try:
            content = self.parquet()
            if content is not None:
                write_verified(path, content)
        except (OSError, ImportError) as problem:
            print(f"warning: {path} could not be written: {problem}", file=sys.stderr, flush=True)

    def parquet(self) -> bytes | None:
        """Return the file's content, sorted by epoch, step and worker; None where no step was added."""
        if not self._kept:
            return None
        # Takes seconds to import, and is needed once, after the last epoch.
        import pyarrow
        from pyarrow import parquet

        kept = sorted(self._kept.values(), key=lambda step: step[:2])
        phases = np.stack([seconds for _, _, seconds in kept])
        steps, workers, _ = phases.shape
        columns: dict[str, npt.NDArray[np.generic]] = {
            "epoch": np.repeat(np.array([epoch for epoch, _, _ in kept], np.int32), workers),
            "step": np.repeat(np.array([step for _, step, _ in kept], np.int64), workers),
            "worker": np.tile(np.arange(workers, dtype=np.int32), steps),
            **{name: phases[:, :, phase].ravel() for phase, name in enumerate(PHASE_COLUMNS)},
            # The wire seconds of a step are the same for all workers.
            "wire_seconds": np.repeat(phases[:, :, Phase.SYNC].min(axis=1), workers),
        }
        arrays = {}
        for name, column in columns.items():
            # Given an array instead of buffers, pyarrow would first import pandas, while all workers wait.
            buffers = [None, pyarrow.py_buffer(column)]
            kind = pyarrow.from_numpy_dtype(column.dtype)
            arrays[name] = pyarrow.Array.from_buffers(kind, len(column), buffers)
        table = pyarrow.table(arrays)
        facts = {"format": "1", "steps_seen": str(self._seen), "steps_kept": str(len(self._kept))}
        buffer = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata(facts), buffer)
        return buffer.getvalue()


class Meter:
    """The clock of an epoch and nothing else: budget = "off"."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.clock: Clock = NO_CLOCK
        self.sample: StepSample | None = None

    def begin(self, before: float = 0.0) -> None:
        """Start the clocks of all workers together; `before` are the seconds of an attempt that began it."""
        self._seconds = self._before_it = before
        self.resume()

    def pause(self) -> float:
        """Stop the clock between two steps; return the seconds of this worker so far."""
        self.clock.pause()
        self._seconds += synchronized_seconds(self.group.device) - self._began
        return self._seconds

    def resume(self) -> None:
        """Continue the clocks of all workers together."""
        self.group.wait_for_all()
        self._began = synchronized_seconds(self.group.device)
        self.clock.resume(self._began)

    def end(self) -> float:
        """Stop the clock; return the seconds of this worker in the epoch."""
        return self.pause()

    def measures(self, epoch: int, seconds: float) -> dict[str, Any]:  # noqa: ARG002, used with the budget
        """Gather what was measured in an epoch that took this worker so many seconds; outside the clock.

        These are fields of record_lines.Epoch, equal on all workers.
        """
        return {}


class BudgetMeter(Meter):
    """The clock with its phases, and the counters of processor and GPU around them."""

    def __init__(
        self,
        group: Group,
        config: RunConfig,
        model: nn.Module,
        steps: int,
        communication: frozenset[int],
        quota: CoreQuota | None = None,
    ) -> None:
        super().__init__(group)
        self.phases = phase_clock(model, steps, config.passes_per_step, group.device)
        self.clock = self.phases
        self._counters = CounterMeter(group, communication, quota)
        self.sample = StepSample(group.size, config.seed) if group.rank == 0 else None

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

    def measures(self, epoch: int, seconds: float) -> dict[str, Any]:
        begun_before = self._before_it > 0
        budget = None
        if not begun_before:
            own = self.phases.seconds(seconds)
            budget = gather_budget(self.group, epoch, own, self.phases.host_paced_seconds, self.sample)
        reason = BEGUN_BEFORE if begun_before else NOT_EVERY_GRADIENT
        cpu, gpu = self._counters.gather()
        return {"budget": budget, "no_budget": None if budget else reason, "cpu": cpu, "gpu": gpu}


def gather_budget(
    group: Group, epoch: int, own: Seconds, paced: float, sample: StepSample | None
) -> Budget | None:
    """Return the phases of an epoch of all workers, summed over its steps; `own` are [steps, phases].

    `paced` are this worker's seconds at the pace of the host, NaN on a CPU. None, on all workers alike, where
    phases of a worker are unknown. Worker 0 adds the steps to its sample.
    """
    totals = np.zeros((group.size, len(Phase)))
    wire_seconds = 0.0
    longest: list[LongestStep] = []
    block = max(1, MOST_GATHERED // totals.size)
    for first in range(0, len(own), block):
        phases = group.gather_array(own[first : first + block])
        totals += phases.sum(axis=1)
        wire_seconds += float(phases[:, :, Phase.SYNC].min(axis=0).sum())
        if not np.isnan(totals).any():
            longest.append(_longest_step(phases, first))
        if sample:
            sample.add(epoch, first, phases)
    host_paced = np.array(group.gather_numbers(paced)).round(NANOSECOND_DIGITS).tolist()
    if np.isnan(totals).any():
        return None
    columns = dict(zip(PHASE_COLUMNS, totals.T.round(NANOSECOND_DIGITS).tolist(), strict=True))
    return Budget(
        **columns,
        wire_seconds=round(wire_seconds, NANOSECOND_DIGITS),
        longest_step=max(longest, key=lambda step: step.seconds),
        host_paced_seconds=None if np.isnan(host_paced).any() else host_paced,
    )


def _longest_step(phases: Seconds, first: int) -> LongestStep:
    """Return the longest of these steps, [workers, steps, phases], the first of which has this number."""
    seconds = phases.sum(axis=2)
    step = int(seconds.max(axis=0).argmax())
    work = seconds[:, step] - phases[:, step, Phase.SYNC]
    worker = int(work.argmax())
    return LongestStep(
        step=first + step,
        seconds=round(float(seconds[:, step].max()), NANOSECOND_DIGITS),
        worker=worker,
        work_seconds=round(float(work[worker]), NANOSECOND_DIGITS),
    )


def probe_network(group: Group, gradient_bytes: int) -> Probe | None:
    """Time `sum_over_workers` on float32 messages; None for a worker alone, which sends nothing.

    All messages together have at most 256 MiB, or 16 times the bytes of the gradients where these are more:
    large ones are repeated less often, and those of which too few would fit are left out. Medians and minima
    are those of the slowest worker. Repeats and the last size follow from gathered numbers only, so that all
    workers take part in the same sums.
    """
    if group.size == 1:
        return None
    left = max(MOST_PROBE_BYTES, MOST_PROBE_STEPS * gradient_bytes)
    columns: dict[str, list[float]] = defaultdict(list)
    for size in ALL_REDUCE_BYTES:
        if left // size <= FEWEST_ALL_REDUCE_REPEATS:
            break
        repeats, median, minimum = _probe_size(group, size, left // size - 1)
        left -= size * (1 + repeats)
        columns["bytes"].append(size)
        columns["repeats"].append(repeats)
        columns["median_seconds"].append(median)
        columns["minimum_seconds"].append(minimum)
        if median > LONGEST_ALL_REDUCE_SECONDS or wall_seconds(median) > LONGEST_WAIT_SECONDS:
            break
    return Probe.model_validate(columns)


def _probe_size(group: Group, size: int, most_repeats: int) -> tuple[int, float, float]:
    """Return repeats, median and minimum of the slowest worker for messages of so many bytes."""
    message = torch.zeros(size // 4, device=group.device)
    # The first also opens connections and grows buffers; it only says how often to repeat.
    first = max(group.gather_numbers(_seconds(group, message)))
    fitting = int(ALL_REDUCE_SECONDS_PER_SIZE / wall_seconds(first))
    repeats = min(MOST_ALL_REDUCE_REPEATS, most_repeats, max(FEWEST_ALL_REDUCE_REPEATS, fitting))
    times = [_seconds(group, message) for _ in range(repeats)]
    median = max(group.gather_numbers(statistics.median(times)))
    return repeats, median, max(group.gather_numbers(min(times)))


def _seconds(group: Group, message: torch.Tensor) -> float:
    begin = synchronized_seconds(group.device)
    with blocking:
        group.sum_over_workers(message)
        end = synchronized_seconds(group.device)
    return end - begin
