"""Workers meet by TCP, verify that they are one group, gather and leave: who is missing or foreign."""

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cluster import free_port
from tests.records import make_workers
from tests.studies import make_point, make_run
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.group import group
from unet_scaling.group import worker as worker_module
from unet_scaling.group.group import Group
from unet_scaling.group.identity import Identity
from unet_scaling.group.rendezvous import LEAST_AGE_SECONDS, remove_left_segments
from unet_scaling.group.worker import verify_group
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.study_file import read_config

Result = TypeVar("Result")


def in_threads(size: int, work: Callable[[Group], Result]) -> tuple[list[Result], list[int]]:
    """Let a thread stand for each worker; return what each got, and the bytes of each sum."""
    entered: list[Tensor] = [torch.empty(0)] * size
    barrier = threading.Barrier(size, timeout=60)
    sums: list[int] = []

    def sum_of(rank: int) -> Callable[[Tensor], Callable[[], None]]:
        def total(tensor: Tensor) -> Callable[[], None]:
            entered[rank] = tensor.clone()
            if barrier.wait() == 0:
                sums.append(tensor.nbytes)
            tensor.copy_(torch.stack(entered).sum(dim=0))
            barrier.wait()
            return lambda: None

        return total

    groups = [
        Group(Identity(rank, size, rank, ""), torch.device("cpu"), sum_of(rank), {}) for rank in range(size)
    ]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups)), sums


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=70), min_size=1, max_size=5), st.sampled_from([1, 3, 1000]), st.booleans())
def test_bytes_arrive_and_no_sum_is_larger_than_they_are(
    data: list[bytes], words: int, everywhere: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "WORDS_AT_ONCE", words)
        found, sums = in_threads(len(data), lambda own: own.gather_bytes(data[own.rank], everywhere))
    assert found[0] == data
    assert all(each == (data if everywhere else [b""] * len(data)) for each in found[1:])
    lengths, *rest = sums
    rounded = sum(len(each) + 3 for each in data)
    assert lengths == 8 * len(data)
    assert sum(rest) <= rounded
    assert max(rest, default=0) <= 4 * words


def test_an_error_of_one_is_one_of_all() -> None:
    def action(own: Group) -> str:
        def fails() -> None:
            if own.rank == 1:
                raise UserError("wrong", EXIT_BAD_DATA)

        with pytest.raises(UserError, match="wrong") as error:
            own.run_on_all(fails)
        return f"{error.value.exit_code}"

    assert in_threads(3, action)[0] == ["65"] * 3


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


def test_workers_on_one_gpu_are_refused_before_nccl_is_asked_even_where_sharing_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_one = [facts.model_copy(update={"device_uuid": "GPU-1"}) for facts in make_workers(2, device="H100")]
    monkeypatch.setattr(worker_module, "own_facts", lambda own, *_: on_one[own.rank])
    point = make_point(Path("/images"), workers=2, shared_devices=True)

    def verify(own: Group) -> None:
        with pytest.raises(UserError, match="NCCL takes each GPU once"):
            verify_group(own, point, {})

    in_threads(2, verify)


def test_the_first_worker_with_another_version_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([{"torch": "2.13.0", "driver": "1"}, {"torch": "2.13.0"}, {"torch": "2.12.1"}])
    monkeypatch.setattr(worker_module, "versions", lambda: next(told))
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


# Groups made and left in turn, as by the native twin. Without the last reference one in dozens never ends.
PROGRAM = """
import sys
from torch import distributed, nn, ones
from torch.distributed import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel
from unet_scaling.group.rendezvous import hold_until_exit

rank, port = map(int, sys.argv[1:])
store = TCPStore("127.0.0.1", port, 2, rank == 0)

def run(number):
    distributed.init_process_group("gloo", store=PrefixStore(str(number), store), rank=rank, world_size=2)
    replica = DistributedDataParallel(nn.Linear(4, 4))
    replica(ones(2, 4)).sum().backward()
    distributed.all_reduce(ones(4))
    hold_until_exit(distributed.group.WORLD)
    distributed.destroy_process_group()

for number in range(60):
    run(number)
"""


@pytest.mark.slow
def test_the_reducer_is_never_the_last_to_let_go_of_the_group() -> None:
    port = str(free_port())
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), port], cwd=PROJECT) for rank in (0, 1)
    ]
    try:
        assert [program.wait(timeout=240) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()


NAME = "mpich_shm_ae82f522_0"


def segment(folder: Path, name: str = NAME, age: float = 2 * LEAST_AGE_SECONDS) -> Path:
    path = folder / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.mark.parametrize(
    ("name", "age", "owner", "left"),
    [
        (NAME, 2 * LEAST_AGE_SECONDS, 0, False),
        (NAME, 0.0, 0, True),  # another worker may be making it
        ("another_0", 2 * LEAST_AGE_SECONDS, 0, True),
        (NAME, 2 * LEAST_AGE_SECONDS, 1, True),
    ],
)
def test_old_segments_of_mpi_that_nobody_has_mapped_are_removed_and_no_others(
    name: str, age: float, owner: int, left: bool, tmp_path: Path
) -> None:
    path = segment(tmp_path, name, age)
    if owner:
        if os.getuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, os.getuid() + owner, -1)
    remove_left_segments(tmp_path)
    assert path.exists() == left


def test_a_segment_in_use_stays(tmp_path: Path) -> None:
    path = segment(tmp_path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_left_segments(tmp_path)
    assert path.exists()
