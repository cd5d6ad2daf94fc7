"""The launch doctor with real processes on this machine: what it reports, and the faults that it names."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm.launch.processes import launch_environment, mpiexec_program
from tests.machine import needs_a_core_each
from tests.records import make_pair
from unet_scaling.doctor.findings import Findings, WorkerReport, launch_findings, read_reports, slow_links
from unet_scaling.measure.ping_pong import HostPair

WORKERS = 2
LAUNCH_SECONDS = 150


@pytest.mark.slow
@needs_a_core_each
def test_two_workers_that_find_each_other_are_well() -> None:
    command = [sys.executable, "-m", "unet_scaling", "doctor", "--local", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LAUNCH_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"].startswith("2 workers in 1 group, for torch and for MPI, on 1 node")
    assert found["faults"] == []
    reports = [WorkerReport.model_validate_json(json.dumps(report)) for report in found["reports"]]
    assert [(report.rank, report.size, report.joined_workers, report.mpi_workers) for report in reports] == [
        (0, 2, 2, 2),
        (1, 2, 2, 2),
    ]
    assert {report.stage for report in reports} == {"finished"}
    assert found["slowest_node"] == reports[0].facts.host
    for report in reports:
        assert (report.interface, report.address) == ("lo", "127.0.0.1")
        assert report.versions["torch"]
        assert report.clock_offset_seconds is not None
        assert report.clock_error_seconds is not None
        assert abs(report.clock_offset_seconds) <= report.clock_error_seconds, "one clock for both"
        assert report.operations_per_second
    (pair,) = reports[0].pairs
    assert (pair.medium, pair.ranks) == ("shared memory", (0, 1))


def examine(folder: Path, first: Sequence[str], second: Sequence[str] = ()) -> Findings:
    """Launch a worker behind each of these commands; return what its doctor finds."""
    worker = [sys.executable, "-m", "unet_scaling.doctor", str(folder), str(WORKERS)]
    command = [mpiexec_program(), "-n", "1", *first, *worker, ":", "-n", "1", *(second or first), *worker]
    done = subprocess.run(
        command, env=launch_environment(), capture_output=True, timeout=LAUNCH_SECONDS, text=True
    )
    return launch_findings(read_reports(folder), WORKERS, output=done.stdout + done.stderr)


@pytest.mark.slow
def test_names_the_missing_variable_that_makes_groups_of_one(tmp_path: Path) -> None:
    found = examine(tmp_path, ["env", "-u", "PMI_SIZE"])
    assert found.faults[0].startswith("2 groups of 1 instead of 1 group of 2: PMI_SIZE is not set on ")
    reports = read_reports(tmp_path)
    assert [(report.rank, report.size, report.joined_workers) for report in reports] == [(0, 1, None)] * 2


# As the launchers print it, MPICH 5.0.2, Intel MPI 2021.16, Open MPI 4.1.4 and 5.0.11, Slurm 22.05, where of
# three workers on three hosts the one on node1 is killed and the launcher then ends the others.
SRUN = """srun: error: node1: task 1: {}
srun: launch/slurm: _step_signal: Terminating StepId=18.0
slurmstepd-node1: error: *** STEP 18.0 ON node1 CANCELLED AT 2026-11-25T17:11:42 ***
srun: error: node0: task 0: Terminated
srun: error: node2: task 2: Killed
"""
HYDRA = """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 25168 RUNNING AT node1
=   EXIT CODE: {0}
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {1} (signal {0})
"""
INTEL = "=   RANK 1 PID 25181 RUNNING AT node1\n=   KILLED BY SIGNAL: {} ({})\n"
ORTERUN = "orterun noticed that process rank 1 with PID 0 on node node1 exited on signal {} ({}).\n"
PRTERUN = "prterun noticed that process rank 1 with PID 25348 on node node1 exited on\nsignal {} ({}).\n"


@pytest.mark.parametrize(
    ("output", "how"),
    [
        (SRUN.format("Killed"), "Killed: from outside"),
        (SRUN.format("Out Of Memory"), "Out Of Memory: it needs more memory than its job has"),
        (SRUN.format("Segmentation fault (core dumped)"), "Segmentation fault"),
        (HYDRA.format(11, "Segmentation fault"), "signal 11 (SIGSEGV)"),
        (INTEL.format(9, "Killed"), "signal 9 (SIGKILL): from outside"),
        (ORTERUN.format(7, "Bus error"), "signal 7 (SIGBUS)"),
        (PRTERUN.format(9, "Killed"), "signal 9 (SIGKILL): from outside"),
    ],
)
def test_blames_the_first_to_die_by_its_host_and_signal(output: str, how: str) -> None:
    lost = "[/gloo/pair.cc:339] Connection closed by peer"
    survivors = [worker(rank, stage="started", problem=lost) for rank in (0, 2)]
    reports = [survivors[0], worker(1, stage="started"), survivors[1]]
    fault = launch_findings(reports, 3, output=output).faults[0]
    assert fault.startswith(f"worker 1 on node1 was the first to end, by {how}")
    assert lost not in "".join(launch_findings(reports, 3, output=output).faults)


@pytest.mark.parametrize("output", ["", SRUN.format("Exited with exit code 2"), SRUN.format("Terminated")])
def test_a_worker_that_says_what_went_wrong_is_heard(output: str) -> None:
    told = worker(1, stage="started", problem="no such interface")
    (fault,) = launch_findings([worker(0), told, worker(2)], 3, output=output).faults
    assert fault == "worker 1 on node1: no such interface"


def pair(hosts: tuple[str, str], milliseconds: float, latency: float = 0.05) -> HostPair:
    """Two hosts between which 1 MiB takes so long, one way."""
    return make_pair(hosts, latency / 1e3, milliseconds / 1e3)


def test_names_a_slow_link_by_its_pair_and_a_host_with_slow_links_only() -> None:
    equal = [pair(("a", "b"), 8), pair(("a", "c"), 9), pair(("b", "c"), 10)]
    assert slow_links(equal) == []
    (one,) = slow_links([*equal[:2], pair(("b", "c"), 80)])
    assert one == ("the link b - c is slow: 1,048,576 bytes take 80 ms, between the fastest pair 8 ms")
    far = slow_links([*equal[:2], pair(("b", "c"), 8, latency=1)])
    assert far == ["the link b - c is slow: 1 bytes take 1 ms, between the fastest pair 0.05 ms"]
    *links, host = slow_links([equal[0], pair(("a", "c"), 80), pair(("b", "c"), 80)])
    assert len(links) == 2
    assert host.startswith("every link of c is slow")


def worker(number: int, **values: object) -> WorkerReport:
    """A report of a worker on a host of its own that found nothing wrong."""
    host = f"node{number}"
    content = {
        "stage": "finished", "rank": number, "size": 3, "launcher": "Slurm", "launcher_variables": {},
        "facts": {
            "worker": number, "host": host, "process": 7, "device": "cpu", "device_uuid": "",
            "cores": [0, 1], "threads": 2,
        },
        "host_cores": 2, "versions": {"python": "3.11.7", "driver": host},
        "addresses": {"lo": "127.0.0.1", "eth0": f"10.0.0.{number}"}, "interface": "eth0",
        "own_address": f"10.0.0.{number}", "joined_workers": 3, "mpi_workers": 3,
        "clock_offset_seconds": 0.01, "clock_error_seconds": 0.01, "operations_per_second": 1e9,
    }  # fmt: skip
    return WorkerReport.model_validate_json(json.dumps(content | values))


@pytest.mark.parametrize(
    ("built", "gpu", "warnings"),
    [("MPI Gloo", "GPU-1", 1), ("MPI Gloo NCCL", "GPU-1", 0), ("MPI Gloo", "", 0), ("", "GPU-1", 0)],
)
def test_names_a_horovod_that_lacks_what_native_ddp_uses_on_gpus(built: str, gpu: str, warnings: int) -> None:
    reports = [worker(number, horovod_built=built) for number in range(2)]
    on_gpus = [
        report.model_copy(update={"facts": report.facts.model_copy(update={"device_uuid": gpu + host})})
        for report, host in zip(reports, "ab" if gpu else ("", ""), strict=True)
    ]
    found = launch_findings(
        [each.model_copy(update={"size": 2, "joined_workers": 2, "mpi_workers": 2}) for each in on_gpus], 2
    )
    assert not found.faults
    assert ["HOROVOD_GPU_OPERATIONS=NCCL" in warning for warning in found.warnings] == [True] * warnings


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"operations_per_second": 5e8}, "node2 computes at 50% of the median node"),
        ({"clock_offset_seconds": -90.0}, "the clock of node2 is -90.0 s off that of worker 0"),
        ({"host_cores": 1}, "node2 is a host of 1 core; others have 2"),
        ({"interface": "lo", "own_address": "127.0.1.1"}, "since its own name resolves to 127.0.1.1"),
        ({"interface": "lo"}, "change GLOO_SOCKET_IFNAME=lo"),
        ({"mpi_workers": 1}, 'launcher_arguments = ["--mpi=pmi2"]'),
        ({"stage": "measured"}, "worker 2 on node2: MPI did not start; see the output"),
        ({"versions": {"python": "3.12.0"}}, "and 3.12.0 on worker 2"),
    ],
    ids=["slow node", "clock", "host cores", "name", "loopback", "MPI", "silent end", "versions"],
)
def test_names_what_is_wrong_with_one_host(values: dict[str, object], sentence: str) -> None:
    found = launch_findings([worker(0), worker(1), worker(2, **values)], 3)
    (named,) = (*found.faults, *found.warnings)
    assert sentence in named


def test_what_a_worker_lacks_is_measured_by_workers_and_hosts_by_hosts() -> None:
    facts = worker(2).facts.model_copy(update={"cores": [0]})
    few = worker(2, host_cores=16).model_copy(update={"facts": facts})
    (cores,) = launch_findings([worker(0, host_cores=16), worker(1, host_cores=16), few], 3).warnings
    assert cores.startswith("worker 2 on node2 has 1 core; others have 2: ")
    equal = [worker(0), worker(1), worker(2, host_cores=1)]
    (hosts,) = launch_findings(equal, 3, cores_wanted=2).warnings
    assert hosts == "node2 is a host of 1 core; others have 2: ask for equal nodes"


def test_names_how_many_workers_reported_and_which_came_twice() -> None:
    (fault,) = launch_findings([worker(0)], 3).faults
    assert fault.startswith("1 of 3 workers reported, from node0")
    both = [worker(number, size=2, joined_workers=2, mpi_workers=2) for number in range(2)]
    again = [report.model_copy(update={"facts": worker(2 + report.rank).facts}) for report in both]
    (fault,) = launch_findings([*both, *again], 2).faults
    assert fault.startswith("4 workers reported, 2 were asked for")
