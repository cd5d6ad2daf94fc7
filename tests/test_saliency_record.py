"""What is said and known of saliency maps: options, the line of the record, the manifest, estimates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm.after_run import set_disturbed_aside
from slurm.launch import preflight
from slurm.launch.estimate import ProbedSpeed, sum_seconds
from tests.records import digest, make_epochs, make_header, make_point, make_result, write_all
from tests.saliency_records import Made, make_line, write_explained
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import Record, read_record, set_launch_aside
from unet_scaling.format.record_lines import End, RecordLine, Saliency
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import config_path, read_config

EXPLAINED = {"saliency": {"method": "rise", "masks": 64}}


def point(**options: Any) -> RunConfig:
    return make_point(options={**EXPLAINED, **options})


def line(**changes: Any) -> Saliency:
    final = make_result(make_header(point()), make_epochs(point(), 100.0, 48), 0.8)
    facts = {"weights_sha256": final.weights_sha256} | changes
    return make_line(Made(images=12, without_map=(11,), changes=facts), 1, "images", digest("maps"))


def written(folder: Path, config: RunConfig, *saliency: RecordLine, late: bool = False) -> Record:
    header = make_header(config)
    epochs = make_epochs(config, 100.0, 48)
    end = [End(status="complete")]
    folder.mkdir(exist_ok=True)
    tail: list[RecordLine] = [*end, *saliency] if late else [*saliency, *end]
    write_all(folder / "run.jsonl", [header, *epochs, make_result(header, epochs, 0.8), *tail])
    return read_record(folder / "run.jsonl")


@pytest.mark.parametrize(
    ("config", "lines", "said"),
    [
        (point(), [], "without maps"),
        (point(), [line(), line()], "once"),
    ],
)
def test_a_record_that_contradicts_its_maps_is_not_complete(
    config: RunConfig, lines: list[Saliency], said: str, tmp_path: Path
) -> None:
    record = written(tmp_path, config, *lines)
    assert not record.complete
    assert any(said in problem for problem in record.problems), record.problems
    assert not written(tmp_path / "late", point(), line(), late=True).complete


def test_a_study_with_maps_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "SALIENCY_PACKAGE", "no-such-package")
    with pytest.raises(UserError, match="does not exist"):  # which follows
        preflight.check_inputs([make_point()])
    said = "no-such-package, which is not installed; run environment/install.sh --with xaitk"
    with pytest.raises(UserError, match=said):
        preflight.check_inputs([point()])


def test_the_seconds_of_maps_count_and_a_probe_does_not_tell_them(tmp_path: Path) -> None:
    run = write_explained(tmp_path)
    record = read_record(run / "run.jsonl")
    assert record.saliency is not None
    made = record.saliency.seconds + record.saliency.check_seconds
    assert sum_seconds(record) == pytest.approx(made + sum_seconds(replace(record, saliency=None)))
    config = read_config(config_path(run))
    assert ProbedSpeed(config, 10, 1.0, 1.0, "a probe").estimate(config) is None


def test_a_run_made_anew_keeps_its_maps_under_the_name_of_its_record(tmp_path: Path) -> None:
    ways = ((set_launch_aside, "attempt1"), (set_disturbed_aside, "disturbed1"))
    for repeat, (set_aside, name) in enumerate(ways, 1):
        run = write_explained(tmp_path, repeat=repeat)
        manifest = (run / "saliency" / "manifest.json").read_bytes()
        set_aside(run)
        kept = sorted(path.name for path in run.glob(f"*.{name}*"))
        assert kept == [f"run.{name}.jsonl", f"saliency.{name}"]
        assert (run / f"saliency.{name}" / "manifest.json").read_bytes() == manifest
        assert not (run / "saliency").exists()
