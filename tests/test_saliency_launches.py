"""What launches know of saliency maps: how long they take, and that a run made anew makes new ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm.cost import local_time
from slurm.disturbed import set_disturbed_aside
from slurm.estimate import Basis, Images, MeasuredRun, measured_run, run_seconds
from slurm.known_seconds import recorded_seconds
from slurm.local_plan import take_over
from slurm.study_folder import StudyFolder
from tests.saliency_records import write_explained
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.record import Record, read_record
from unet_scaling.study.study_file import config_path, read_config

IMAGES = Images(train=48, test=12)


def explained(folder: Path) -> tuple[RunConfig, Record]:
    run = write_explained(folder)
    return read_config(config_path(run)), read_record(run / "run.jsonl")


def measured(record: Record) -> MeasuredRun:
    found = measured_run(record)
    assert found is not None
    return found


def test_maps_and_their_checks_count_among_the_seconds_of_a_run(tmp_path: Path) -> None:
    _, record = explained(tmp_path)
    assert record.saliency is not None
    without = recorded_seconds(replace(record, saliency=None))
    made = record.saliency.seconds + record.saliency.check_seconds
    assert made > 0
    assert recorded_seconds(record) == pytest.approx(without + made)


def test_an_estimate_scales_the_seconds_of_maps_by_their_images(tmp_path: Path) -> None:
    config, record = explained(tmp_path)
    assert record.saliency is not None
    basis = Basis((measured(record),), "one run")
    without = config.model_copy(update={"saliency": config.saliency.model_copy(update={"method": "off"})})
    few = config.model_copy(update={"saliency": config.saliency.model_copy(update={"images": 3})})
    training = run_seconds(without, basis, IMAGES).expected
    a_map = (record.saliency.seconds + record.saliency.check_seconds) / record.saliency.maps
    assert run_seconds(config, basis, IMAGES).expected == pytest.approx(training + 12 * a_map)
    assert run_seconds(few, basis, IMAGES).expected == pytest.approx(training + 3 * a_map)


def test_maps_of_other_options_or_of_a_resumed_run_are_not_estimated_by(tmp_path: Path) -> None:
    config, record = explained(tmp_path)
    assert record.saliency is not None
    more = config.model_copy(update={"saliency": config.saliency.model_copy(update={"masks": 500})})
    basis = Basis((measured(record),), "one run")
    assert "saliency maps, since one run made none with these options" in local_time([more], basis)
    resumed = replace(record, saliency=record.saliency.model_copy(update={"maps_made_here": 1}))
    assert "not estimated: saliency maps" in local_time([config], Basis((measured(resumed),), "one run"))


def test_a_run_made_anew_keeps_its_maps_under_the_name_of_its_record(tmp_path: Path) -> None:
    run = write_explained(tmp_path)
    config = read_config(config_path(run))
    manifest = (run / "saliency" / "manifest.json").read_bytes()
    study = StudyConfig(
        name=tmp_path.name,
        workers=[1],
        repeats=1,
        data={"folder": "/data", "image_height": 32, "image_width": 32},
        training={"epochs": 3},
    )
    assert take_over(StudyFolder(tmp_path, study), [config], force=[config.run]) == [config]
    assert not (run / "saliency").exists()
    assert (run / "run.attempt1.jsonl").exists()
    assert (run / "saliency.attempt1" / "manifest.json").read_bytes() == manifest


def test_a_disturbed_run_keeps_its_maps_under_the_name_of_its_record(tmp_path: Path) -> None:
    run = write_explained(tmp_path)
    assert set_disturbed_aside(run) == run / "run.disturbed1.jsonl"
    assert sorted(path.name for path in run.glob("saliency*")) == ["saliency.disturbed1"]
