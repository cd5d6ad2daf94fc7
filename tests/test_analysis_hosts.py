"""The loss budget of real runs over a link of known rate: the transfer of the gradients is the wire."""

import os
import subprocess

import pandas as pd
import pytest

from analysis.budget.network import gradient_bytes, network_table
from analysis.budget.tables import MOST_REST, budget_table
from analysis.loading.load import load_study
from analysis.study import Study
from slurm.cluster_rehearsal.network import burst_bytes
from tests.cluster import bring_up
from tests.machine import needs_a_core_each
from tests.studies import make_images
from unet_scaling.config import FRAMEWORKS, PROJECT

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
[training]
epochs = 2
batch_per_worker = 1
rate_scaling = "none"
"""
SITE = """
launcher = "srun"
launcher_arguments = ["--mpi=pmi2", "{own_core}"]
gpus_per_node = 1
cores_per_worker = 1
time = "00:30:00"
ping_pong = true
[environment]
UCX_TLS = "tcp,self"
"""
# Each worker has a host of its own, but all hosts have the same cores.
OWN_CORE = """#!/bin/bash
cores=({cores})
exec taskset --cpu-list "${{cores[$SLURM_PROCID]}}" "$@"
"""
CORES = sorted(os.sched_getaffinity(0))
pytestmark = [pytest.mark.slow, pytest.mark.alone, needs_a_core_each]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Both frameworks on 1 and 2 hosts: three steps of each epoch, each little more than a transfer."""
    root = tmp_path_factory.mktemp("link")
    images = make_images(root / "images", count=8)
    own_core = root / "own_core"
    own_core.write_text(OWN_CORE.format(cores=" ".join(map(str, CORES))))
    own_core.chmod(0o755)
    (root / "link.toml").write_text(STUDY.format(images=images))
    (root / "site.toml").write_text(SITE.format(own_core=own_core))
    places = [root / "link.toml", "--cluster", root / "site.toml", "--logs", root / "logs"]
    command = [str(PROJECT / "slurm" / "submission.sh"), *map(str, places), "--one-allocation", "--wait"]
    shape = ("--hosts", "2", "--gpus-per-host", "1", "--cores-per-host", "2", "--link-rate", RATE)
    with bring_up("link", *shape) as cluster:
        done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stdout + done.stderr
    return load_study(root / "logs" / "link")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_transfer_of_the_gradients_is_the_wire(study: Study, framework: str) -> None:
    row = _row(budget_table(study), framework)
    runs = study.runs[(study.runs["framework"] == framework) & (study.runs["workers"] == 2)]
    step_seconds = runs["step_seconds"].item()
    point = study.headers[runs["run"].item()].point
    transfer = SENT * gradient_bytes(point) * FRAME / MESSAGE / BYTES_PER_SECOND
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


def _row(table: pd.DataFrame, framework: str) -> "pd.Series[float]":
    (found,) = [row for _, row in table.iterrows() if row["framework"] == framework]
    return found
