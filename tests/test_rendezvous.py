"""Workers meet by TCP and verify that they are one group: who is missing or foreign, or shares a core."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.studies import make_point, make_run
from tests.test_group import in_threads
from unet_scaling.group import facts as facts_module
from unet_scaling.group.facts import verify_group
from unet_scaling.group.group import Group
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.record import shared_devices
from unet_scaling.study.record_lines import WorkerFacts
from unet_scaling.study.study_file import read_config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, rank: int, port: int, **variables: str) -> "subprocess.Popen[str]":
    """One of two workers, as torchrun would start it."""
    point = RunConfig.model_validate_json((folder / "config.json").read_text())
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    return subprocess.Popen(
        [sys.executable, str(PROJECT / point.framework / "train.py"), str(folder)],
        env=os.environ | place | {"MASTER_PORT": str(port)} | variables,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(processes: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    """Exit code and standard error of each; none outlives the test."""
    try:
        return [(process.wait(timeout=240), process.communicate()[1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_workers_of_two_runs_or_jobs_on_one_port_part_before_training(images: Path, tmp_path: Path) -> None:
    """Untreated, both would train one mixed group without an error. Job and configuration are compared."""
    port = free_port()
    points = [make_point(images, workers=2), make_point(images, workers=2, learning_rate=0.5)]
    one, other = (make_run(tmp_path / str(number), point) for number, point in enumerate(points))
    outcomes = finish([start(one, 0, port, SLURM_JOB_ID="70"), start(other, 1, port, SLURM_JOB_ID="71")])
    assert [code for code, _ in outcomes] == [2, 2]
    for _, text in outcomes:
        assert "workers 0 and 1 do not belong to one run: {'job': '70'," in text
        assert " and {'job': '71'," in text
        for folder in (one, other):
            assert f"'config': '{read_config(folder / 'config.json').digest()}'" in text
    assert not (one / "run.jsonl").exists()


@pytest.mark.slow
def test_a_worker_that_cannot_meet_the_others_says_where_it_looked_and_for_whom(
    images: Path, tmp_path: Path
) -> None:
    """Worker 0 or 1, of native DDP or of Horovod under Gloo, each alone at a port that is free or taken.

    The port is opened by the same code under both.
    """
    native = make_run(tmp_path / "native", make_point(images, workers=2, timeout_seconds=3))
    gloo = make_point(images, "horovod", 2, timeout_seconds=3)
    horovod = make_run(
        tmp_path / "horovod", gloo.model_copy(update={"horovod": HorovodKnobs(controller="gloo")})
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        at_taken_port = start(native, 0, port)
        ports = [free_port() for _ in range(3)]
        ranks = ((native, 0), (native, 1), (horovod, 0))
        alone = [start(folder, rank, own) for (folder, rank), own in zip(ranks, ports, strict=True)]
        outcomes = finish([at_taken_port, *alone])
    host = socket.gethostname()
    expected = [
        (2, f"could not join the group at 127.0.0.1:{port}"),
        (2, f"no worker 1 after 3 s (training.timeout_seconds); the others are on {host}"),
        (2, f"worker 1 of 2 on {host} could not join the group at 127.0.0.1:{ports[1]}"),
        (1, "waited 3 s (training.timeout_seconds) in join_group for another worker"),
    ]
    for (code, text), (expected_code, said) in zip(outcomes, expected, strict=True):
        assert (code, said in text) == (expected_code, True), text


def other_config(rank: int, config: RunConfig) -> RunConfig:
    return config.model_copy(update={"seed": 3 + rank})


def shared_cores(_: int, config: RunConfig) -> RunConfig:
    training = config.training.model_copy(update={"shared_devices": False})
    return config.model_copy(update={"training": training})


@pytest.mark.parametrize(
    ("config_of", "said"),
    [(other_config, "do not belong to one run"), (shared_cores, "workers 0 and 1 share core")],
)
def test_what_makes_workers_no_group_is_refused_on_all_alike(
    config_of: Callable[[int, RunConfig], RunConfig], said: str
) -> None:
    point = make_point(Path("/images"), workers=2)

    def verify(own: Group) -> str:
        with pytest.raises(UserError, match=said) as refused:
            verify_group(own, config_of(own.rank, point), {})
        return str(refused.value)

    (one, other), _ = in_threads(2, verify)
    assert one == other
    assert len(in_threads(2, lambda own: verify_group(own, point, {}))[0][1]) == 2


def test_the_first_worker_with_another_version_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([{"torch": "2.13.0", "driver": "1"}, {"torch": "2.13.0"}, {"torch": "2.12.1"}])
    monkeypatch.setattr(facts_module, "versions", lambda: next(told))
    point = make_point(Path("/images"), workers=3)

    def verify(own: Group) -> str:
        with pytest.raises(UserError, match="load the same environment") as refused:
            verify_group(own, point, {})
        return str(refused.value)

    texts, _ = in_threads(3, verify)
    assert len(set(texts)) == 1
    assert "torch is " in texts[0]
    assert "2.13.0 on worker" in texts[0]
    assert "2.12.1 on worker" in texts[0]
    assert "driver" not in texts[0]


def facts(worker: int, **changes: object) -> WorkerFacts:
    fields: dict[str, object] = {
        "worker": worker, "host": "a", "process": 1, "device": "GPU", "device_uuid": f"GPU-{worker}",
        "cores": [0, 1], "threads": 1,
    }  # fmt: skip
    return WorkerFacts.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, []),
        ({"device_uuid": "GPU-0"}, ["workers 0 and 1 share device GPU-0"]),
        ({"device_uuid": "", "cores": [1, 2]}, ["workers 0 and 1 share core 1 of host a"]),
        ({"device_uuid": "", "cores": [1, 2], "host": "b"}, []),
    ],
)
def test_two_workers_on_one_gpu_or_core_of_one_host_are_named(
    other: dict[str, object], said: list[str]
) -> None:
    first = {"device_uuid": ""} if other.get("device_uuid") == "" else {}
    assert shared_devices([facts(0, **first), facts(1, **other)]) == said
