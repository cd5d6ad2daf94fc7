"""The phases of a step, what a run gathers of them, and steps.parquet: all steps, or a sample of many."""

import io
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

from tests.studies import make_point
from unet_scaling.format.record_lines import PHASE_COLUMNS, LongestStep, Phase
from unet_scaling.group.group import single_worker
from unet_scaling.measure import epoch_meter
from unet_scaling.measure.epoch_meter import (
    BudgetMeter,
    Clock,
    DeviceClock,
    HostClock,
    StepSample,
    gather_budget,
)
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.run_folder import RunFolder

NAP = 0.25  # a power of two, so that sums of naps are exact
POINT = make_point(Path("/images"))
Table = dict[str, list[Any]]


class HandClock:
    """A clock that stands still but for naps."""

    def __init__(self) -> None:
        self.now = 7.0

    def perf_counter(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += seconds


TIME = HandClock()


@pytest.fixture
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_meter, "clock_seconds", TIME.perf_counter)


class Slow(torch.autograd.Function):
    """The identity, whose backward takes a nap."""

    @staticmethod
    def forward(context: object, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        TIME.nap(NAP)
        return gradient


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def take_step(network: nn.Module, clock: Clock, passes: int = 1, first: int = 1) -> None:
    """One step as training takes it, with naps of known length."""
    for number in range(first, passes + 1):
        loss = Slow.apply(network(torch.ones(2, 3))).sum()  # type: ignore[no-untyped-call]
        clock.mark(Phase.FORWARD)
        loss.backward()
        if number < passes:
            clock.mark(Phase.BACKWARD)
    TIME.nap(2 * NAP)
    clock.mark(Phase.SYNC)
    clock.next_step()


@pytest.mark.usefixtures("_by_hand")
@pytest.mark.parametrize("passes", [1, 3])
def test_backward_ends_with_the_last_gradient_of_a_step_and_each_epoch_is_the_sum(passes: int) -> None:
    network = model()
    clock = HostClock(network, 3, passes)
    for rest in (0.0, NAP):
        began = TIME.perf_counter()
        clock.begin()
        clock.resume(began)
        for _ in range(3):
            take_step(network, clock, passes)
        phases = clock.seconds(TIME.perf_counter() - began + rest)
        assert np.all(phases[:, Phase.BACKWARD] == passes * NAP)
        assert np.all(phases[:, Phase.SYNC] == 2 * NAP)
        assert phases.sum() == 3 * (passes + 2) * NAP + rest


@pytest.mark.usefixtures("_by_hand")
@pytest.mark.parametrize(("idle", "first"), [(True, 1), (False, 2)])
def test_where_a_gradient_or_a_pass_is_missing_sync_is_unknown(idle: bool, first: int) -> None:
    network = model()
    if idle:
        network.register_parameter("idle", nn.Parameter(torch.ones(1)))
    clock = HostClock(network, 1, 2)
    clock.begin()
    clock.resume(TIME.perf_counter())
    take_step(network, clock, passes=2, first=first)
    phases = clock.seconds(1.0)
    assert np.isnan(phases[0, [Phase.BACKWARD, Phase.SYNC]]).all()
    assert np.isfinite(phases[0, [Phase.FORWARD, Phase.OPTIMIZER]]).all()


def measured(network: nn.Module, steps: int = 5) -> tuple[BudgetMeter, float]:
    """A meter after one epoch of real steps, and the seconds of that epoch."""
    meter = BudgetMeter(single_worker(), POINT, network, steps, frozenset())
    meter.begin()
    for _ in range(steps):
        take_step(network, meter.clock)
    return meter, meter.end()


def table_of(content: bytes | None) -> tuple[Table, dict[bytes, bytes]]:
    assert content is not None
    table = parquet.read_table(io.BytesIO(content))
    return table.to_pydict(), table.schema.metadata


@pytest.mark.parametrize("most", [1, 2**20])
def test_a_long_epoch_is_gathered_in_blocks_to_the_same_sums(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_meter, "MOST_GATHERED", most)
    meter, seconds = measured(model())
    measures = meter.measures(3, seconds)
    assert measures["budget"] is not None
    assert measures["budget"].worker_sums() == pytest.approx([seconds], abs=1e-7)
    assert measures["budget"].wire_seconds == pytest.approx(measures["budget"].sync_seconds[0], abs=1e-8)
    table, _ = table_of(meter.sample.parquet() if meter.sample else None)
    assert (table["epoch"], table["step"]) == ([3] * 5, [0, 1, 2, 3, 4])
    phases = np.full((5, len(Phase)), 0.01)
    phases[3, Phase.FORWARD] = 2.0
    budget = gather_budget(single_worker(), 0, phases, np.nan, None)
    assert budget is not None
    assert budget.longest_step == LongestStep(step=3, seconds=2.06, worker=0, work_seconds=2.05)


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_that_fails_leaves_its_steps_where_it_can(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if broken:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    recorder = Recorder(RunFolder(tmp_path, POINT, attempt=1), single_worker())
    meter, seconds = measured(model())
    meter.measures(0, seconds)
    recorder._meter = meter
    recorder.fail(RuntimeError("gone"))
    assert (tmp_path / "steps.parquet").exists() != broken
    assert ("could not be written: import of pyarrow halted" in capsys.readouterr().err) == broken


def test_a_short_run_keeps_every_step_of_every_worker() -> None:
    sample = StepSample(workers=2, seed=1)
    assert sample.parquet() is None
    # Every number is different, so that nothing can be confused.
    own = np.arange(2.0 * 2 * 3 * len(Phase)).reshape(2, 2, 3, len(Phase))
    own[1, 0, 2, Phase.SYNC] = np.nan
    for epoch in (0, 1):
        sample.add(epoch, 0, own[epoch])
    table, facts = table_of(sample.parquet())
    places = zip(table["epoch"], table["step"], table["worker"], strict=True)
    assert list(places) == [(e, s, w) for e in range(2) for s in range(3) for w in range(2)]
    for phase, column in enumerate(PHASE_COLUMNS):
        expected = [*own[0, :, :, phase].T.ravel(), *own[1, :, :, phase].T.ravel()]
        np.testing.assert_equal(table[column], expected)
    assert table["wire_seconds"][:2] == [own[0, :, 0, Phase.SYNC].min()] * 2
    assert np.isnan(table["wire_seconds"][-2:]).all()
    assert facts[b"steps_seen"] == facts[b"steps_kept"] == b"6"


@pytest.mark.parametrize(("workers", "most", "kept"), [(4, 42, 10), (30, 7, 1)])
def test_of_a_long_run_a_sample_follows_from_the_seed_with_all_workers_of_a_step(
    workers: int, most: int, kept: int
) -> None:
    tables = []
    for seed in (1, 1, 2):
        sample = StepSample(workers=workers, seed=seed, most_rows=most)
        for epoch in range(20):
            sample.add(epoch, 0, np.zeros((workers, 30, len(Phase))))
        table, facts = table_of(sample.parquet())
        assert facts[b"steps_seen"] == b"600"
        assert table["worker"] == [*range(workers)] * kept
        steps = {*zip(table["epoch"], table["step"], strict=True)}
        assert len(steps) == kept
        tables.append(steps)
    assert tables[0] == tables[1] != tables[2]


def test_every_step_has_the_same_chance() -> None:
    """300 samples of 5 of 50 steps: each step 30 times, give or take 5 standard deviations."""
    counts = np.zeros(50)
    for seed in range(300):
        sample = StepSample(workers=1, seed=seed, most_rows=5)
        sample.add(0, 0, np.zeros((1, 50, len(Phase))))
        counts[table_of(sample.parquet())[0]["step"]] += 1
    assert counts.sum() == 1500
    assert np.abs(counts - 30).max() < 5 * np.sqrt(300 * 0.1 * 0.9)


STEPS = 40


class Gpu:
    """What the host queues on a GPU: each kernel begins once it is queued and those before it are done."""

    def __init__(self, pace: float) -> None:
        self.done = TIME.now
        self.pace = pace  # of its clock

    def run(self, kernels: int, kernel_seconds: float, launch_seconds: float) -> None:
        for _ in range(kernels):
            TIME.nap(launch_seconds)
            self.done = max(self.done, TIME.now) + kernel_seconds


class GpuEvent:
    def __init__(self, gpu: Gpu, **_: object) -> None:
        self.gpu = gpu

    def record(self, _: object) -> None:
        self.moment = self.gpu.done = max(self.gpu.done, TIME.now)

    def elapsed_time(self, later: "GpuEvent") -> float:
        return 1000 * self.gpu.pace * (later.moment - self.moment)


@pytest.mark.usefixtures("_by_hand")
@pytest.mark.parametrize("pace", [1 - 5e-5, 1.0, 1 + 5e-5])
@pytest.mark.parametrize(
    ("launch_seconds", "loading_seconds", "waits_for_host", "waits_for_data"),
    [(1e-6, 0.0, 0.0, 0.0), (1e-6, 0.2, 0.0, 0.75), (1e-3, 0.0, 1.0, 0.0), (1e-3, 1.0, 0.5, 0.5)],
    ids=["host ahead", "slow loading", "slow launches", "both"],
)
def test_a_gpu_that_waits_for_the_host_is_told_from_one_that_waits_for_data(
    launch_seconds: float,
    loading_seconds: float,
    waits_for_host: float,
    waits_for_data: float,
    pace: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 1000 kernels of 50 us each, a third of them in sync; shares of the seconds of an epoch.

    Whatever the pace of the GPU's own clock: crystals differ by some ten millionths.
    """
    gpu = Gpu(pace)
    monkeypatch.setattr(torch.cuda, "Event", partial(GpuEvent, gpu))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    clock = DeviceClock(nn.Linear(1, 1), steps=STEPS, passes=1, device=torch.device("cuda", 0))
    for _ in range(2):  # epochs
        clock.begin()
        begin = TIME.now = gpu.done = max(TIME.now, gpu.done)
        clock.resume(TIME.now)
        for _ in range(STEPS):
            TIME.nap(loading_seconds)
            clock.mark(Phase.DATA_WAIT)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.SYNC):
                gpu.run(333, 50e-6, launch_seconds)
                clock.mark(phase)
            clock.next_step()
        clock.pause()
        seconds = gpu.done - begin
        phases = clock.seconds(seconds).sum(axis=0)
    assert clock.host_paced_seconds / seconds == pytest.approx(waits_for_host * 2 / 3, abs=0.1)
    assert phases[Phase.DATA_WAIT] / seconds == pytest.approx(waits_for_data, abs=0.15)
