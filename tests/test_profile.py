"""The profile of the input, on real images with real loader processes and injected delays, and its advice."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from slurm.commands import check
from slurm.launch.memory import describe_memory, memory_share
from tests.data_folders import make_folder, refused
from tests.noted_images import NotedImages
from tests.studies import make_point, tiny_study
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.data import images as module
from unet_scaling.data.batches import to_device
from unet_scaling.data.pixels import decode
from unet_scaling.format.step_memory import StepMemory
from unet_scaling.group.identity import KEEP_MEMORY
from unet_scaling.measure.epoch_meter import PartClock
from unet_scaling.profile.__main__ import main
from unet_scaling.profile.findings import Samples, Steps
from unet_scaling.profile.measure import (
    Subject,
    cores_of_one_worker,
    counts_to_try,
    load_batch,
    open_subject,
    plain_step,
    profile_study,
    time_stages,
    time_steps,
)
from unet_scaling.profile.step_memory import GROUPS
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.study_file import read_study

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"samples": 6, "seconds": 1}
DELAY_SECONDS = 0.02  # of each image


def note_processes(subject: Subject, notes: Path) -> None:
    vars(subject)["decoded"] = NotedImages(subject.decoded, notes)


@pytest.fixture
def study(images: Path, tmp_path: Path) -> StudyConfig:
    return read_study(tiny_study(tmp_path, images, epochs=1))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "processes"
    folder.mkdir()
    return folder


def with_data(study: StudyConfig, **options: object) -> StudyConfig:
    return study.model_copy(update={"data": study.data | options})


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the program; what it prints is captured by the test."""
    monkeypatch.setattr(sys, "argv", ["profile", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_stages_load_what_training_loads_and_a_delay_is_in_its_own(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_subject(study, 4) as subject:
        for indices in subject.batches:
            for source, staged in (
                (subject.decoded, load_batch(subject, "decode", indices, PartClock(CPU))),
                (subject.cached, load_batch(subject, "cache", indices, PartClock(CPU))),
            ):
                expected = to_device(*source.gather(indices), CPU, channels_last=True)
                for found, wanted in zip(staged, expected, strict=True):
                    assert torch.equal(found, wanted)
                    assert found.stride() == wanted.stride()
        # A stage that does not exist here, such as a transfer to this CPU, is not there.
        assert list(time_stages(subject, "cache", CPU, seconds=60)) == ["gather", "to floats"]

        def slow(path: Path, content: bytes, mask: bool = False) -> Any:
            time.sleep(DELAY_SECONDS / 2)  # for each file of a pair
            return decode(path, content, mask)

        monkeypatch.setattr(module, "decode", slow)
        stages = time_stages(subject, "decode", CPU, seconds=60)
    assert list(stages) == ["read", "decode", "convert", "resize", "collate", "to floats"]
    assert [stages[name].count for name in ("read", "decode", "collate")] == [4, 4, 2]
    assert stages["decode"].low >= DELAY_SECONDS


def test_loader_processes_are_real_and_on_the_cores_of_one_worker(study: StudyConfig, notes: Path) -> None:
    own_cores = sorted(os.sched_getaffinity(0))
    with open_subject(with_data(study, loading="decode"), 6) as subject, cores_of_one_worker(1):
        note_processes(subject, notes)
        steps = time_steps(subject, plain_step(subject.config, CPU), CPU, [1, 2], seconds=9)
    assert (list(steps.prefetched), steps.threads) == ([1, 2], 1)
    cores = [json.loads(note.read_text()) for note in notes.iterdir()]
    assert cores == [own_cores[:1]] * 4  # of this process, and of each loader process
    assert sorted(os.sched_getaffinity(0)) == own_cores


def test_a_profile_takes_a_sample_leaves_no_cache_and_fits_into_shared_memory(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = module.default_cache_root()
    before = set(root.iterdir()) if root.is_dir() else set()
    with open_subject(study, 4) as subject:
        assert counts_to_try(subject, 7) == ([], [])  # of the cache
    with open_subject(with_data(study, image_height=[32, 48], loading="decode"), 4) as subject:
        assert subject.cached.images.shape == (4, 32, 32, 1)
        assert any("data.image_height" in note for note in subject.notes)
        assert counts_to_try(subject, 1) == ([1], [])
        assert counts_to_try(subject, 7) == ([1, 2, 4, 6], [])  # one core is left to the training
        assert counts_to_try(subject, 80)[0] == [1, 2, 4, 8, 16, 32]
        of_two_processes = 2 * 32 * (32 + 32 // 8) * 3 * 2 * 2
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=of_two_processes))
        counts, notes = counts_to_try(subject, 7)
    assert (counts, len(notes)) == ([1, 2], 1)
    assert set(root.iterdir()) == before


def test_the_command_prints_tables_and_advice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_study(tmp_path, images, [1], epochs=1)
    quick = ("--samples", 4, "--seconds", 1, "--workers-per-host", 1)
    assert run(path, "--set", "data.loading=decode", *quick, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    stages = ("read", "decode", "convert", "resize", "collate", "gather", "to floats")
    assert all(
        words in printed for words in (*stages, "loader process", "advice:", "data.loading = 'decode'")
    )
    for value in ("few", "0"):
        assert run("x.toml", "--samples", value, monkeypatch=monkeypatch) == 2
        assert f"found '{value}'" in capsys.readouterr().err


def test_what_cannot_be_profiled_is_refused_before_any_work(tmp_path: Path, study: StudyConfig) -> None:
    folder = make_folder(tmp_path / "unchecked")
    with pytest.raises(UserError) as caught:
        profile_study(with_data(study, folder=str(folder)), **QUICK)
    assert refused(caught, 65, folder / "manifest.json", ".venv/bin/unet-scaling data check")
    with pytest.raises(UserError) as caught:
        profile_study(study, workers_per_host=10_000)
    assert refused(caught, 2, "--workers-per-host: found 10000")


def samples(median: float, width: float = 0.02) -> Samples:
    return Samples(median=median, low=median * (1 - width), high=median * (1 + width), count=3)


def steps(data_wait: float, compute: float, prefetched: dict[int, float]) -> Steps:
    return Steps(
        device="cpu",
        threads=1,
        data_wait=samples(data_wait),
        host_to_device=samples(0.01),
        compute=samples(compute),
        in_line=samples(data_wait + 0.01 + compute),
        prefetched={processes: samples(seconds) for processes, seconds in prefetched.items()},
    )


@pytest.mark.parametrize(
    ("data_wait", "compute", "prefetched", "recommended", "bound"),
    [
        (0.1, 0.2, {1: 0.3, 2: 0.22, 4: 0.215}, 2, False),  # the fewest of those that gain as much
        (0.1, 0.2, {1: 0.31, 2: 0.32}, 0, False),
        (0.001, 0.2, {1: 0.15}, 0, False),  # too little to hide: a shorter step is noise
        (0.2, 0.1, {1: 0.2}, 1, True),
        (0.2, 0.1, {}, 0, True),  # shared memory has room for none
    ],
)
def test_loader_processes_are_recommended_where_they_shorten_the_step(
    data_wait: float, compute: float, prefetched: dict[int, float], recommended: int, bound: bool
) -> None:
    measured = steps(data_wait, compute, prefetched)
    assert (measured.recommended_processes, measured.input_bound) == (recommended, bound)
    assert Samples.of(list(range(101))) == Samples(median=50, low=5, high=95, count=101)


def step_memory(config: RunConfig, share: float) -> StepMemory:
    """What a process of its own finds, as `check --memory` starts it."""
    command = [sys.executable, "-m", "unet_scaling.profile.step_memory", str(share)]
    done = subprocess.run(
        command, cwd=PROJECT, env=KEEP_MEMORY | os.environ, input=config.model_dump_json(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return StepMemory.model_validate_json(done.stdout)


# Takes one step of a batch, in a process of its own, and prints its peak.
ONE_STEP = """import sys
from unet_scaling.profile import step_memory
config = step_memory.RunConfig.model_validate_json(sys.stdin.read())
step_memory.TRIAL_SECONDS = 0
first = step_memory.Trials.take
step_memory.Trials.take = lambda trials, _: first(trials, int(sys.argv[1]))
print(step_memory.measure_step_memory(config, 1.0).trials[0].peak_bytes)"""


@pytest.mark.slow
def test_the_largest_batch_that_is_foretold_fits_and_twice_as_many_do_not(tmp_path: Path) -> None:
    config = make_point(tmp_path, image_height=64, image_width=64, width=8, depth=4)
    found = step_memory(config, 1e9 / psutil.virtual_memory().available)
    assert found.largest_batch > found.trials[-1].batch > 1
    assert found.weight_bytes > found.gradient_bytes > 4 * 100_000
    assert found.optimizer_bytes >= 2 * found.gradient_bytes
    for batch, fits in ((found.largest_batch, True), (2 * found.largest_batch, False)):
        done = subprocess.run(
            [sys.executable, "-c", ONE_STEP, str(batch)], cwd=PROJECT, env=KEEP_MEMORY | os.environ,
            input=config.model_dump_json(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert (int(done.stdout) <= found.room_bytes) == fits


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 1 GB, of version 1 or 2; only root may make one."""
    for root, name in ((GROUPS / "memory", "memory.limit_in_bytes"), (GROUPS, "memory.max")):
        group = root / f"step_memory_{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / name).write_text(str(10**9))
                yield group
                return
            finally:
                group.rmdir()
    pytest.skip("no control group for memory can be made here")


def test_a_step_may_take_what_the_control_group_of_a_job_leaves(tmp_path: Path, small_group: Path) -> None:
    config = make_point(tmp_path, image_height=64, image_width=64, width=8, depth=4)
    enter = f'echo $$ >{small_group}/cgroup.procs; exec "$@"'
    command = [sys.executable, "-m", "unet_scaling.profile.step_memory", "0.9"]
    done = subprocess.run(
        ["bash", "-c", enter, "enter", *command], cwd=PROJECT, input=config.model_dump_json(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert StepMemory.model_validate_json(done.stdout).room_bytes == pytest.approx(0.9 * 0.9e9, rel=0.001)


def refused_memory(config: RunConfig) -> str:
    with pytest.raises(UserError) as caught:
        list(describe_memory([config]))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_one_image_that_no_memory_holds_is_refused_in_a_line(tmp_path: Path) -> None:
    """Also where the kernel ends the process that tries it."""
    huge = make_point(tmp_path, image_height=8192, image_width=8192, width=512, depth=1)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.MonkeyPatch.context() as patch:
        resource.setrlimit(resource.RLIMIT_AS, (3 * 10**10, limits[1]))
        try:
            assert refused_memory(huge).startswith("--memory: one image does not fit the ")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        killed = tmp_path / "python"
        killed.write_text("#!/bin/sh\nkill -KILL $$\n")
        killed.chmod(0o755)
        patch.setattr(sys, "executable", str(killed))
        assert "SIGKILL" in refused_memory(huge)


def test_workers_that_share_cores_share_the_memory(tmp_path: Path) -> None:
    """Without training.shared_devices, no more workers are on a machine than it has cores."""
    cores = len(os.sched_getaffinity(0))
    both = [make_point(tmp_path, workers=4 * cores, shared_devices=shared) for shared in (False, True)]
    assert [memory_share(each) for each in both] == [1 / cores, 1 / (4 * cores)]


def test_emulated_workers_have_no_step_to_measure(tmp_path: Path) -> None:
    emulated = make_point(tmp_path, compute="profile.toml", epochs=2)
    assert "emulated workers take no step; remove [emulation]" in refused_memory(emulated)


def test_check_of_memory_needs_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["check", "--memory"])
    with pytest.raises(UserError, match=r"--memory: name a study, as in .* check STUDY.toml --memory"):
        check.main()


def test_check_says_what_a_step_needs_and_whether_its_batch_fits(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tiny_study(tmp_path, images, epochs=2)
    monkeypatch.setattr("sys.argv", ["check", str(file), "--only-files", "--memory"])
    assert check.main() == 0
    told = capfd.readouterr().out
    assert re.search(r"memory of a worker on cpu, 32 x 32: weights .* MB, gradients .* for each image", told)
    assert re.search(r"a step takes .* MB with 1, .*; training.batch_per_worker = \d+ fits", told)
