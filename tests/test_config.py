"""Studies: the product of their axes, and errors that name file, key, value and what is allowed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet_scaling.config import PROJECT, Study, read_point, read_study
from unet_scaling.errors import UserError

STUDY = """
frameworks = ["pytorch_native", "horovod"]
workers = [1, 2, 4]
repeats = 2
seed = 10
[data]
folder = "images"
image_height = 64
image_width = 64
[training]
epochs = 2
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(STUDY)
    return path


def test_is_the_product_of_its_axes(study: Path) -> None:
    read = read_study(study, {"training.batch_per_worker": [4, 8], "model.width": [8, 16]})
    points = read.points()
    assert len(points) == 2 * 3 * 2 * 2 * 2
    assert len({point.run for point in points}) == len(points)
    assert {(p.training.batch_per_worker, p.model.width) for p in points} == {
        (4, 8),
        (4, 16),
        (8, 8),
        (8, 16),
    }


def test_a_frameworks_own_options_multiply_its_own_points_only(study: Path) -> None:
    points = read_study(study, {"horovod.cycle_time_ms": [1, 5], "repeats": 1}).points()
    assert sum(point.framework == "horovod" for point in points) == 6
    assert sum(point.framework == "pytorch_native" for point in points) == 3
    assert all((point.horovod is None) == (point.framework == "pytorch_native") for point in points)


def test_a_repeat_has_one_seed_for_all_its_runs(study: Path) -> None:
    points = read_study(study).points()
    assert {(point.repeat, point.seed) for point in points} == {(1, 10), (2, 11)}


def test_paths_are_absolute_and_may_use_variables(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_study(study).points()[0].data.folder == str(PROJECT / "images")
    monkeypatch.setenv("WORK", "/somewhere")
    found = read_study(study, {"data.folder": "$WORK/images"}).points()[0]
    assert found.data.folder == "/somewhere/images"
    with pytest.raises(UserError, match=r"\$NOWHERE_SET"):
        read_study(study, {"data.folder": "$NOWHERE_SET/images"})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"training.epoch": 3}, r"training\.epoch: unknown key; known here: .*epochs"),
        ({"trainings.epochs": 3}, r"trainings: unknown key; known here: .*training"),
        ({"training.epochs": "3"}, r"training\.epochs: found '3'"),
        ({"training.epochs": True}, r"training\.epochs: found True"),
        ({"training.precision": "fp64"}, r"found 'fp64'.*'fp32', 'tf32' or 'bf16'"),
        ({"training.precision": ["fp32", "fp64"]}, "found 'fp64'"),
        ({"workers": [0]}, r"workers\.0: found 0"),
        ({"workers": [1, 2, 1]}, "names a value twice"),
        ({"training.batch_per_worker": [4, 4]}, "names a value twice"),
        ({"frameworks": ["deepspeed"]}, "'pytorch_native' or 'horovod'"),
        ({"name": "../up"}, "name"),
        ({"name": "two\nlines"}, "name"),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(
    study: Path, override: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read_study(study, override)
    assert "sweep.toml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml does not exist"):
        read_study(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("workers = [1,")
    with pytest.raises(UserError, match=r"broken\.toml is not valid TOML"):
        read_study(tmp_path / "broken.toml")


def test_a_point_survives_its_file(study: Path, tmp_path: Path) -> None:
    for point in read_study(study, {"horovod.cycle_time_ms": 5}).points():
        (tmp_path / "point.json").write_text(point.model_dump_json())
        assert read_point(tmp_path / "point.json") == point
        assert read_point(tmp_path / "point.json").digest() == point.digest()


def test_a_point_file_that_is_cut_off_is_an_error(study: Path, tmp_path: Path) -> None:
    text = read_study(study).points()[0].model_dump_json()
    (tmp_path / "point.json").write_text(text[:-1])
    with pytest.raises(UserError, match=r"point\.json cannot be read"):
        read_point(tmp_path / "point.json")


def test_any_change_changes_the_digest(study: Path) -> None:
    plain = read_study(study).points()[0].digest()
    for override in ({"training.epochs": 3}, {"data.channels": 3}, {"model.depth": 4}, {"seed": 11}):
        assert read_study(study, override).points()[0].digest() != plain


@given(st.text(max_size=30))
def test_run_ids_are_plain_names_whatever_an_axis_holds(text: str) -> None:
    tables = {
        "data": {"folder": "x", "image_height": 8, "image_width": 8, "foreground": [text, "255"]},
        "training": {"epochs": 1},
    }
    study = Study.model_validate({"name": "s", "workers": [1], "repeats": 1, **tables})
    try:
        runs = [point.run for point in study.points()]
    except UserError:
        return
    assert all("/" not in run and "\n" not in run and not run.startswith(".") for run in runs)


def test_the_shipped_studies_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK", "/work-folder")
    studies = sorted((PROJECT / "slurm" / "studies").glob("*.toml"))
    assert studies
    for path in studies:
        assert read_study(path).points()
