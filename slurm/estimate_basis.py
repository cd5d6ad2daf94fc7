"""Gather what estimates are made from: complete runs of this study or another, or a probe."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from slurm.estimate import Basis, Images, MeasuredRun, measured_run, pixels_per_image
from unet_scaling.data.enough_images import count_test_images
from unet_scaling.data.manifest import read_manifest
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.probed import Probed
from unet_scaling.study.run_state import RecordedRun, recorded_run
from unet_scaling.study.study_file import config_path, list_run_folders, read_config
from unet_scaling.study.texts import count

# Of steps, after the one that warms up: half a minute of waiting in all.
PROBE_SECONDS = 20
# A pass that only evaluates spares the backward pass, which computes twice what the forward pass does.
EVALUATION_SPEED = 3.0


def basis_of_folder(folder: Path) -> Basis | None:
    """Return the complete runs of a study's folder; None where there are none that trained."""
    paths = list_run_folders(folder)
    return basis_of_runs(folder, (recorded_run(path, read_config(config_path(path))) for path in paths))


def basis_of_runs(folder: Path, runs: Iterable[RecordedRun]) -> Basis | None:
    """Return the speeds of those that are complete, None where there are none; no record is kept."""
    found = (measured_run(run.record) for run in runs if run.record is not None and run.state.is_complete)
    measured = tuple(run for run in found if run is not None)
    return Basis(measured, f"{count(len(measured), 'complete run')} of {folder.name}") if measured else None


def basis_of_other(named: str, logs: Path) -> Basis:
    """Return the runs of another study, named as its folder or its name. Raises UserError for none."""
    folder = next((path for path in (Path(named), logs / named) if path.is_dir()), None)
    basis = basis_of_folder(folder) if folder else None
    if basis is None:
        raise UserError(
            f"--estimate-from {named}: found no complete run there; name a folder of a study in logs/"
        )
    return basis


def basis_of_probe(study: StudyConfig, cores: int, on_gpus: bool) -> Basis:
    """Time some steps of the study's first configuration on this machine, in a process of its own.

    `on_gpus`: the runs will have GPUs, which this machine may lack; the estimate says so then.
    Raises UserError with its words where it cannot, such as for images that were never checked.
    """
    begin = time.monotonic()
    probed = _probe(study, min(cores, len(os.sched_getaffinity(0))))
    basis = basis_of_probed(study.configs()[0], probed, time.monotonic() - begin)
    if on_gpus and probed.device == "cpu":
        return replace(basis, source=f"{basis.source}, without the GPUs that will make the runs faster,")
    return basis


def _probe(study: StudyConfig, cores: int) -> Probed:
    command = [sys.executable, "-m", "unet_scaling.profile.probe", str(PROBE_SECONDS), str(cores)]
    done = subprocess.run(
        command, cwd=PROJECT, input=study.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"--probe: {done.stderr.strip().removeprefix('error: ')}", done.returncode)
    return Probed.model_validate_json(done.stdout)


def basis_of_probed(config: RunConfig, probed: Probed, process_seconds: float) -> Basis:
    """Return a probe as what it says about runs: the speed of one worker without a framework.

    What its process did besides its steps is about what a run does before its first epoch.
    """
    rate = probed.images_per_step * pixels_per_image(config) / median(probed.step_seconds)
    run = MeasuredRun(
        config, None, 1, rate, EVALUATION_SPEED * rate, process_seconds - sum(probed.step_seconds)
    )
    steps = count(len(probed.step_seconds), "step")
    return Basis(
        (run,), f"a probe of {steps} on this machine ({probed.device}, {count(probed.cores, 'core')})"
    )


def images_of(config: RunConfig) -> Images | None:
    """Return how many images a run trains on and evaluates, by its manifest; None where there is none."""
    try:
        total = len(read_manifest(config.data.manifest_path).pairs)
    except UserError:
        return None
    test = count_test_images(total, config.data.test_share)
    return Images(total - test, test)


def images_of_all(configs: Sequence[RunConfig]) -> dict[str, Images] | None:
    """Return the images of each run by its name; None where they are not known for all."""
    known: dict[tuple[Path, float], Images | None] = {}
    images = {}
    for config in configs:
        key = (config.data.manifest_path, config.data.test_share)
        if key not in known:
            known[key] = images_of(config)
        found = known[key]
        if found is None:
            return None
        images[config.run] = found
    return images
