"""The floor of the wire: parameters as torch counts them, a network recovered from its probe."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from analysis.budget.network_floor import (
    gradient_bytes,
    latency_and_pace,
    name_of_floor,
    network_table,
    parameter_count,
    seconds_of_message,
)
from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from analysis.report.figure_files import draw_figures
from tests.budgets import Steps, make_probe, write_budget_run
from tests.records import make_header, make_point
from unet_scaling.model import UNet
from unet_scaling.run.header import sent_bytes
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.measurements import Probe


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": {"width": 4, "depth": 3}},
        {"model": {"width": 3, "depth": 1, "batch_norm": "off"}},
        {"data": {"channels": 3}, "model": {"width": 16, "depth": 4}},
    ],
)
def test_parameters_are_those_of_the_network(options: dict[str, dict[str, Any]]) -> None:
    point = make_point(options=options)
    norm = nn.Identity if point.model.batch_norm == "off" else nn.BatchNorm2d
    model = UNet(point.data.channels, point.model.width, point.model.depth, norm=norm)
    assert parameter_count(point) == sum(weight.numel() for weight in model.parameters())


def test_the_reference_network_has_its_published_size() -> None:
    assert parameter_count(make_point()) == 487_145
    assert gradient_bytes(make_header(make_point(), gradient_bytes=None)) == 1_948_580


def test_the_recorded_bytes_are_those_that_a_worker_sends() -> None:
    whole = make_point()
    half = make_point(options={"training": {"gradient_compression": "fp16"}})
    assert sent_bytes(UNet(), whole) == 1_948_580
    assert sent_bytes(UNet(), half) == 974_290
    assert gradient_bytes(make_header(half, gradient_bytes=974_290)) == 974_290


def test_latency_and_bandwidth_of_five_launches_are_found_in_noise() -> None:
    sizes = np.array([4.0**power for power in range(1, 14)])
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((5, len(sizes))))
    found = [latency_and_pace(sizes, seconds) for seconds in (2e-4 + sizes / 1.25e8) * noise]
    latency, pace = np.median(found, axis=0)
    assert latency == pytest.approx(2e-4, rel=0.05)
    assert 1 / pace == pytest.approx(1.25e8, rel=0.05)


@pytest.mark.parametrize("wanted", [1e5, 2e6, 5e7])
def test_short_messages_that_a_network_lets_pass_do_not_bend_the_floor(wanted: float) -> None:
    """What fits into a token bucket takes the latency only: so do the shaped links of the virtual cluster."""
    sizes = np.array([4.0**power for power in range(1, 12)])
    seconds = 1e-4 + np.where(sizes < 20_000, 0.0, sizes / 1.25e6)
    assert seconds_of_message(wanted, sizes, seconds) == pytest.approx(1e-4 + wanted / 1.25e6, rel=0.1)


def test_a_message_is_between_the_sizes_beside_it() -> None:
    sizes, seconds = np.array([4.0, 1024.0, 4096.0]), np.array([1e-4, 2e-4, 6e-4])
    assert seconds_of_message(2560, sizes, seconds) == pytest.approx(4e-4)
    assert seconds_of_message(4096, sizes, seconds) == pytest.approx(6e-4)


def test_the_floor_is_one_message_of_all_gradients(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        probe = make_probe(latency=repeat * 1e-4, bandwidth=1e9)
        steps = Steps(sync=0.007, wire=0.007)
        write_budget_run(tmp_path, "horovod", 2, repeat, steps, probe=probe)
    (row,) = network_table(load_study(tmp_path)).to_dict("records")
    assert row["floor_seconds"] == pytest.approx(2e-4 + 1_948_580 / 1e9, rel=0.02)
    assert row["floor_seconds_low"] < row["floor_seconds"] < row["floor_seconds_high"]
    assert row["wire_seconds"] == pytest.approx(0.007)
    assert row["latency_seconds"] == pytest.approx(2e-4, rel=0.02)
    assert row["bytes_per_second"] == pytest.approx(1e9, rel=0.02)


@pytest.mark.parametrize("ends", [(1, 1, 1), (1, 12, 12)], ids=["every probe", "one probe"])
def test_no_floor_is_told_from_a_probe_that_ended_far_below_the_gradients(
    tmp_path: Path, ends: tuple[int, ...]
) -> None:
    """A stall ended it at 4 or 16 bytes: 0.2 s there are no bandwidth."""
    for repeat, end in enumerate(ends, start=1):
        whole = make_probe()
        seconds = [*whole.median_seconds[: end - 1], 0.3]
        short = Probe(
            bytes=whole.bytes[:end],
            repeats=whole.repeats[:end],
            median_seconds=seconds if end == 1 else whole.median_seconds,
            minimum_seconds=whole.minimum_seconds[:end],
        )
        for framework in FRAMEWORKS:
            for workers in (1, 2):
                steps = Steps(sync=0.02, wire=0.02)
                probe = short if workers > 1 else None
                write_budget_run(tmp_path, framework, workers, repeat, steps, probe=probe)
    report = make_report(load_study(tmp_path))
    assert len(report.overhead.network) == 2
    for row in report.overhead.network.to_dict("records"):
        assert row["wire_seconds"] == pytest.approx(0.02)
        known = row["floor_seconds"] == pytest.approx(1e-4 + 1_948_580 / 1e9, rel=0.02)
        assert known if 12 in ends else math.isnan(row["floor_seconds"])
    assert "wire" in draw_figures(report).drawn


def test_no_interval_of_a_network_reaches_below_zero(tmp_path: Path) -> None:
    for repeat, latency in enumerate((1e-6, 2e-6, 4e-4), start=1):
        steps = Steps(sync=0.007, wire=0.007)
        write_budget_run(tmp_path, "horovod", 2, repeat, steps, probe=make_probe(latency, 1e9))
    (row,) = network_table(load_study(tmp_path)).to_dict("records")
    assert row["latency_seconds_low"] == 0
    assert row["latency_seconds_high"] > row["latency_seconds"]


def test_what_the_wire_lies_below_is_not_called_its_floor() -> None:
    assert name_of_floor(wire_seconds=0.003, floor_seconds=0.002) == "floor"
    assert name_of_floor(wire_seconds=0.001, floor_seconds=0.002) == "one message"


def test_a_run_without_probe_or_budget_has_no_row(tmp_path: Path) -> None:
    write_budget_run(tmp_path, "horovod", 1)
    write_budget_run(tmp_path, "horovod", 2)
    write_budget_run(tmp_path, "pytorch_native", 2, budget=None, probe=make_probe())
    assert network_table(load_study(tmp_path)).empty
