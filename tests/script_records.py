"""Plausible complete runs of scripts for tests, written with the real models and the real writer."""

from pathlib import Path
from typing import Any

from tests.records import digest, make_workers, write_all
from unet_scaling.study.config import Framework
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.record_lines import End, Epoch, ScriptHeader

EPOCHS = 3
IMAGES = 4800
STEPS = 50


def make_script_header(framework: Framework, workers: int, repeat: int, **changes: object) -> ScriptHeader:
    """Return the header of a script that is named after its framework."""
    fields: dict[str, object] = {
        "framework": framework,
        "repeat": repeat,
        "script": f"train_{framework}.py",
        "script_sha256": digest(framework),
        "options": {},
        "started_utc": f"2025-01-31T12:{repeat:02d}:00+00:00",
        "commit": None,
        "dirty": None,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "transport": {"backend": "gloo"},
        "job": {},
        "workers": make_workers(workers),
    }
    return ScriptHeader.model_validate(fields | changes)


def write_script_run(
    study: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    *,
    images_per_second: float = 100.0,
    end: End | None = End(status="complete"),  # noqa: B008, frozen
    **changes: Any,
) -> Path:
    """Write the folder of one run of a script below `study`; `changes` replace fields of its header."""
    header = make_script_header(framework, workers, repeat, **changes)
    label = "".join(f"-{name}={value}" for name, value in header.options.items())
    folder = study / f"script-{framework}-w{workers:02d}{label}-r{repeat}"
    folder.mkdir(parents=True)
    seconds = IMAGES / images_per_second
    epochs = [
        Epoch(
            epoch=number, seconds=seconds, worker_seconds=[seconds] * workers, images=IMAGES, steps=STEPS,
            loss=None, warmup=number == 0, no_budget="no model was given",
        )
        for number in range(EPOCHS)
    ]  # fmt: skip
    write_all(folder / RECORD_NAME, [header, *epochs, *([end] if end else [])])
    return folder
