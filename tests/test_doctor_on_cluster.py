"""The launch doctor as a job of a real Slurm of three hosts: it names what is wrong with link or launcher."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.virtual.network import burst_bytes
from tests.cluster import Done, VirtualCluster, bring_up
from tests.studies import make_images
from unet_scaling.study.config import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.verify]
LAUNCH_SECONDS = 300
HOSTS = ("--hosts", "3", "--gpus-per-host", "1", "--cores-per-host", "2")
SLOW_RATE = "20mbit"
SITE = """
launcher = "srun"
launcher_arguments = [{arguments}]
gpus_per_node = 1
cores_per_worker = 1
max_nodes = 3
time = "00:30:00"
{more}
[environment]
UCX_TLS = "tcp,self"
"""
PMI = '"--mpi=pmi2"'
STUDY = """
frameworks = ["pytorch_native"]
workers = [1, 2]
repeats = 1
[data]
folder = "{images}"
image_height = 32
image_width = 32
[model]
width = 1
[training]
epochs = 2
batch_per_worker = 1
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[VirtualCluster]:
    """Three hosts, of which the last one is behind a slow link."""
    with bring_up("doctor", *HOSTS) as cluster:
        bucket = ["root", "tbf", "rate", SLOW_RATE, "burst", str(burst_bytes(SLOW_RATE)), "latency", "50ms"]
        limited = cluster.inside("node3", "tc", "qdisc", "add", "dev", "eth0", *bucket)
        assert limited.returncode == 0, limited.stderr
        yield cluster


def command(cluster: VirtualCluster, *words: str) -> Done:
    program = [sys.executable, "-m", "unet_scaling", *words]
    environment = cluster.environment | {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=LAUNCH_SECONDS, cwd=PROJECT
    )


def examine(
    cluster: VirtualCluster, root: Path, arguments: str = PMI, variable: str = "", workers: int = 3
) -> dict[str, Any]:
    """Let the doctor examine the hosts with this launcher; return what it prints as JSON."""
    site = root / "site.toml"
    site.write_text(SITE.format(arguments=arguments, more="") + variable)
    places = ("--cluster", str(site), "--logs", str(root / "logs"), "--workers", str(workers))
    done = command(cluster, "doctor", *places, "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["faults"] else 0)
    return found


def test_names_the_pairs_of_a_slow_link(hosts: VirtualCluster, tmp_path: Path) -> None:
    found = examine(hosts, tmp_path)
    assert found["faults"] == []
    assert found["verdict"].startswith("3 workers in 1 group, for torch and for MPI, on 3 nodes")
    assert found["slowest_node"] in ("node1", "node2", "node3")
    reports = found["reports"]
    assert [report["facts"]["host"] for report in reports] == ["node1", "node2", "node3"]
    assert [report["interface"] for report in reports] == ["eth0"] * 3
    assert {tuple(pair["hosts"]) for pair in reports[0]["pairs"]} == {
        ("node1", "node2"),
        ("node1", "node3"),
        ("node2", "node3"),
    }
    slow = [text.partition(" is slow")[0] for text in found["warnings"] if " is slow" in text]
    behind = ["the link node1 - node3", "the link node2 - node3", "every link of node3"]
    # All hosts are one machine: beside other work the latency of any pair may be five times that of another.
    assert [text for text in slow if "node3" in text] == behind


@pytest.mark.parametrize(
    ("without", "effect"),
    [
        ('"env", "-u", "SLURM_PROCID", "-u", "PMI_RANK"', "2 groups of 1 instead of 1 group of 2: "),
        ('"env", "-u", "PMI_RANK"', "worker 0 on node1: MPI did not start; "),
    ],
    ids=["of all launchers", "of PMI only"],
)
def test_names_the_variable_that_the_workers_lack(
    without: str, effect: str, hosts: VirtualCluster, tmp_path: Path
) -> None:
    found = examine(hosts, tmp_path, f"{PMI}, {without}", workers=2)
    assert found["faults"][0].startswith(f"{effect}PMI_RANK is not set on node1, with PMI_SIZE=2")


def test_blames_the_worker_that_was_killed(hosts: VirtualCluster, tmp_path: Path) -> None:
    """Not the survivor, which loses its connection and is ended by srun."""
    kill = 'if [ $SLURM_PROCID = 1 ]; then (sleep 3; kill -9 $$) & fi; exec "$@"'
    words = ", ".join(json.dumps(word) for word in ("sh", "-c", kill, "sh"))
    found = examine(hosts, tmp_path, f"{PMI}, {words}", workers=2)
    assert found["faults"][0].startswith("worker 1 on node2 was the first to end, by Killed")
    assert not any("worker 0" in fault for fault in found["faults"])


def test_names_a_path_that_drops_large_packets(tmp_path: Path) -> None:
    with bring_up("mtu", *HOSTS) as cluster:
        small = ["root", "tbf", "rate", "1gbit", "burst", "1300", "latency", "50ms"]
        dropping = cluster.inside("node3", "tc", "qdisc", "add", "dev", "eth0", *small)
        assert dropping.returncode == 0, dropping.stderr
        found = examine(cluster, tmp_path)
    assert "messages of 8 bytes pass and one of 100 kB does not" in found["faults"][0]


def test_names_an_srun_that_does_not_speak_to_mpi(hosts: VirtualCluster, tmp_path: Path) -> None:
    found = examine(hosts, tmp_path, "", workers=2)
    (fault,) = found["faults"]
    assert fault.startswith(
        "MPI, and so Horovod, makes 2 groups of 1 instead of 1 group of 2 (launcher: Slurm)"
    )
    assert [report["joined_workers"] for report in found["reports"]] == [2, 2], "torch needs no MPI"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("eth7", "GLOO_SOCKET_IFNAME=eth7: node1 has no such interface with an address; it has lo"),
        (
            "lo",
            "node1 would talk over its loopback, which no other host reaches: change GLOO_SOCKET_IFNAME=lo",
        ),
    ],
)
def test_names_a_wrong_interface(name: str, sentence: str, hosts: VirtualCluster, tmp_path: Path) -> None:
    found = examine(hosts, tmp_path, variable=f'GLOO_SOCKET_IFNAME = "{name}"\n', workers=2)
    assert found["faults"][0].startswith(sentence)


def test_a_study_is_submitted_only_after_the_doctor_has_found_no_fault(
    hosts: VirtualCluster, tmp_path: Path
) -> None:
    study, site = tmp_path / "study.toml", tmp_path / "site.toml"
    study.write_text(STUDY.format(images=make_images(tmp_path / "images", count=8)))
    logs = tmp_path / "logs"
    submit = ("submit", str(study), "--cluster", str(site), "--logs", str(logs))
    wrong = SITE.format(arguments=PMI, more="doctor = true")
    site.write_text(wrong + 'GLOO_SOCKET_IFNAME = "eth7"\n')
    refused = command(hosts, *submit)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "nothing was submitted, since the doctor (doctor = true) finds:" in refused.stderr
    assert "GLOO_SOCKET_IFNAME=eth7: node1 has no such interface" in refused.stderr
    assert not list(logs.glob("study/*/job.json"))
    site.write_text(wrong)
    taken = command(hosts, *submit)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert "doctor: 2 workers in 1 group, for torch and for MPI, on 2 nodes" in taken.stdout
    assert len(list(logs.glob("study/*/job.json"))) == 2
    hosts.run("scancel", "--me")
    again = command(hosts, *submit)
    assert "doctor:" not in again.stdout, "only before the first job"
    hosts.run("scancel", "--me")
