"""A study as honest launches leave it: what was asked for, and numbers that differ as measured ones do."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slurm.study_folder import StudyFolder
from tests.records import make_header, make_result
from unet_scaling.measure.step_sample import StepSample
from unet_scaling.run.recorder import older_log
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.files import write_verified
from unet_scaling.study.measurements import PHASE_COLUMNS, STEPS_NAME, Budget, CpuFacts, LongestStep
from unet_scaling.study.record import RecordWriter
from unet_scaling.study.record_lines import End, Epoch, Header
from unet_scaling.study.study_file import LOG_NAME

# Native DDP is faster by so much, far beyond the noise of 1 %.
HOROVOD_SLOWER = 1.3
STEPS = 12
STUDY: Mapping[str, Any] = {
    "name": "honest",
    "workers": [2],
    "repeats": 6,
    "data": {"folder": "/data", "image_height": 32, "image_width": 32},
    "training": {"epochs": 4, "batch_per_worker": 8},
}


def opened(folder: Path, **changes: object) -> StudyFolder:
    """The folder of a study with its run folders; no run has started."""
    study = StudyFolder(folder, StudyConfig.model_validate({**STUDY, **changes}))
    study.prepare()
    return study


def launch(
    folder: Path, config: RunConfig, name: str = "run.jsonl", luck: str = "", pace: float = 1.0
) -> None:
    """Write what a complete launch of a run leaves: its record, log.csv and steps.parquet.

    `luck` is another launch of the same run; `pace` multiplies its seconds.
    """
    chance = random.Random(f"{config.run} {luck}")
    pace *= HOROVOD_SLOWER if config.framework == "horovod" else 1.0
    sample = StepSample(config.workers, seed=1)
    epochs = [_epoch(config, number, pace * chance.gauss(1, 0.01), chance, sample) for number in range(4)]
    block = 60 * config.repeat + 20 * (config.framework == "horovod") * (-1) ** config.repeat
    started = f"2025-01-31T{12 + block // 3600:02d}:{block // 60 % 60:02d}:{block % 60:02d}Z"
    header = make_header(config, started_utc=started, train_images=STEPS * config.workers * 8)
    write(folder, header, epochs, name)
    (folder / LOG_NAME).write_text(older_log(epochs, make_result(header, epochs, 0.8)))
    content = sample.parquet()
    assert content is not None
    write_verified(folder / STEPS_NAME, content)


def write(
    folder: Path, header: Header, epochs: list[Epoch], name: str = "run.jsonl", end: End | None = None
) -> None:
    """Write a complete record; one that is there is replaced."""
    (folder / name).unlink(missing_ok=True)
    writer = RecordWriter(folder / name)
    for line in (header, *epochs, make_result(header, epochs, 0.8), end or End(status="complete")):
        writer.write(line)
    writer.close()


def _epoch(config: RunConfig, number: int, pace: float, chance: random.Random, sample: StepSample) -> Epoch:
    steps = np.zeros((config.workers, STEPS, len(PHASE_COLUMNS)))
    steps[:, :, 2] = [[pace * chance.gauss(0.06, 0.003) for _ in range(STEPS)] for _ in range(config.workers)]
    steps[:, :, 4] = [
        [pace * chance.uniform(0.01, 0.02) for _ in range(STEPS)] for _ in range(config.workers)
    ]
    sample.add(number, 0, steps)
    seconds = steps.sum(axis=(1, 2)).tolist()
    own = steps.sum(axis=2)
    longest = int(own.max(axis=0).argmax())
    slowest = int(steps[:, longest, 2].argmax())
    phases = {name: steps[:, :, phase].sum(axis=1).tolist() for phase, name in enumerate(PHASE_COLUMNS)}
    return Epoch(
        epoch=number, seconds=max(seconds), worker_seconds=seconds, images=STEPS * config.workers * 8,
        steps=STEPS,
        loss=0.5 / (number + 1), learning_rate=0.001, warmup=number == 0,
        budget=Budget(
            **phases,
            wire_seconds=float(steps[:, :, 4].min(axis=0).sum()),
            longest_step=LongestStep(
                step=longest, seconds=float(own[:, longest].max()), worker=slowest,
                work_seconds=float(steps[slowest, longest, 2]),
            ),
        ),
        cpu=[_processor(each, chance) for each in seconds],
    )  # fmt: skip


def _processor(seconds: float, chance: random.Random) -> CpuFacts:
    training = seconds * chance.uniform(0.9, 0.93)
    return CpuFacts(
        process_seconds=training + 0.01 * seconds,
        thread_seconds={"training": training, "other": 0.01 * seconds},
        training_runqueue_seconds=0.01 * seconds,
        other_seconds=0.0, other_workers_seconds=0.0, cores=1, peak_memory_bytes=2**28, frequency_mhz=None,
    )  # fmt: skip
