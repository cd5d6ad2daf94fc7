"""Rendezvous by TCP: a taken port, another job's workers on it, workers on one core."""

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import Fault, attempt, fault_point
from tests.studies import make_point, make_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.different_versions import different_versions
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.record_lines import WorkerFacts
from unet_scaling.study.shared_devices import shared_devices
from unet_scaling.study.study_file import read_config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, rank: int, port: int, **variables: str) -> "subprocess.Popen[str]":
    """One of two workers, as torchrun would start it."""
    point = RunConfig.model_validate_json((folder / "config.json").read_text())
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment = os.environ | place | {"MASTER_PORT": str(port)} | variables
    return subprocess.Popen(
        [sys.executable, str(PROJECT / point.framework / "train.py"), str(folder)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(processes: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    """Exit code and standard error of each; none outlives the test."""
    try:
        return [(process.wait(timeout=120), process.communicate()[1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def two_points(images: Path, tmp_path: Path) -> list[Path]:
    points = [make_point(images, workers=2), make_point(images, workers=2, learning_rate=0.5)]
    return [make_run(tmp_path / str(number), point) for number, point in enumerate(points)]


@pytest.mark.slow
def test_workers_of_two_runs_or_jobs_on_one_port_part_before_training(images: Path, tmp_path: Path) -> None:
    """Untreated, both would train one mixed group without an error. Job and configuration are compared."""
    port = free_port()
    one, other = two_points(images, tmp_path)
    outcomes = finish([start(one, 0, port, SLURM_JOB_ID="70"), start(other, 1, port, SLURM_JOB_ID="71")])
    assert [code for code, _ in outcomes] == [2, 2]
    for _, text in outcomes:
        assert "workers 0 and 1 do not belong to one run: {'job': '70'," in text
        assert " and {'job': '71'," in text
        for folder in (one, other):
            assert f"'config': '{read_config(folder / 'config.json').digest()}'" in text
    assert not (one / "run.jsonl").exists()


def rendezvous_by_tcp(images: Path, framework: str, **options: object) -> RunConfig:
    """Of two workers; Horovod uses the rendezvous where Gloo is its controller."""
    knobs = HorovodKnobs(controller="gloo") if framework == "horovod" else None
    return make_point(images, framework, 2, **options).model_copy(update={"horovod": knobs})


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_taken_port_is_named(framework: str, images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rendezvous_by_tcp(images, framework))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ((code, text),) = finish([start(folder, 0, port)])
    assert code == 2
    assert f"could not join the group at 127.0.0.1:{port}" in text


@pytest.mark.slow
def test_a_worker_that_never_comes_is_named_with_those_that_came(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, workers=2, timeout_seconds=3))
    ((code, text),) = finish([start(folder, 0, free_port())])
    assert code == 2
    assert (
        f"no worker 1 after 3 s (training.timeout_seconds); the others are on {socket.gethostname()}" in text
    )


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_where_worker_0_never_comes_the_others_say_where_they_looked(
    framework: str, images: Path, tmp_path: Path
) -> None:
    port = free_port()
    point = rendezvous_by_tcp(images, framework, timeout_seconds=3)
    ((code, text),) = finish([start(make_run(tmp_path / "run", point), 1, port)])
    assert code == 2
    assert f"worker 1 of 2 on {socket.gethostname()} could not join the group at 127.0.0.1:{port}" in text


@pytest.mark.slow
def test_under_gloo_worker_0_waits_no_longer_than_it_is_told(images: Path, tmp_path: Path) -> None:
    point = rendezvous_by_tcp(images, "horovod", timeout_seconds=3)
    ((code, text),) = finish([start(make_run(tmp_path / "run", point), 0, free_port())])
    assert code != 0
    assert "waited 3 s (training.timeout_seconds) in join_group for another worker" in text


@pytest.mark.slow
def test_cpu_workers_on_one_core_are_refused_unless_the_study_allows_it(images: Path, tmp_path: Path) -> None:
    port = free_port()
    point: RunConfig = make_point(images, workers=2, shared_devices=False)
    folder = make_run(tmp_path / "run", point)
    outcomes = finish([start(folder, rank, port) for rank in (0, 1)])
    assert [code for code, _ in outcomes] == [2, 2]
    assert all("workers 0 and 1 share core" in text for _, text in outcomes)


def facts(worker: int, **changes: object) -> WorkerFacts:
    fields: dict[str, object] = {
        "worker": worker, "host": "a", "process": 1, "device": "GPU", "device_uuid": f"GPU-{worker}",
        "cores": [0, 1], "threads": 1,
    }  # fmt: skip
    return WorkerFacts.model_validate(fields | changes)


def test_two_workers_on_one_gpu_are_named() -> None:
    assert shared_devices([facts(0), facts(1)]) == []
    assert shared_devices([facts(0), facts(1, device_uuid="GPU-0")]) == ["workers 0 and 1 share device GPU-0"]


def test_two_cpu_workers_share_a_core_of_one_host_only() -> None:
    one, other = facts(0, device_uuid=""), facts(1, device_uuid="", cores=[1, 2])
    assert shared_devices([one, other]) == ["workers 0 and 1 share core 1 of host a"]
    assert shared_devices([one, other.model_copy(update={"host": "b"})]) == []


def test_the_first_worker_with_another_version_is_named_with_both() -> None:
    same = {"python": "3.11.2", "torch": "2.13.0"}
    workers = [facts(rank, host=f"node{rank}") for rank in range(3)]
    assert different_versions(workers, [same, same, same]) == []
    assert different_versions(workers, [same, same, same | {"torch": "2.12.1"}]) == [
        "torch is 2.13.0 on worker 0 (node0) and 2.12.1 on worker 2 (node2)"
    ]
    assert different_versions(workers, [same, {"python": "3.11.2"}, same]) == [
        "torch is 2.13.0 on worker 0 (node0) and none on worker 1 (node1)"
    ]


@pytest.mark.slow
def test_workers_of_different_versions_part_before_training(images: Path, tmp_path: Path) -> None:
    refused = attempt(tmp_path / "run", fault_point(images, "horovod"), Fault("another python", 0))
    assert refused.state.state == "failed"
    own = f"python is {platform.python_version()} on worker 0"
    assert own in refused.state.reason
    assert "and 3.99.0 on worker 1" in refused.state.reason
    assert refused.record.header is None
