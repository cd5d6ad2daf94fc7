"""Every file of the product, cut at a byte or with a byte flipped: the old value, the new one, or a report.

Never another value in silence. Files are damaged in many places, and at every byte of their end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from slurm.launch.study_folder import StudyFolder
from slurm.submissions import Submission, claim, read_submission, write_submission
from tests.faults import READ_BACK
from tests.records import make_pair, make_study, write_run
from tests.studies import make_images, make_point
from tests.test_checkpoint import GROUP, POINT, save, trained
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import (
    checksum_path,
    read_json_with_checksum,
    read_verified,
    write_json_with_checksum,
    write_verified,
)
from unet_scaling.data.folder import read_manifest
from unet_scaling.data.images import build_cache, open_cache
from unet_scaling.format.record import read_record
from unet_scaling.format.record_lines import STEPS_NAME
from unet_scaling.format.run_state import failure_reason
from unet_scaling.measure.ping_pong import PingPong, read_ping_pong, write_ping_pong
from unet_scaling.run.checkpoint import load_checkpoint
from unet_scaling.run.run_claim import OWNER_NAME, Owner, this_process
from unet_scaling.run.run_folder import reporting_errors
from unet_scaling.run.training_state import load_weights, save_weights
from unet_scaling.study.study_file import PING_PONG_NAME, read_config, recorded_study

# Each place of a checkpoint costs two reads of it by torch.
PLACES = 40
END_BYTES = 20
REPORTED = (UserError, OSError, ValueError)


@dataclass(frozen=True)
class Sample:
    """Files as the product writes them, and what the product reads out of them."""

    damaged: list[Path]
    read: Callable[[], object]
    allowed: tuple[object, ...] = ()


def study(folder: Path) -> StudyFolder:
    training = {"epochs": 12, "learning_rate": [0.001, 0.25]}
    study = make_study("study", workers=[1, 12], training=training, criteria={"iou_margin": 0.02})
    made = StudyFolder(folder, study)
    made.prepare()
    return made


def point_file(folder: Path) -> Sample:
    made = study(folder)
    path = made.run_folder(made.study.configs()[0]) / "config.json"
    return Sample([path], lambda: read_config(path))


def study_file(folder: Path) -> Sample:
    study(folder)
    return Sample([folder / "study.json"], lambda: recorded_study(folder))


def job_file(folder: Path) -> Sample:
    submission = Submission(token="run.1", attempts=1, status="queued", job="123456")
    write_submission(folder, submission)
    return Sample([folder / "job.json"], lambda: read_submission(folder))


def claim_file(folder: Path) -> Sample:
    claim(folder, Submission(token="run.1", attempts=1, status="asking", number=1))
    return Sample([folder / ".try-1"], lambda: read_submission(folder))


def ping_pong_file(folder: Path) -> Sample:
    pair = make_pair(("a", "b"), 1e-4, 0.0123)
    path = folder / PING_PONG_NAME
    write_ping_pong(path, PingPong(mpi="MPICH 5", hosts=["a", "b"], pairs=[pair]))
    return Sample([path], lambda: read_ping_pong(path))


def error_file(folder: Path) -> Sample:
    with pytest.raises(ArithmeticError), reporting_errors(folder, make_point(folder), 1):
        raise ArithmeticError("a fault of this test")

    def read() -> str:
        reason = failure_reason(folder)
        if "cannot be read" in reason:
            raise ValueError(reason)
        return reason

    return Sample([folder / "error.attempt1.worker0.json"], read)


def owner_file(folder: Path) -> Sample:
    path = folder / OWNER_NAME
    write_json_with_checksum(path, this_process(1).model_dump(mode="json"))
    return Sample([path], lambda: Owner.model_validate(read_json_with_checksum(path)))


def record_file(folder: Path) -> Sample:
    path = write_run(folder) / "run.jsonl"

    def read() -> object:
        record = read_record(path)
        if not record.complete:
            raise ValueError(record.problems)
        return record

    return Sample([path], read)


def checkpoint_files(folder: Path) -> Sample:
    older = save(folder, trained(1), 1)
    newer = save(folder, trained(2), 2, 3)

    def read() -> object:
        state = trained(0)
        found = load_checkpoint(folder, GROUP, state, POINT)
        assert found is not None
        values = [*state.model.state_dict().values(), found[1].loss]
        return found[0], found[1].seconds, [value.tolist() for value in values]

    content = newer.read_bytes()
    newer.write_bytes(b"")
    before = read()
    newer.write_bytes(content)
    assert older.exists()
    assert before != read()
    return Sample([newer, checksum_path(newer)], read, allowed=(before,))


def verified(path: Path, read: Callable[[], object]) -> Sample:
    """A file with its checksum beside it."""
    return Sample([path, checksum_path(path)], read)


def weights_files(folder: Path) -> Sample:
    path = folder / "weights.pt"
    save_weights(trained(1).model, path)

    def read() -> object:
        model = trained(0).model
        load_weights(model, path)
        return [value.tolist() for value in model.state_dict().values()]

    return verified(path, read)


def steps_files(folder: Path) -> Sample:
    write_verified(folder / STEPS_NAME, bytes(range(256)))
    return verified(folder / STEPS_NAME, lambda: read_verified(folder / STEPS_NAME))


def manifest_files(folder: Path) -> Sample:
    path = make_images(folder / "data", count=2) / "manifest.json"
    return verified(path, lambda: read_manifest(path))


def cache_files(folder: Path) -> Sample:
    images = make_images(folder / "data", count=2)
    manifest = read_manifest(images / "manifest.json")
    data = make_point(images).data
    place = build_cache(manifest, data, folder / "cache")

    def read() -> object:
        build_cache(manifest, data, folder / "cache")
        opened = open_cache(manifest, data, folder / "cache")
        return [np.asarray(array).tolist() for array in (opened.images, opened.masks, opened.boxes)]

    return Sample(sorted(place.iterdir()), read)


SAMPLES: dict[str, Callable[[Path], Sample]] = {
    "config.json": point_file,
    "study.json": study_file,
    "job.json": job_file,
    ".try-1": claim_file,
    PING_PONG_NAME: ping_pong_file,
    "error.attempt*.worker*.json": error_file,
    "run*.jsonl": record_file,
    OWNER_NAME: owner_file,
    "checkpoint-*.pt*": checkpoint_files,
    "weights.pt*": weights_files,
    "steps.parquet*": steps_files,
    "manifest.json*": manifest_files,
    "cache": cache_files,
}


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The content cut before, and with one bit flipped in, each place; of many places some, and the end."""
    length = len(content)
    stride = max(1, length // PLACES)
    for place in sorted({*range(0, length, stride), *range(max(0, length - END_BYTES), length)}):
        yield f"cut at {place}", content[:place]
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        yield f"flipped at {place}", bytes(flipped)


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_is_reported_or_changes_nothing(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name](tmp_path)
    expected = sample.read()
    reports = 0
    for path in sample.damaged:
        content = path.read_bytes()
        missing = [("missing", None)] if path == checksum_path(sample.damaged[0]) else []
        for what, damaged in [*damages(content), *missing]:
            path.unlink() if damaged is None else path.write_bytes(damaged)
            try:
                found = sample.read()
            except REPORTED:
                reports += 1
            else:
                assert found in (expected, *sample.allowed), f"{path.name} {what}"
                reports += found != expected
        path.write_bytes(content)
    assert sample.read() == expected
    assert reports > 0


def test_every_file_of_a_run_that_is_read_back_is_damaged_here() -> None:
    assert set(READ_BACK) <= SAMPLES.keys()
