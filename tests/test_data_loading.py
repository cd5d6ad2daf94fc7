"""Every way of loading brings the same batches, and trains the same."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.scenes import alone
from tests.studies import make_images, make_point, train
from unet_scaling.config import PROJECT
from unet_scaling.data.ahead import DecodingAhead
from unet_scaling.data.loader import Batch, load_data
from unet_scaling.errors import EXIT_BAD_DATA, UserError
from unet_scaling.phases import NO_CLOCK

STOPPED_WHILE_LOADING = """
import os, signal, sys
from benchmarks.scenes import alone
from pathlib import Path
from tests.studies import make_point
from unet_scaling.data.loader import load_data
from unet_scaling.interruption import SIGNALS
from unet_scaling.phases import NO_CLOCK

if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    point = make_point(Path(sys.argv[1]), loading="decode", loader_workers=2)
    steps = load_data(point, alone()).steps(0, NO_CLOCK)
    next(steps)
    for number in SIGNALS:
        os.killpg(0, number)
    print(1 + sum(1 for _ in steps))
"""

ENDED_WHILE_LOADING = """
import sys
from benchmarks.scenes import alone
from pathlib import Path
from tests.studies import make_point
from unet_scaling.data.loader import load_data
from unet_scaling.phases import NO_CLOCK

if __name__ == "__main__":
    point = make_point(Path(sys.argv[1]), loading="decode", loader_workers=2)
    steps = load_data(point, alone()).steps(0, NO_CLOCK)
    next(steps)
    print("over")
"""


def batches(images: Path, **options: Any) -> list[Batch]:
    """All batches of two epochs; the first epoch is begun once before, as a rehearsal does."""
    data = load_data(make_point(images, accumulate=2, **options), alone())
    next(data.steps(0, NO_CLOCK))
    return [batch for epoch in (0, 1) for step in data.steps(epoch, NO_CLOCK) for batch in step]


@pytest.mark.parametrize(
    "options", [{"loading": "decode"}, {"loading": "decode", "loader_workers": 2}, {"loading": "device"}]
)
def test_every_way_of_loading_brings_the_same_batches(options: dict[str, Any], images: Path) -> None:
    expected, found = batches(images), batches(images, **options)
    assert len(found) == len(expected) == 2 * 2 * 9
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.masks, theirs.masks)
        assert ours.images.stride() == theirs.images.stride()


def test_an_image_that_cannot_be_decoded_is_bad_data_in_any_process(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", count=6)
    data = load_data(make_point(folder, loading="decode"), alone())
    (folder / "images" / "003.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"003\.png") as caught:
        list(DecodingAhead(data.source, 1).batches(np.array([[1, 2], [3, 4]])))
    assert caught.value.exit_code == EXIT_BAD_DATA


def test_a_signal_to_all_processes_of_a_job_step_leaves_the_loaders(images: Path, tmp_path: Path) -> None:
    """As srun sends it: to the worker, which stops at its next safe point, and to what it started."""
    assert run_program(STOPPED_WHILE_LOADING, images, tmp_path) == (0, "19\n", "")


def test_a_program_that_ends_in_the_middle_of_loading_ends(images: Path, tmp_path: Path) -> None:
    """Its loaders, deaf to SIGTERM, do not keep it."""
    assert run_program(ENDED_WHILE_LOADING, images, tmp_path) == (0, "over\n", "")


def run_program(text: str, images: Path, folder: Path) -> tuple[int, str, str]:
    """Exit code and output of a program in a session of its own."""
    program = folder / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, str(program), str(images)], env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, start_new_session=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_processes_without_anything_to_decode_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loader_workers = 2 .*, but data\.loading = 'cache'"):
        make_point(Path("/images"), loader_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_workers_with_loaders_of_their_own_train_the_same(
    framework: str, images: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"loading": "decode", "loader_workers": 1}
    plain = train(tmp_path / "plain", make_point(images, framework, 2, epochs=2), cores_each=1)
    ahead = train(tmp_path / "ahead", make_point(images, framework, 2, epochs=2, **options), cores_each=1)
    assert [epoch.loss for epoch in ahead.epochs] == [epoch.loss for epoch in plain.epochs]
