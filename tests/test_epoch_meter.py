"""The meter of a run: what it gathers, what it admits not to know, and what a failing run still leaves."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import nn

from tests.studies import make_point
from unet_scaling.group.group import single_worker
from unet_scaling.measure import epoch_meter as module
from unet_scaling.measure.epoch_meter import NOT_EVERY_GRADIENT, BudgetMeter, Meter, gather_budget
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.run_folder import RunFolder
from unet_scaling.study.measurements import LongestStep, Phase

STEPS = 5
POINT = make_point(Path("/images"))


def model() -> nn.Module:
    return nn.Linear(2, 1)


def measured(network: nn.Module) -> tuple[BudgetMeter, float]:
    """A meter after one epoch of real steps, and the seconds of that epoch."""
    meter = BudgetMeter(single_worker(), POINT, network, STEPS, frozenset())
    layer = next(part for part in network.modules() if isinstance(part, nn.Linear))
    meter.begin()
    for _ in range(STEPS):
        loss = layer(torch.ones(1, 2)).sum()
        meter.clock.mark(Phase.FORWARD)
        loss.backward()
        meter.clock.mark(Phase.SYNC)
        meter.clock.next_step()
    return meter, meter.end()


@pytest.mark.parametrize("most", [1, 2**20])
def test_a_long_epoch_is_gathered_in_blocks_to_the_same_sums(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_GATHERED", most)
    meter, seconds = measured(model())
    measures = meter.measures(3, seconds)
    assert measures.budget is not None
    assert measures.budget.worker_sums() == pytest.approx([seconds], abs=1e-7)
    assert measures.budget.wire_seconds == pytest.approx(measures.budget.sync_seconds[0], abs=1e-8)
    content = meter.steps_file()
    assert content is not None
    table = parquet.read_table(io.BytesIO(content)).to_pydict()
    assert table["epoch"] == [3] * STEPS
    assert table["step"] == list(range(STEPS))


@pytest.mark.parametrize("most", [1, 2**20])
def test_the_longest_step_is_told_with_the_worker_that_worked_longest(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_GATHERED", most)
    phases = np.full((STEPS, len(Phase)), 0.01)
    phases[3, Phase.FORWARD] = 2.0
    budget = gather_budget(single_worker(), 0, phases, None)
    assert budget is not None
    assert budget.longest_step == LongestStep(step=3, seconds=2.06, worker=0, work_seconds=2.05)


def test_a_budget_that_is_not_known_is_none_and_says_why() -> None:
    network = nn.ModuleList([model(), nn.Linear(1, 1)])
    meter, seconds = measured(network)
    measures = meter.measures(0, seconds)
    assert measures.budget is None
    assert measures.no_budget == NOT_EVERY_GRADIENT


class Broken(Meter):
    """A meter on a machine without pyarrow."""

    def steps_file(self) -> bytes | None:
        raise ImportError("no module named pyarrow")


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_that_fails_leaves_its_steps_where_it_can(
    broken: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(RunFolder(tmp_path, POINT, attempt=1), single_worker())
    meter, seconds = measured(model())
    meter.measures(0, seconds)
    recorder._meter = Broken(single_worker()) if broken else meter
    recorder.fail(RuntimeError("gone"))
    assert (tmp_path / "steps.parquet").exists() != broken
    assert ("no module named pyarrow" in capsys.readouterr().err) == broken
