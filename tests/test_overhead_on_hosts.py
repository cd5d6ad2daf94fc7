"""The overhead budget of real runs on two hosts: over a link of known rate, and with one slow host."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from analysis.budget import MOST_REST, budget_table, gradient_bytes, network_table
from analysis.diagnosis import Diagnosis, diagnose
from analysis.load import load_study
from analysis.study import Study
from slurm.virtual.hosts import burst_bytes
from tests import slow_host
from tests.cluster import VirtualCluster, bring_up
from tests.machine import needs_a_core_each, skip_where_disturbed
from tests.studies import make_images
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.record import RECORD_NAME, read_record

# 1,250,000 bytes a second, of frames of 1514 bytes with 1448 bytes of a message in each.
RATE, BYTES_PER_SECOND, FRAME, MESSAGE = "10mbit", 1.25e6, 1514, 1448
# Of two workers each sends as many bytes as the gradients have, 2 (N-1) / N, and receives as many meanwhile.
SENT = 1.0
NEAR = 0.1
STUDY = """
workers = [1, 2]
repeats = 1
[data]
folder = "{images}"
image_height = 32
image_width = 32
foreground = "255"
[model]
width = {width}
[training]
epochs = 2
batch_per_worker = 1
rate_scaling = "none"
"""
SITE = """
launcher = "srun"
launcher_arguments = ["--mpi=pmi2", "{wrapper}"]
gpus_per_node = 1
cores_per_worker = 1
time = "00:30:00"
ping_pong = {ping_pong}
[environment]
UCX_TLS = "tcp,self"
"""
# Each worker has a host of its own, but all hosts have the same cores.
WRAPPER = """#!/bin/bash
cores=({cores})
{first}
exec taskset --cpu-list "${{cores[$SLURM_PROCID]}}" "$@"
"""
SLOW_HOST = "node2"
SLOW = """export PYTHONPATH={project}
if [ "$SLURMD_NODENAME" = {host} ]; then set -- "${{@:1:$#-2}}" {program} "${{@:$#-1}}"; fi"""
# Its daemons, and who waits for the study, run on the same cores.
MOST_TAKEN_BESIDE_SLURM = 0.15
CORES = sorted(os.sched_getaffinity(0))
pytestmark = [pytest.mark.slow, pytest.mark.timing, needs_a_core_each]


@pytest.fixture(scope="module")
def hosts() -> Iterator[VirtualCluster]:
    shape = ("--hosts", "2", "--gpus-per-host", "1", "--cores-per-host", "2", "--link-rate", RATE)
    with bring_up("link", *shape) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def study(hosts: VirtualCluster, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Both frameworks on 1 and 2 hosts: three steps of each epoch, each little more than a transfer."""
    return trained(hosts, tmp_path_factory.mktemp("link"), width=8, ping_pong="true")


@pytest.fixture(scope="module")
def slowed(hosts: VirtualCluster, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same with so small a network that its transfer is short, and one host slow."""
    slow = SLOW.format(project=PROJECT, host=SLOW_HOST, program=slow_host.__file__)
    return trained(hosts, tmp_path_factory.mktemp("slow"), width=1, ping_pong="false", first=slow)


def trained(hosts: VirtualCluster, root: Path, width: int, ping_pong: str, first: str = "") -> Study:
    """A study whose workers a script starts after it has done `first`, as its job leaves it."""
    images = make_images(root / "images", count=8)
    script = root / "wrapper"
    script.write_text(WRAPPER.format(cores=" ".join(map(str, CORES)), first=first))
    script.chmod(0o755)
    (root / "study.toml").write_text(STUDY.format(images=images, width=width))
    (root / "site.toml").write_text(SITE.format(wrapper=script, ping_pong=ping_pong))
    places = [root / "study.toml", "--cluster", root / "site.toml", "--logs", root / "logs"]
    command = [str(PROJECT / "slurm" / "submission.sh"), *map(str, places), "--one-allocation", "--wait"]
    done = subprocess.run(command, env=hosts.environment, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in sorted((root / "logs" / "study").glob(f"*/{RECORD_NAME}")):
        record = read_record(path)
        asleep = range(len(record.epochs)) if first else ()
        skip_where_disturbed(record, asleep, most=MOST_TAKEN_BESIDE_SLURM)
    return load_study(root / "logs" / "study")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_transfer_of_the_gradients_is_the_wire(study: Study, framework: str) -> None:
    row = _row(budget_table(study), framework)
    runs = study.runs[(study.runs["framework"] == framework) & (study.runs["workers"] == 2)]
    step_seconds = runs["step_seconds"].item()
    header = study.headers[runs["run"].item()]
    transfer = SENT * gradient_bytes(header) * FRAME / MESSAGE / BYTES_PER_SECOND
    assert row["wire"] * step_seconds == pytest.approx(transfer, rel=NEAR)
    others = row["deviation"] - row["wire"]
    assert abs(others) * step_seconds < NEAR * transfer
    assert row["rest_of_step"] < MOST_REST


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_probe_finds_the_rate_and_the_floor_is_the_wire(study: Study, framework: str) -> None:
    row = _row(network_table(study), framework)
    assert row["bytes_per_second"] * FRAME / MESSAGE == pytest.approx(BYTES_PER_SECOND, rel=NEAR)
    assert row["floor_seconds"] == pytest.approx(row["wire_seconds"], rel=NEAR)


def test_the_ping_pong_of_the_job_finds_the_rate_between_the_hosts(study: Study) -> None:
    (pair,) = study.ping_pongs.to_dict("records")
    assert (pair["measured_for"], pair["medium"]) == ("allocation-1", "network")
    assert (pair["host"], pair["other_host"]) == ("node1", "node2")
    # The way back refills the token bucket, so that so much of the largest message, 1 MiB, costs no time.
    free = burst_bytes(RATE) / (2**20 * FRAME / MESSAGE)
    found = pair["bytes_per_second"] * FRAME / MESSAGE * (1 - free)
    assert found == pytest.approx(BYTES_PER_SECOND, rel=NEAR)
    for row in network_table(study).to_dict("records"):
        assert row["hosts_floor_seconds"] == pytest.approx(row["wire_seconds"] * (1 - free), rel=NEAR)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_slow_host_is_named_with_what_it_costs(slowed: Study, framework: str) -> None:
    (found,) = _stragglers(slowed, framework)
    assert found.finding == f"all wait for {SLOW_HOST}"
    assert f"--exclude={SLOW_HOST}" in found.try_next
    runs = slowed.runs[(slowed.runs["framework"] == framework) & (slowed.runs["workers"] == 2)]
    assert found.at_stake * runs["step_seconds"].item() == pytest.approx(slow_host.SECONDS, rel=NEAR)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_hosts_that_are_alike_are_not_accused(study: Study, framework: str) -> None:
    assert _stragglers(study, framework) == []


def _stragglers(study: Study, framework: str) -> list[Diagnosis]:
    found = diagnose(study, budget_table(study), network_table(study))
    return [each for each in found if each.rule == "straggling host" and each.framework == framework]


def _row(table: pd.DataFrame, framework: str) -> "pd.Series[float]":
    (found,) = [row for _, row in table.iterrows() if row["framework"] == framework]
    return found
