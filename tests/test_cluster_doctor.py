"""`new` and the launch doctor on a real Slurm of three hosts: its files run, and what is wrong is named."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import read_cluster
from slurm.virtual.hosts import burst_bytes
from tests.cluster import Done, VirtualCluster, assert_ok, bring_up
from tests.studies import make_images
from tests.test_readme import GPU_SITE
from tests.test_render import make_container
from unet_scaling.format.record import read_record
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_study

pytestmark = [pytest.mark.slow, pytest.mark.verify]
COMMAND_SECONDS = 600
HOSTS = ("--hosts", "3", "--gpus-per-host", "1", "--cores-per-host", "1")  # workers share two cores here
SLOW_RATE = "20mbit"
SITE = """
launcher = "srun"
launcher_arguments = [{arguments}]
gpus_per_node = 1
cores_per_worker = 1
max_nodes = 3
time = "00:30:00"
[environment]
UCX_TLS = "tcp,self"
"""
PMI = '"--mpi=pmi2"'
WRONG_INTERFACE = '\n[environment]\nGLOO_SOCKET_IFNAME = "eth7"\n'


@pytest.fixture(scope="module")
def hosts() -> Iterator[VirtualCluster]:
    with bring_up("doctor", *HOSTS) as cluster:
        yield cluster


def command(cluster: VirtualCluster, *words: str) -> Done:
    program = [sys.executable, "-m", "unet_scaling", *words]
    environment = cluster.environment | {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, cwd=PROJECT
    )


def test_workers_of_a_container_train_on_what_the_prologue_copied_to_scratch(
    hosts: VirtualCluster, tmp_path: Path
) -> None:
    """Stand-ins for Apptainer and for the Python of its image; launcher, PMI and what is trained are real."""
    image = make_container(tmp_path, f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    # The hosts share the folder that stands for their scratch.
    (copying,) = re.findall(r"^srun .* cp .*", GPU_SITE.read_text(), re.MULTILINE)
    copying = copying.replace(" cp ", f" flock {tmp_path}/lock cp ")
    copying = copying.replace("/tmp/my_images", f"{tmp_path}/scratch")
    lines = [f'export PATH="{tmp_path}/bin:$PATH" WORK="{tmp_path}"', copying]
    (tmp_path / "load.sh").write_text("\n".join(lines) + "\n")
    site = tmp_path / "site.toml"
    keys = f'container = "{image}"\nprologue = "{tmp_path}/load.sh"\ndoctor = true\n'
    site.write_text(keys + SITE.format(arguments=PMI))
    data = make_images(tmp_path / "images", 24)
    study = tmp_path / "tiny.toml"
    made = command(hosts, "new", "tiny", "--data", str(data), "--into", str(tmp_path))
    assert made.returncode == 0, made.stderr
    images = (f"data.folder={tmp_path}/scratch", f"data.manifest={data}/manifest.json", "data.loading=decode")
    values = (*images, "workers=[2]", "repeats=1", "training.epochs=2", "model.width=1", "model.depth=3")
    sizes = [word for value in values for word in ("--set", value)]
    places = ("--cluster", str(site), "--logs", str(tmp_path / "logs"))
    done = command(hosts, "submit", str(study), *places, *sizes, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = sorted((tmp_path / "logs" / "tiny").glob("*-w02-r1"))
    records = [read_record(folder / "run.jsonl") for folder in folders]
    assert [record.complete for record in records] == [True, True]
    again = command(hosts, "submit", str(study), *places, *sizes, "--dry-run", "--force", folders[0].name)
    # These GPUs are only names: a run on cores of a job that was given GPUs tells what the next one takes.
    told = r"\n1 run: about \d+ s, 0\.\d+ node-hours, 0\.\d+ GPU-hours by"
    assert re.search(told, again.stdout), again.stdout
    shown = re.findall(r'squeue [^`]*"', GPU_SITE.read_text())[0]
    assert "NAME" in hosts.run(*shlex.split(shown))
    # Of each run two workers, and the doctor's two workers.
    assert (tmp_path / "bin" / "called").read_text().splitlines().count("exec") == 6


def limit_node3(cluster: VirtualCluster, rate: str, burst: int) -> None:
    """Let what node3 sends pass a bucket; what is larger than it is dropped."""
    bucket = ["root", "tbf", "rate", rate, "burst", str(burst), "latency", "50ms"]
    assert_ok(cluster.inside("node3", "tc", "qdisc", "replace", "dev", "eth0", *bucket))


def examine(cluster: VirtualCluster, root: Path, arguments: str = PMI, workers: int = 3) -> dict[str, Any]:
    """Let the doctor examine the hosts with this launcher; return what it prints as JSON."""
    site = root / "site.toml"
    site.write_text(SITE.format(arguments=arguments))
    places = ("--cluster", str(site), "--logs", str(root / "logs"), "--workers", str(workers))
    done = command(cluster, "doctor", *places, "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["faults"] else 0)
    return found


def test_files_made_by_asking_slurm_are_examined_and_run(hosts: VirtualCluster, tmp_path: Path) -> None:
    """With doctor = true nothing is submitted before the doctor has found no fault."""
    data = make_images(tmp_path / "data", 24)
    study, site = tmp_path / "asked.toml", tmp_path / "asked.cluster.toml"
    made = command(hosts, "new", "asked", "--data", str(data), "--into", str(tmp_path))
    assert made.returncode == 0, made.stdout + made.stderr
    facts = read_cluster(site)
    assert (facts.partition, facts.gpus_per_node, facts.max_nodes) == ("virtual", 1, 3)
    assert (facts.cores_per_worker, facts.pin_cores, facts.launcher) == (1, True, "srun")
    assert read_study(study).workers == [1, 2, 3]

    logs = tmp_path / "logs"
    places = ("--cluster", str(site), "--logs", str(logs))
    values = ("workers=[2]", "repeats=1", "training.epochs=2", "model.width=1", "model.depth=3")
    sizes = tuple(word for value in values for word in ("--set", value))
    submit = ("submit", str(study), *places, *sizes)
    shown = command(hosts, *submit, "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert not logs.exists()
    unchanged = site.read_text()
    site.write_text(f"doctor = true\n{unchanged}{WRONG_INTERFACE}")
    refused = command(hosts, *submit)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "GLOO_SOCKET_IFNAME=eth7" in refused.stderr
    assert not list(logs.glob("asked/*/job.json"))
    site.write_text(f"doctor = true\n{unchanged}")
    done = command(hosts, *submit, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "doctor: 2 workers in 1 group" in done.stdout
    status = command(hosts, "status", "asked", "--json", "--logs", str(logs))
    assert [row["state"] for row in json.loads(status.stdout)] == ["complete"] * 2
    headers = [read_record(path).header for path in logs.glob("asked/*/run.jsonl")]
    # Hosts of one core each, which this machine deals out in turn.
    own = [len({core for worker in header.workers for core in worker.cores}) for header in headers if header]
    assert own == [min(2, len(os.sched_getaffinity(0)))] * 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            f'{PMI}, "env", "-u", "SLURM_PROCID", "-u", "PMI_RANK"',
            "2 groups of 1 instead of 1 group of 2: PMI_RANK is not set on node1, with PMI_SIZE=2",
        ),
        ("", "MPI makes 2 groups of 1 instead of 1 group of 2"),
    ],
    ids=["no rank", "srun does not speak to MPI"],
)
def test_names_what_the_launcher_does_not_tell_its_workers(
    arguments: str, fault: str, hosts: VirtualCluster, tmp_path: Path
) -> None:
    found = examine(hosts, tmp_path, arguments, workers=2)
    assert found["faults"][0].startswith(fault)


def test_names_the_pairs_of_a_slow_link(hosts: VirtualCluster, tmp_path: Path) -> None:
    limit_node3(hosts, SLOW_RATE, burst_bytes(SLOW_RATE))
    found = examine(hosts, tmp_path)
    assert found["faults"] == []
    reports = found["reports"]
    assert [report["facts"]["host"] for report in reports] == ["node1", "node2", "node3"]
    assert [report["interface"] for report in reports] == ["eth0"] * 3
    pairs = [("node1", "node2"), ("node1", "node3"), ("node2", "node3")]
    assert sorted(tuple(pair["hosts"]) for pair in reports[0]["pairs"]) == pairs
    slow = [text.partition(" is slow")[0] for text in found["warnings"] if " is slow" in text]
    behind = ["the link node1 - node3", "the link node2 - node3", "every link of node3"]
    # All hosts are one machine: beside other work the latency of any pair may be five times that of another.
    assert [text for text in slow if "node3" in text] == behind


def test_names_a_path_that_drops_large_packets(hosts: VirtualCluster, tmp_path: Path) -> None:
    limit_node3(hosts, "1gbit", burst=1300)
    found = examine(hosts, tmp_path)
    assert "8 bytes pass, 100 kB do not" in found["faults"][0]
