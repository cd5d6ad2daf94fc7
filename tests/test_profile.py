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
from tests.studies import TINY_STUDY
from tests.test_data_main import run
from unet_scaling.data import cache, loading
from unet_scaling.data.batches import to_device
from unet_scaling.data.images import decode
from unet_scaling.profile import passes
from unet_scaling.profile.findings import MANY_SWITCHES_PER_SECOND
from unet_scaling.profile.loaders import counts_to_try, time_loader_counts
from unet_scaling.profile.page_cache import storage_bytes
from unet_scaling.profile.passes import time_loading
from unet_scaling.profile.profiler import Options, profile_study
from unet_scaling.profile.results import Profile
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
    load_by_decoding,
    load_from_cache,
)
from unet_scaling.profile.steps import cores_of_one_worker
from unet_scaling.profile.subject import open_subject
from unet_scaling.profile.trace import STEP
from unet_scaling.study.config import PROJECT, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study

CPU = torch.device("cpu")
QUICK = Options(samples=6, seconds=1)
DELAY = 0.02  # of each file of a pair


@pytest.fixture
def study(images: Path, tmp_path: Path) -> StudyConfig:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(workers="[1, 2]", data=images, epochs=1))
    return read_study(path)


def with_loading(study: StudyConfig, name: str) -> StudyConfig:
    return study.model_copy(update={"data": study.data | {"loading": name}})


def slow_down(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do something before each file is decoded, also in the loader processes, which are forked."""

    def slow(path: Path, content: bytes) -> Any:
        work()
        return decode(path, content)

    monkeypatch.setattr(loading, "decode", slow)


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_stages_load_what_training_loads(study: StudyConfig) -> None:
    with open_subject(study, 6) as subject:
        for indices in subject.batches:
            for source, staged in (
                (subject.decoded(), load_by_decoding(subject, indices, StageClock(CPU))),
                (subject.cached(), load_from_cache(subject, subject.cached(), indices, StageClock(CPU))),
            ):
                expected = to_device(*source.gather(indices), CPU, channels_last=True)
                for found, wanted in zip(staged, expected, strict=True):
                    assert torch.equal(found, wanted)
                    assert found.stride() == wanted.stride()


def test_a_delay_is_in_its_stage_and_in_the_undivided_call(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, lambda: time.sleep(DELAY))
    with open_subject(study, 4) as subject:
        found = time_loading(subject, "decode", CPU, seconds=60)
    seconds = {stage.stage: stage.seconds_per_image for stage in found.warm}
    assert list(seconds) == [READ, DECODE, CONVERT, RESIZE, COLLATE, TO_FLOATS]
    assert [seconds[name].samples for name in (READ, DECODE, COLLATE)] == [4, 4, 2]
    assert seconds[DECODE].low >= 2 * DELAY
    assert found.whole.low >= 2 * DELAY


@pytest.mark.timing
def test_the_stages_add_up_to_the_undivided_call(study: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, lambda: time.sleep(DELAY))
    with open_subject(study, 20) as subject, quiet_machine():
        found = time_loading(subject, "decode", CPU, seconds=60)
    seconds = {stage.stage: stage.seconds_per_image for stage in found.warm}
    assert found.median_sum() == pytest.approx(found.whole.median, rel=0.5)
    assert max(seconds, key=lambda name: seconds[name].median) == DECODE


def test_a_stage_that_does_not_exist_here_is_not_there(study: StudyConfig) -> None:
    with open_subject(study, 4) as subject:
        found = time_loading(subject, "cache", CPU, seconds=60)
    assert [stage.stage for stage in found.warm] == [GATHER, TO_FLOATS]
    assert all(stage.stage != TRANSFER for stage in found.warm)


def test_cold_files_come_from_storage(study: StudyConfig, images: Path) -> None:
    path = images / "images" / "000.png"
    with path.open("rb") as file:  # not by put_out, which is what is tested
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = storage_bytes()
    path.read_bytes()
    if storage_bytes() == before:
        pytest.skip("this file system keeps its files in memory")
    with open_subject(study, 4) as subject:
        for name in ("decode", "cache"):
            cold = time_loading(subject, name, CPU, seconds=60).cold
            assert cold is not None
            assert cold[0].stage in (READ, GATHER)


def test_files_that_stay_in_memory_are_not_called_cold(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "put_out", lambda paths: sum(path.stat().st_size for path in paths))
    with open_subject(study, 4) as subject:
        subject.cached().gather(subject.batches[0])
        assert time_loading(subject, "cache", CPU, seconds=60).cold is None


@pytest.mark.timing
def test_a_slow_decoder_is_named_and_turns_the_verdict(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_machine():
        fast = profile_study(with_loading(study, "cache"), QUICK)
        slow_down(monkeypatch, lambda: time.sleep(DELAY))
        slow = profile_study(with_loading(study, "decode"), QUICK)
    assert not fast.verdict.input_bound
    assert fast.verdict.loading_share < 0.5
    assert "input-bound" not in fast.verdict.advice
    assert slow.verdict.dominant_stage == DECODE
    assert slow.verdict.dominant_share > 0.5
    assert slow.steps.gather.low >= 2 * 2 * DELAY  # two images of two files
    assert slow.verdict.input_bound
    assert slow.verdict.advice.startswith("input-bound: loading a batch of 2 takes")
    assert "data.loading = 'cache' takes" in slow.verdict.advice
    # A sleeping loader needs no core, so loading ahead hides what it can.
    assert slow.verdict.hidden_share > 0
    assert Profile.model_validate_json(slow.model_dump_json()) == slow


@pytest.mark.parametrize("count", [0, 1, 4])
def test_loader_processes_are_real_and_counted(
    count: int, study: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked, they inherit what notes who decodes: this process itself, or as many others."""
    slow_down(monkeypatch, lambda: (tmp_path / f"process-{os.getpid()}").touch())
    with open_subject(with_loading(study, "decode"), 6) as subject:
        for noted in tmp_path.glob("process-*"):
            noted.unlink()
        (found,) = time_loader_counts(subject, [count], seconds=1)
    assert found.processes == count
    decoded_by = {int(noted.name.removeprefix("process-")) for noted in tmp_path.glob("process-*")}
    rounds = found.images_per_second.samples  # each starts processes of its own
    assert len(decoded_by) == max(1, count * rounds)
    assert (os.getpid() in decoded_by) == (count == 0)


@pytest.mark.timing
def test_loader_processes_load_side_by_side(study: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, lambda: time.sleep(DELAY))
    with open_subject(with_loading(study, "decode"), 6) as subject, quiet_machine():
        alone, four = time_loader_counts(subject, [0, 4], seconds=2)
    assert alone.images_per_second.high <= 1 / (2 * DELAY)
    assert four.images_per_second.median > 1.5 * alone.images_per_second.median
    # Forked, they inherit the delay; twice, for batches may lie ready when the clock starts.
    assert four.images_per_second.median < 2 * 4 / (2 * DELAY)


@pytest.mark.timing
def test_processes_that_share_a_core_are_seen_to_lose_it(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_machine():
        with open_subject(with_loading(study, "decode"), 6) as subject, cores_of_one_worker(1):
            slow_down(monkeypatch, lambda: busy(DELAY))
            _, crowded = time_loader_counts(subject, [0, 2], seconds=2)
        with open_subject(with_loading(study, "decode"), 6) as subject, cores_of_one_worker(1):
            slow_down(monkeypatch, lambda: time.sleep(5 * DELAY))
            _, idle = time_loader_counts(subject, [0, 2], seconds=2)
    assert crowded.switches_per_second is not None
    assert idle.switches_per_second is not None
    assert crowded.switches_per_second > MANY_SWITCHES_PER_SECOND
    # Whatever else wants that core takes it from both.
    assert crowded.switches_per_second > 2 * idle.switches_per_second


def test_small_shared_memory_limits_the_loader_processes(
    study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_subject(study, 4) as subject:
        assert counts_to_try(subject, 6, ()) == ([0, 1, 2, 3, 4, 6], [])
        assert counts_to_try(subject, 16, ())[0] == [0, 1, 2, 3, 4, 8, 16]
        assert counts_to_try(subject, 2, (9, 3))[0] == [0, 3, 9]
        batch_bytes = 2 * 32 * (32 + 32 // 8)
        free = replace_free(batch_bytes * 3 * 2 * 2)
        monkeypatch.setattr("shutil.disk_usage", free)
        counts, notes = counts_to_try(subject, 6, ())
    assert counts == [0, 1, 2]
    assert "room for the batches of 2 loader processes" in notes[0]


def replace_free(free: int) -> Callable[[Path], Any]:
    class Usage:
        def __init__(self) -> None:
            self.free = free

    return lambda path: Usage()


def test_images_that_are_not_decoded_yet_leave_no_cache_behind(tmp_path: Path, study: StudyConfig) -> None:
    root = cache.default_cache_root()
    before = set(root.glob("*")) | set(root.glob(".*"))
    own = study.model_copy(update={"data": study.data | {"image_height": 24}})
    with open_subject(own, 4) as subject:
        assert subject.cached().images.shape == (4, 24, 32, 1)
        assert "4 of its 47 images" in subject.notes[0]
    assert set(root.glob("*")) | set(root.glob(".*")) == before
    point = study.configs()[0]
    with open_subject(study, 4) as subject:
        place = cache.build_cache(subject.manifest, subject.folder, point.data, tmp_path / "cache")
    assert place.is_dir()


def test_an_axis_is_answered_by_its_first_value_and_a_note(study: StudyConfig) -> None:
    sizes = study.model_copy(update={"data": study.data | {"image_height": [24, 48]}})
    with open_subject(sizes, 2) as subject:
        assert subject.config.data.image_height == 24
        assert any("data.image_height is an axis: profiled is 24, not 48" in note for note in subject.notes)


def test_the_command_prints_writes_json_and_a_trace_with_the_labels(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(workers="[1]", data=images, epochs=1))
    quick = ("--samples", 4, "--seconds", 1, "--processes", "1", "--workers-per-host", 1)
    files = ("--json", tmp_path / "p.json", "--trace", tmp_path / "t.json")
    assert run("profile", path, "--set", "data.loading=decode", *quick, *files, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("decode, warm", "images/s", "dominant stage:", "advice:"))
    found = Profile.model_validate_json((tmp_path / "p.json").read_text())
    assert (found.study, found.loading, found.batch) == ("tiny", "decode", 2)
    assert [count.processes for count in found.loader_counts] == [0, 1]
    assert found.steps.measured_batch <= found.steps.batch == 2
    events = {event.get("name") for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {READ, DECODE, CONVERT, RESIZE, COLLATE, GATHER, TO_FLOATS, STEP} <= events


def test_a_missing_manifest_names_the_command_that_makes_it(tmp_path: Path, study: StudyConfig) -> None:
    folder = make_folder(tmp_path / "unchecked")
    elsewhere = study.model_copy(update={"data": study.data | {"folder": str(folder)}})
    with pytest.raises(UserError) as caught:
        profile_study(elsewhere, QUICK)
    assert refused(caught, 65, folder / "manifest.json", "python -m unet_scaling.data check")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (replace(QUICK, json=Path("/no such folder/p.json")), "--json /no such folder/p.json"),
        (replace(QUICK, trace=Path("/")), "--trace /"),
        (replace(QUICK, workers_per_host=10_000), "--workers-per-host: found 10000"),
    ],
)
def test_what_cannot_be_met_is_refused_before_any_work(
    study: StudyConfig, options: Options, part: str
) -> None:
    with pytest.raises(UserError) as caught:
        profile_study(study, options)
    assert refused(caught, 2, part)


def test_the_command_explains_itself_without_importing_torch() -> None:
    program = "import sys; sys.argv = ['data', 'profile', '--help']\n"
    program += "from unet_scaling.data.__main__ import main\n"
    program += "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "--workers-per-host" in done.stdout
    assert done.stdout.endswith("False\n")


def test_an_option_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("profile", "x.toml", "--processes", "few", monkeypatch=monkeypatch) == 2
    assert "a whole number is expected" in capsys.readouterr().err
    assert run("profile", "x.toml", "--samples", "0", monkeypatch=monkeypatch) == 2
    assert "from 1 is expected" in capsys.readouterr().err
