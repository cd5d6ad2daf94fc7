"""The profile of the input, on real images with real loader processes and injected delays."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data_folders import make_folder, refused
from tests.machine import quiet_machine
from tests.noted_images import NotedImages
from tests.studies import TINY_STUDY
from unet_scaling.data import cache, decoding
from unet_scaling.data.batches import to_device
from unet_scaling.data.images import decode
from unet_scaling.profile.__main__ import main
from unet_scaling.profile.profiler import ProfileOptions, profile_study
from unet_scaling.profile.stages import (
    COLLATE,
    CONVERT,
    DECODE,
    GATHER,
    READ,
    RESIZE,
    TO_FLOATS,
    TRANSFER,
    StageClock,
    load_batch,
    time_stages,
)
from unet_scaling.profile.steps import cores_of_one_worker, plain_step, time_steps
from unet_scaling.profile.subject import Subject, open_subject
from unet_scaling.profile.throughput import counts_to_try, measure_throughput
from unet_scaling.study.config import PROJECT, StudyConfig
from unet_scaling.study.errors import UserError, run_program
from unet_scaling.study.study_file import read_study

CPU = torch.device("cpu")
QUICK = ProfileOptions(samples=6, seconds=1)
DELAY_SECONDS = 0.02  # of each image


def note_processes(subject: Subject, notes: Path, delay_seconds: float = 0.0) -> None:
    vars(subject)["decoded"] = NotedImages(subject.decoded, notes, delay_seconds)


@pytest.fixture
def study(images: Path, tmp_path: Path) -> StudyConfig:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(workers="[1, 2]", data=images, epochs=1))
    return read_study(path)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "processes"
    folder.mkdir()
    return folder


def with_loading(study: StudyConfig, name: str) -> StudyConfig:
    return study.model_copy(update={"data": study.data | {"loading": name}})


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the program; what it prints is captured by the test."""
    monkeypatch.setattr(sys, "argv", ["profile", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def slow_down_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleep before each file of a pair is decoded in this process."""

    def slow(path: Path, content: bytes, mask: bool = False) -> Any:
        time.sleep(DELAY_SECONDS / 2)
        return decode(path, content, mask)

    monkeypatch.setattr(decoding, "decode", slow)


def test_the_stages_load_what_training_loads(study: StudyConfig) -> None:
    with open_subject(study, 6) as subject:
        for indices in subject.batches:
            for source, staged in (
                (subject.decoded, load_batch(subject, "decode", indices, StageClock(CPU))),
                (subject.cached, load_batch(subject, "cache", indices, StageClock(CPU))),
            ):
                expected = to_device(*source.gather(indices), CPU, channels_last=True)
                for found, wanted in zip(staged, expected, strict=True):
                    assert torch.equal(found, wanted)
                    assert found.stride() == wanted.stride()


def test_a_delay_is_in_its_stage(study: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down_decoding(monkeypatch)
    with open_subject(study, 4) as subject:
        stages = time_stages(subject, "decode", CPU, seconds=60)
    assert list(stages) == [READ, DECODE, CONVERT, RESIZE, COLLATE, TO_FLOATS]
    assert [stages[name].count for name in (READ, DECODE, COLLATE)] == [4, 4, 2]
    assert stages[DECODE].low >= DELAY_SECONDS


@pytest.mark.timing
def test_the_stages_add_up_to_the_undivided_call(study: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down_decoding(monkeypatch)
    with open_subject(study, 20) as subject, quiet_machine():
        stages = time_stages(subject, "decode", CPU, seconds=60)
        begin = time.perf_counter()
        for indices in subject.batches:
            to_device(*subject.decoded.gather(indices), CPU, channels_last=True)
        undivided = (time.perf_counter() - begin) / subject.batches.size
    medians = {name: samples.median for name, samples in stages.items()}
    assert sum(medians.values()) == pytest.approx(undivided, rel=0.5)
    assert max(medians, key=lambda name: medians[name]) == DECODE


def test_a_stage_that_does_not_exist_here_is_not_there(study: StudyConfig) -> None:
    with open_subject(study, 4) as subject:
        stages = time_stages(subject, "cache", CPU, seconds=60)
    assert list(stages) == [GATHER, TO_FLOATS]
    assert TRANSFER not in stages


@pytest.mark.timing
def test_a_slow_decoder_is_named_and_turns_the_verdict(
    study: StudyConfig, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_machine():
        fast = profile_study(with_loading(study, "cache"), QUICK)
        slow_down_decoding(monkeypatch)
        # In loader processes too, which do not inherit the above.
        slow_source = property(lambda own: NotedImages(own.decoded, notes, DELAY_SECONDS))
        monkeypatch.setattr(Subject, "source", slow_source)
        slow = profile_study(with_loading(study, "decode"), QUICK)
    assert not fast.conclusions.input_bound
    assert fast.conclusions.loading_share < 0.5
    assert "input-bound" not in fast.conclusions.advice
    assert slow.conclusions.dominant_stage == DECODE
    assert slow.conclusions.dominant_share > 0.5
    assert slow.steps.data_wait.low >= 2 * DELAY_SECONDS  # a batch of two images
    assert slow.conclusions.input_bound
    assert slow.conclusions.advice.startswith("input-bound: loading a batch of 2 takes")
    assert "data.loading = 'cache' takes" in slow.conclusions.advice
    # A sleeping loader process needs no core, so prefetch hides what it can.
    assert slow.conclusions.hidden_share > 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_loader_processes_are_real_and_counted(count: int, study: StudyConfig, notes: Path) -> None:
    with open_subject(with_loading(study, "decode"), 6) as subject:
        note_processes(subject, notes)
        (throughput,) = measure_throughput(subject, [count], seconds=1)
    assert throughput.processes == count
    loaded_by = {int(note.name) for note in notes.iterdir()}
    # Each round starts processes of its own.
    assert len(loaded_by) == max(1, count * throughput.images_per_second.count)
    assert (os.getpid() in loaded_by) == (count == 0)


def test_loader_processes_of_a_cache_map_its_files(study: StudyConfig) -> None:
    with open_subject(study, 6) as subject:
        (throughput,) = measure_throughput(subject, [1], seconds=0.1)
    assert throughput.images_per_second.median > 0


@pytest.mark.timing
def test_loader_processes_load_side_by_side(study: StudyConfig, notes: Path) -> None:
    with open_subject(with_loading(study, "decode"), 6) as subject:
        note_processes(subject, notes, DELAY_SECONDS)
        measure_throughput(subject, [1], seconds=0.1)  # the fork server imports torch before it is timed
        with quiet_machine():
            alone, four = measure_throughput(subject, [0, 4], seconds=4)
    assert alone.images_per_second.high <= 1 / DELAY_SECONDS
    assert four.images_per_second.median > 1.5 * alone.images_per_second.median
    # Twice, for batches may lie ready when the clock starts.
    assert four.images_per_second.median < 2 * 4 / DELAY_SECONDS


def test_prefetched_steps_stay_on_the_cores_of_one_worker(study: StudyConfig, notes: Path) -> None:
    own_cores = sorted(os.sched_getaffinity(0))
    with open_subject(with_loading(study, "decode"), 6) as subject, cores_of_one_worker(1):
        note_processes(subject, notes)
        steps = time_steps(subject, plain_step(subject.config, CPU), CPU, lambda _: 1, seconds=0.1)
    assert (steps.loader_processes, steps.threads) == (1, 1)
    assert steps.data_wait.median + steps.compute.median <= 2 * steps.in_line.high
    cores = [json.loads(note.read_text()) for note in notes.iterdir()]
    assert cores == [own_cores[:1], own_cores[:1]]  # of this process, and of the loader process
    assert sorted(os.sched_getaffinity(0)) == own_cores


def test_small_shared_memory_limits_the_loader_processes(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_subject(study, 4) as subject:
        assert counts_to_try(subject, 2) == ([0, 1, 2], [])
        assert counts_to_try(subject, 6) == ([0, 1, 2, 3, 4, 6], [])
        assert counts_to_try(subject, 80)[0] == [0, 1, 2, 3, 4, 8, 16, 32]
        batch_bytes = 2 * 32 * (32 + 32 // 8)
        monkeypatch.setattr("shutil.disk_usage", with_free_bytes(batch_bytes * 3 * 2 * 2))
        counts, notes = counts_to_try(subject, 6)
    assert counts == [0, 1, 2]
    assert "room for the batches of 2 loader processes" in notes[0]


def with_free_bytes(free: int) -> Callable[[Path], Any]:
    class Usage:
        def __init__(self) -> None:
            self.free = free

    return lambda path: Usage()


def test_the_sample_leaves_no_cache_behind(study: StudyConfig) -> None:
    root = cache.default_cache_root()
    before = set(root.iterdir()) if root.is_dir() else set()
    with open_subject(study, 4) as subject:
        assert subject.cached.images.shape == (4, 32, 32, 1)
    assert set(root.iterdir()) == before


def test_an_axis_is_answered_by_its_first_value_and_a_note(study: StudyConfig) -> None:
    sizes = study.model_copy(update={"data": study.data | {"image_height": [24, 48]}})
    with open_subject(sizes, 2) as subject:
        assert subject.config.data.image_height == 24
        assert any("data.image_height is an axis: profiled is 24, not 48" in note for note in subject.notes)


def test_the_command_prints_tables_and_advice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(workers="[1]", data=images, epochs=1))
    quick = ("--samples", 4, "--seconds", 1, "--workers-per-host", 1)
    assert run(path, "--set", "data.loading=decode", *quick, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("sum of medians", "images/s", "dominant stage:", "advice:"))
    assert "tiny: 2 images a batch" in printed
    assert "data.loading = 'decode'" in printed
    assert all(stage in printed for stage in (READ, DECODE, CONVERT, RESIZE, COLLATE, GATHER, TO_FLOATS))


def test_a_missing_manifest_names_the_command_that_makes_it(tmp_path: Path, study: StudyConfig) -> None:
    folder = make_folder(tmp_path / "unchecked")
    elsewhere = study.model_copy(update={"data": study.data | {"folder": str(folder)}})
    with pytest.raises(UserError) as caught:
        profile_study(elsewhere, QUICK)
    assert refused(caught, 65, folder / "manifest.json", ".venv/bin/unet-scaling data check")


def test_more_workers_than_cores_are_refused_before_any_work(study: StudyConfig) -> None:
    with pytest.raises(UserError) as caught:
        profile_study(study, replace(QUICK, workers_per_host=10_000))
    assert refused(caught, 2, "--workers-per-host: found 10000")


def test_the_command_explains_itself_without_importing_torch() -> None:
    program = "import sys; sys.argv = ['profile', '--help']\n"
    program += "from unet_scaling.profile.__main__ import main\n"
    program += "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "--workers-per-host" in done.stdout
    assert done.stdout.endswith("False\n")


def test_an_option_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("few", "0"):
        assert run("x.toml", "--samples", value, monkeypatch=monkeypatch) == 2
        assert f"found '{value}'; an integer of at least 1 is expected" in capsys.readouterr().err
