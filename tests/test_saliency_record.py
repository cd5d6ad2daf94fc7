"""What a run says of its saliency maps: options, the line of the record, the manifest."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from slurm import preflight
from tests.records import digest, make_epochs, make_header, make_point, make_result
from tests.tasks import POINTS
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import Record, RecordWriter, read_record
from unet_scaling.study.record_lines import End, RecordLine
from unet_scaling.study.saliency import (
    ExplainedImage,
    Saliency,
    SaliencyFile,
    SaliencyManifest,
    SaliencyPhases,
)
from unet_scaling.study.study_file import read_study

EXPLAINED = {"saliency": {"method": "rise", "masks": 64}}
STUDY = """
workers = [1]
repeats = 1
[data]
folder = "images"
image_height = 8
image_width = 8
[training]
epochs = 2
"""


def point(**options: Any) -> RunConfig:
    return make_point(options={**EXPLAINED, **options})


def line(**changes: Any) -> Saliency:
    phases = SaliencyPhases(masks=0.25, forward=1.0, weighting=0.25, sum=0.25, files=0.125, other=0.125)
    header = make_header(point())
    final = make_result(header, make_epochs(point(), 100.0, 48), 0.8)
    fields: dict[str, Any] = {
        "epochs": 3, "weights_sha256": final.weights_sha256, "manifest_sha256": digest("maps"),
        "split": "images", "configuration": {"perturber": {"n": 64}}, "images": 12, "maps": 11,
        "maps_made_here": 11, "masks": 64, "seconds": 2.0, "worker_seconds": [2.0], "phases": [phases],
        "peak_bytes": [2**28], "check_seconds": 0.5,
    }  # fmt: skip
    return Saliency(**fields | changes)


def written(folder: Path, config: RunConfig, *saliency: RecordLine, late: bool = False) -> Record:
    header = make_header(config)
    epochs = make_epochs(config, 100.0, 48)
    end = [End(status="complete")]
    writer = RecordWriter(folder / "run.jsonl")
    tail: list[RecordLine] = [*end, *saliency] if late else [*saliency, *end]
    for each in (header, *epochs, make_result(header, epochs, 0.8), *tail):
        writer.write(each)
    writer.close()
    return read_record(folder / "run.jsonl")


def test_a_record_with_maps_is_complete_and_gives_them_back(tmp_path: Path) -> None:
    record = written(tmp_path, point(), line())
    assert record.problems == ()
    assert record.complete
    assert record.saliency == line()


@pytest.mark.parametrize(
    ("config", "lines", "said"),
    [
        (point(), [], "complete without maps, though saliency.method is 'rise'"),
        (make_point(), [line()], "saliency.method is 'off'"),
        (point(), [line(), line()], "a line saliency comes once"),
        (point(), [line(weights_sha256=digest("others"))], "of other weights than the last evaluation"),
        (point(), [line(epochs=2)], "after 2 epochs, the last evaluation came after 3"),
        (point(), [line(images=13)], "13 images explained, the test set has 12"),
        (make_point(workers=2, options=EXPLAINED), [line()], "2 workers were asked for, 1 made maps"),
    ],
)
def test_a_record_that_contradicts_its_maps_says_so(
    config: RunConfig, lines: list[Saliency], said: str, tmp_path: Path
) -> None:
    record = written(tmp_path, config, *lines)
    assert not record.complete
    assert any(said in problem for problem in record.problems), record.problems


def test_maps_after_the_end_are_refused(tmp_path: Path) -> None:
    assert not written(tmp_path, point(), line(), late=True).complete


@pytest.mark.parametrize(
    "changes",
    [
        {"maps": 13},
        {"maps_made_here": 12},
        {"worker_seconds": [2.0, 2.0]},
        {"worker_seconds": [1.5]},
        {"seconds": 3.0, "worker_seconds": [3.0]},
        {"peak_bytes": [0]},
    ],
)
def test_impossible_values_of_the_line_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        line(**changes)


def image(**changes: Any) -> ExplainedImage:
    fields: dict[str, Any] = {
        "image": "a", "position": 0, "height": 8, "width": 8, "box": (0, 0, 8, 8), "foreground": 0.5,
        "map": SaliencyFile(file="maps/00000.npy", sha256=digest("a")),
    }  # fmt: skip
    return ExplainedImage(**fields | changes)


def test_an_image_has_either_a_map_or_a_reason() -> None:
    assert image().no_map is None
    assert image(map=None, no_map="empty").map is None
    for both in ({"no_map": "empty"}, {"map": None}):
        with pytest.raises(ValidationError, match="either a map or a reason"):
            image(**both)


def test_a_manifest_names_every_image_once_and_in_order() -> None:
    fields: dict[str, Any] = {
        "method": "rise", "weights_sha256": digest("w"), "scores": ["iou"], "shares": [0.0, 1.0],
    }  # fmt: skip
    assert SaliencyManifest(**fields, images=[image(), image(position=1)])
    for positions in ([0, 0], [1, 0], [1]):
        with pytest.raises(ValidationError, match="images have the positions"):
            SaliencyManifest(**fields, images=[image(position=position) for position in positions])


def test_a_default_changes_no_digest_and_every_other_value_does() -> None:
    plain = make_point()
    assert make_point(options={"saliency": {"masks": 500}}).digest() == plain.digest()
    assert (
        len({plain.digest(), point().digest(), make_point(options={"saliency": {"masks": 9}}).digest()}) == 3
    )


def test_every_option_is_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "maps.toml"
    path.write_text(f'{STUDY}[saliency]\nmethod = ["rise", "sliding_window"]\nsplit = ["images", "masks"]\n')
    found = {(config.saliency.method, config.saliency.split) for config in read_study(path).configs()}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            'method = "rize"',
            "saliency.method: found 'rize'; did you mean rise? allowed: 'off', 'rise', 'sliding_window'",
        ),
        ("p1 = 1.5", "saliency.p1: found 1.5"),
        ("batch = 0", "saliency.batch: found 0"),
        ("mask = 3", "saliency.mask: unknown key; did you mean masks"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(option: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "maps.toml"
    path.write_text(f"{STUDY}[saliency]\n{option}\n")
    with pytest.raises(UserError) as refused:
        read_study(path).configs()
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_workers_that_only_wait_explain_nothing() -> None:
    with pytest.raises(ValidationError, match="emulated workers wait and predict nothing"):
        point(emulation={"compute": "slurm/profiles/v100_like.toml"})


def test_a_study_with_maps_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "SALIENCY_PACKAGE", "no-such-package")
    assert "no-such-package" not in " ".join(preflight.unverified_inputs([make_point()]))
    (said,) = preflight.unverified_inputs([point()])
    assert "no-such-package, which is not installed; run environment/install.sh --with xaitk" in said


def test_a_task_of_its_own_is_no_segmentation_to_explain(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(POINTS)
    path = tmp_path / "maps.toml"
    own = '[task]\nfile = "my_task.py"\n[training]\nepochs = 2\n[saliency]\nmethod = "rise"\n'
    path.write_text(f"workers = [1]\n{own}")
    with pytest.raises(UserError, match=r"saliency\.method: is for the built-in U-Net") as refused:
        read_study(path).configs()
    assert refused.value.exit_code == 2
