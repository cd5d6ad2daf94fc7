"""Every way of loading brings the same batches, and trains the same."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults import FLIPPED_VARIABLE, STEPS, Fault, attempt, checkpoints, fault_point
from tests.studies import make_images, make_point
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_BUG, UserError
from unet_scaling.data.batches import ImageBatch, ImageData, Prefetcher
from unet_scaling.data.folder import read_manifest
from unet_scaling.group.group import single_worker
from unet_scaling.measure.epoch_meter import NO_CLOCK
from unet_scaling.study.config import PROJECT
from unet_scaling.task.task import UNetTask

# Signalled in the first epoch, which goes on; over in the middle of the second.
STOPPED_WHILE_LOADING = """
import os, signal, sys
from pathlib import Path
from tests.studies import make_point
from unet_scaling.task.task import UNetTask
from unet_scaling.group.group import single_worker
from unet_scaling.group.identity import STOP_SIGNALS
from unet_scaling.measure.epoch_meter import NO_CLOCK

if __name__ == "__main__":
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    point = make_point(Path(sys.argv[1]), loading="decode", loader_workers=2)
    data = UNetTask(point).load_data(single_worker())
    steps = data.steps(0, NO_CLOCK)
    next(next(steps))
    for number in STOP_SIGNALS:
        os.killpg(0, number)
    print(1 + sum(1 for step in steps for _ in step))
    next(next(data.steps(1, NO_CLOCK)))
"""


def batches(images: Path, **options: Any) -> list[ImageBatch]:
    """All batches of two epochs; the first epoch is begun once before, as the warm-up step does."""
    data = UNetTask(make_point(images, accumulate=2, **options)).load_data(single_worker())
    list(next(data.steps(0, NO_CLOCK)))
    return [batch for epoch in (0, 1) for step in data.steps(epoch, NO_CLOCK) for batch in step]


COLOURS: dict[str, Any] = {"channels": 3, "intensity": "image", "image_height": 24, "image_width": 40}


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ({"loading": "decode"}, {}),
        ({"loading": "decode"}, COLOURS),
        ({"loading": "decode", "loader_workers": 2}, {}),
        ({"loading": "device"}, {}),
    ],
)
def test_every_way_of_loading_brings_the_same_batches(
    way: dict[str, Any], options: dict[str, Any], images: Path
) -> None:
    expected = batches(images, **options)
    random = torch.get_rng_state()
    found = batches(images, **options, **way)
    assert torch.equal(torch.get_rng_state(), random), "dropout would differ"
    assert len(found) == len(expected) == 2 * 2 * 9
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.masks, theirs.masks)
        assert ours.images.stride() == theirs.images.stride()


def test_an_image_that_cannot_be_decoded_is_bad_data_in_any_process(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", count=6)
    data = UNetTask(make_point(folder, loading="decode")).load_data(single_worker())
    (folder / "images" / "003.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"003\.png") as caught:
        list(Prefetcher(data.source, 1).batches(np.array([[1, 2], [3, 4]])))
    assert caught.value.exit_code == EXIT_BAD_DATA


def change(path: Path) -> None:
    """The same name, size and times; only the content differs."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("part", ["images/003.png", "masks/003.png", "manifest.json"])
def test_decoding_refuses_a_changed_file_before_training(part: str, tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", count=6)
    if part == "manifest.json":
        digest = read_manifest(folder / part).pairs[3].image.sha256
        (folder / part).write_text((folder / part).read_text().replace(digest, "0" * 64))
        (folder / "manifest.json.sha256").unlink()
    else:
        change(folder / part)
    with pytest.raises(UserError, match=r"003\.png: has changed") as caught:
        UNetTask(make_point(folder, loading="decode")).load_data(single_worker())
    assert caught.value.exit_code == EXIT_BAD_DATA


@pytest.mark.parametrize("loading", ["decode", "cache"])
def test_files_that_change_while_a_run_lasts_are_named(
    loading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the times of their last change, which no program sets back, and by their content at the end."""
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path / "cache"))
    folder = make_images(tmp_path / "images", count=6)
    verification = UNetTask(make_point(folder, loading=loading)).load_data(single_worker()).verification
    verification.verify_changed()
    place = folder if loading == "decode" else tmp_path / "cache"
    changed = next(place.rglob("003.png" if loading == "decode" else "images.npy"))
    changed.touch()
    verification.verify_changed()
    change(changed)
    for verify in (verification.verify_changed, verification.verify_all):
        with pytest.raises(UserError, match=f"{changed}: has changed") as caught:
            verify()
        assert caught.value.exit_code == EXIT_BAD_DATA


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageData:
    """Decoded images of a run that has begun."""
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path / "cache"))
    folder = make_images(tmp_path / "images", count=12)
    return UNetTask(make_point(folder, loading="cache")).load_data(single_worker())


@pytest.mark.parametrize(("fault", "code"), [("cut", EXIT_BAD_DATA), ("stale", EXIT_BUG)])
def test_decoded_images_that_are_cut_or_lost_while_in_use_end_in_a_sentence(
    fault: str, code: int, cached: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untreated, the kernel ends the worker by a bus error; NFS forgets an open file that is removed."""
    steps = cached.steps(0, NO_CLOCK)
    next(next(steps))

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        if fault == "cut":
            os.truncate(next((tmp_path / "cache").rglob("images.npy")), 200)
        else:
            patch.setattr(os, "fstat", stale)
        with pytest.raises(UserError, match=r"images\.npy: ") as caught:
            next(next(steps))
    assert caught.value.exit_code == code


@pytest.mark.verify
def test_a_run_whose_images_changed_is_not_complete_and_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    """The change is made where all files were verified and no checkpoint follows: at the last step."""
    folder = make_images(tmp_path / "images", count=47)
    run = tmp_path / "run"
    point = fault_point(folder, "pytorch_native", loading="decode", checkpoint_minutes=1e-6)
    picture = folder / "images" / "003.png"
    fault = Fault("flip a file", 3 * STEPS, every_step_is_safe=True, others="slow removal")
    changed = attempt(run, point, fault, variable=(FLIPPED_VARIABLE, str(picture)))
    assert set(changed.codes.values()) == {EXIT_BAD_DATA}
    assert changed.state.state == "failed"
    assert f"{picture}: has changed" in changed.state.reason
    assert checkpoints(run) == []


def test_a_signal_to_all_processes_of_a_job_step_leaves_the_loaders_which_keep_no_program(
    images: Path, tmp_path: Path
) -> None:
    """As srun sends it: to the worker, which stops at its next safe point, and to what it started."""
    program = tmp_path / "program.py"
    program.write_text(STOPPED_WHILE_LOADING)
    done = subprocess.run(
        [sys.executable, str(program), str(images)], env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, start_new_session=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "19\n", "")


def test_processes_without_anything_to_decode_are_refused() -> None:
    with pytest.raises(ValueError, match="loader_workers: found 2"):
        make_point(Path("/images"), loader_workers=2)
