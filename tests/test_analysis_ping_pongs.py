"""Ping-pongs in the analysis: read with their problems, and the floor between hosts that they give."""

import math
from pathlib import Path

import pytest

from analysis.budget.network_floor import network_table
from analysis.loading.load import load_study
from analysis.loading.ping_pongs import hosts_floor_seconds, pair_table, read_ping_pongs
from tests.budgets import Steps, make_probe, write_budget_run
from tests.records import GRADIENT_BYTES, make_workers
from unet_scaling.measure.ping_pong import HostPair, PingPong, write_ping_pong
from unet_scaling.study.study_file import PING_PONG_NAME


def make_pair(first: str, second: str, latency: float = 1e-4, bandwidth: float = 1e8) -> HostPair:
    seconds = [latency, latency + 1e6 / bandwidth]
    return HostPair(
        ranks=(0, 1),
        hosts=(first, second),
        medium="shared memory" if first == second else "network",
        bytes=[1, 1_000_000],
        repeats=[3, 3],
        median_seconds=seconds,
        minimum_seconds=seconds,
        latency_seconds=latency,
        bytes_per_second=bandwidth,
    )


def write(folder: Path, *pairs: HostPair) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hosts = sorted({host for pair in pairs for host in pair.hosts})
    content = PingPong(mpi="MPICH", hosts=hosts, pairs=list(pairs))
    write_ping_pong(folder / PING_PONG_NAME, content)


def test_a_pair_is_one_row_whichever_host_led(tmp_path: Path) -> None:
    write(tmp_path / "run1", make_pair("a", "b", bandwidth=1e8))
    write(tmp_path / "run2", make_pair("b", "a", bandwidth=3e8))
    found, problems = read_ping_pongs(tmp_path)
    assert problems == []
    (row,) = pair_table(found).to_dict("records")
    assert (row["host"], row["other_host"], row["measurements"]) == ("a", "b", 2)
    assert row["bytes_per_second"] == pytest.approx(2e8)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "run1", make_pair("a", "b"))
    whole = (tmp_path / "run1" / PING_PONG_NAME).read_text()
    (tmp_path / "run1" / PING_PONG_NAME).write_text(whole[:-20])
    found, (problem,) = read_ping_pongs(tmp_path)
    assert found.empty
    assert problem.startswith("run1: ping_pong.json cannot be read: ")


def test_the_floor_between_hosts_is_that_of_a_ring(tmp_path: Path) -> None:
    write(tmp_path / "run1", *(make_pair(*hosts) for hosts in ("ab", "bc", "ac", "ad", "aa")))
    found, _ = read_ping_pongs(tmp_path)
    assert hosts_floor_seconds(found, {"a", "b"}, 2_000_000) == pytest.approx(2e-4 + 0.02)
    assert hosts_floor_seconds(found, {"a", "b", "c"}, 3_000_000) == pytest.approx(4e-4 + 0.04)
    assert math.isnan(hosts_floor_seconds(found, {"a"}, 1))
    assert math.isnan(hosts_floor_seconds(found, {"b", "d"}, 1))


def test_it_stands_beside_the_wire(tmp_path: Path) -> None:
    facts = [*make_workers(1, host="a"), *make_workers(1, host="b")]
    facts = [each.model_copy(update={"worker": number}) for number, each in enumerate(facts)]
    steps = Steps(sync=0.03, wire=0.03)
    write_budget_run(tmp_path, "horovod", 2, steps=steps, probe=make_probe(), facts=facts)
    (row,) = network_table(load_study(tmp_path)).to_dict("records")
    assert math.isnan(row["hosts_floor_seconds"])
    write(tmp_path / "allocation-1", make_pair("a", "b"))
    (row,) = network_table(load_study(tmp_path)).to_dict("records")
    assert row["hosts_floor_seconds"] == pytest.approx(2e-4 + GRADIENT_BYTES / 1e8)
