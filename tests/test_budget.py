"""What real runs measure of themselves: phases, processors, the network and their start."""

import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pyarrow import parquet

from slurm.launch.processes import launch
from tests.machine import needs_a_core_each
from tests.trained import PLAIN_EPOCHS, TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import PHASE_COLUMNS, STARTUP_COLUMNS, STEPS_NAME, Startup
from unet_scaling.group.group import single_worker
from unet_scaling.measure.epoch_meter import FEWEST_ALL_REDUCE_REPEATS, probe_network
from unet_scaling.measure.ping_pong import PING_PONG_BYTES, choose_pairs, read_ping_pong
from unet_scaling.run.recorder import StartupClock, process_age
from unet_scaling.study.config import FRAMEWORKS


@pytest.fixture(scope="module", params=FRAMEWORKS)
def sound(request: pytest.FixtureRequest, images: Path, trained_run: TrainedRuns) -> TrainedRun:
    """A run of two workers, a core each, whose times nobody compares."""
    run = trained_run(plain_config(images, request.param))
    assert len(run.record.epochs) == PLAIN_EPOCHS
    return run


@pytest.mark.slow
def test_the_record_holds_the_same_phases_as_the_steps(sound: TrainedRun) -> None:
    table = parquet.read_table(sound.folder / STEPS_NAME).to_pandas()
    for epoch in sound.record.epochs:
        assert epoch.budget is not None
        assert epoch.budget.worker_sums() == pytest.approx(epoch.worker_seconds, rel=1e-6)
        steps = table[table["epoch"] == epoch.epoch]
        sums = steps.groupby("worker")[list(PHASE_COLUMNS)].sum()
        for column in PHASE_COLUMNS:
            assert [*sums[column]] == pytest.approx(getattr(epoch.budget, column), abs=1e-8)
        wire = steps[steps["worker"] == 0]["wire_seconds"].sum()
        assert wire == pytest.approx(epoch.budget.wire_seconds, abs=1e-8)


@pytest.mark.slow
@needs_a_core_each
def test_every_worker_tells_its_processor_facts_and_the_network_is_probed(sound: TrainedRun) -> None:
    for epoch in sound.record.epochs:
        assert epoch.cpu is not None
        for facts in epoch.cpu:
            assert facts.cores == 1
            assert sum(facts.thread_seconds.values()) == pytest.approx(facts.process_seconds, rel=0.1)
            assert list(facts.thread_seconds)[:2] == ["training", "communication"]
        assert epoch.gpu is None
    probe = sound.record.probe
    assert probe is not None
    assert (probe.bytes[0], probe.bytes) == (4, sorted(probe.bytes))
    assert probe.bytes[-1] >= 4**10


@pytest.mark.parametrize(
    ("gradient_bytes", "most_bytes", "largest"), [(2**21, 2**28, 2**24), (2**26, 2**30, 2**26)]
)
def test_a_probe_of_a_fast_network_ends_by_its_bytes(
    gradient_bytes: int, most_bytes: int, largest: int
) -> None:
    group = Mock(size=2, device=torch.device("cpu"), gather_numbers=lambda number: [number])
    probe = probe_network(group, gradient_bytes)
    assert probe is not None
    sent = sum(call.args[0].nbytes for call in group.sum_over_workers.call_args_list)
    repeats = zip(probe.bytes, probe.repeats, strict=True)
    assert sent == sum(size * (1 + number) for size, number in repeats) <= most_bytes
    assert probe.bytes[-1] == largest
    assert min(probe.repeats) >= FEWEST_ALL_REDUCE_REPEATS


@pytest.mark.slow
def test_a_run_records_the_start_of_every_worker(sound: TrainedRun) -> None:
    line = sound.record.startup
    assert isinstance(line, Startup)
    parts = np.array([getattr(line, column) for column in STARTUP_COLUMNS])
    assert parts.shape == (len(STARTUP_COLUMNS), 2)
    assert sound.record.header is not None
    if sound.record.header.config.framework == "horovod":  # the other is forked by what has imported all
        assert min(line.imports_seconds) > 0.1
    before, after = (sound.folder / name for name in ("config.json", RECORD_NAME))
    assert (parts.sum(axis=0) < after.stat().st_mtime - before.stat().st_mtime).all()


def test_the_parts_of_a_start_follow_the_marks() -> None:
    now = time.perf_counter()
    clock = StartupClock(opened=now)
    for part, seconds in zip(STARTUP_COLUMNS[1:], (1, 3, 6, 10, 15), strict=True):
        clock.mark(part, now + seconds)
    found = clock.startup(single_worker())
    assert found is not None
    assert [getattr(found, column) for column in STARTUP_COLUMNS[1:]] == [[1.0], [2.0], [3.0], [4.0], [5.0]]
    assert 0 < found.imports_seconds[0] <= process_age()


def test_the_first_rank_stands_for_its_host_and_many_hosts_are_a_ring_and_as_many_random_pairs() -> None:
    assert choose_pairs(["a", "a", "b", "b", "c"]) == [(0, 2), (0, 4), (2, 4)]
    assert choose_pairs(["a", "a", "a"]) == [(0, 1)]
    with pytest.raises(UserError, match="mpiexec -n 2"):
        choose_pairs(["a"])
    hosts = [f"node{number:02d}" for number in range(20)]
    pairs = choose_pairs(hosts)
    assert {(number, number + 1) for number in range(19)} | {(0, 19)} < set(pairs)
    assert len(pairs) == len(set(pairs)) == 40
    assert pairs == choose_pairs(hosts)


@pytest.mark.slow
def test_two_processes_of_one_host_measure_shared_memory(tmp_path: Path) -> None:
    program = ["-m", "unet_scaling.measure.ping_pong", str(tmp_path / "net.json")]
    code = launch(program, 2, tmp_path / "output.log", cores_each=None)
    assert code == 0, (tmp_path / "output.log").read_text()
    found = read_ping_pong(tmp_path / "net.json")
    (pair,) = found.pairs
    assert (pair.medium, pair.ranks, len(found.hosts)) == ("shared memory", (0, 1), 1)
    assert pair.bytes == list(PING_PONG_BYTES)
    assert all(low <= middle for low, middle in zip(pair.minimum_seconds, pair.median_seconds, strict=True))
    assert min(pair.median_seconds) > 0
