"""Ping-pong: which hosts are paired, and a real measurement between two processes."""

from pathlib import Path

import pytest

from slurm.local import launch
from unet_scaling.measure.ping_pong import PING_PONG_BYTES, choose_pairs, read_ping_pong
from unet_scaling.study.errors import UserError

MODULE = ["-m", "unet_scaling.measure.ping_pong"]


def test_the_first_rank_stands_for_its_host() -> None:
    assert choose_pairs(["a", "a", "b", "b", "c"]) == [(0, 2), (0, 4), (2, 4)]


def test_one_host_is_measured_between_two_of_its_ranks() -> None:
    assert choose_pairs(["a", "a", "a"]) == [(0, 1)]


def test_many_hosts_are_a_ring_and_as_many_random_pairs() -> None:
    pairs = choose_pairs([f"node{number:02d}" for number in range(20)])
    ring = {(number, number + 1) for number in range(19)} | {(0, 19)}
    assert ring < set(pairs)
    assert len(pairs) == len(set(pairs)) == 40
    assert pairs == choose_pairs([f"node{number:02d}" for number in range(20)])


def test_one_process_is_told_to_bring_another() -> None:
    with pytest.raises(UserError, match="mpiexec -n 2"):
        choose_pairs(["a"])


@pytest.mark.slow
def test_two_processes_of_one_host_measure_shared_memory(tmp_path: Path) -> None:
    code = launch([*MODULE, str(tmp_path / "net.json")], 2, tmp_path / "output.log", cores_each=None)
    assert code == 0, (tmp_path / "output.log").read_text()
    found = read_ping_pong(tmp_path / "net.json")
    (pair,) = found.pairs
    assert pair.medium == "shared memory"
    assert pair.ranks == (0, 1)
    assert len(found.hosts) == 1
    assert pair.bytes == list(PING_PONG_BYTES)
    assert all(low <= middle for low, middle in zip(pair.minimum_seconds, pair.median_seconds, strict=True))
    assert min(pair.median_seconds) > 0


@pytest.mark.slow
def test_a_process_alone_leaves_one_line_and_no_file(tmp_path: Path) -> None:
    assert launch([*MODULE, str(tmp_path / "net.json")], 1, tmp_path / "output.log", cores_each=None) == 2
    assert "mpiexec -n 2" in (tmp_path / "output.log").read_text()
    assert not (tmp_path / "net.json").exists()
