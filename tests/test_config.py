"""Studies: the product of their axes, and errors that name file, key, value and what is allowed."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.options import varying
from slurm.study_folder import StudyFolder
from tests.studies import make_point
from unet_scaling.study.config import PROJECT, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.older_records import older_digest
from unet_scaling.study.options import OPTION_TABLES, Criteria, HorovodKnobs
from unet_scaling.study.study_file import STUDY_NAME, config_path, read_config, read_study, recorded_study
from unet_scaling.study.validation import StrictModel

ABLATIONS = sorted((PROJECT / "slurm" / "studies").glob("why_*.toml"))
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
    points = read.configs()
    assert len(points) == 2 * 3 * 2 * 2 * 2
    assert len({point.run for point in points}) == len(points)
    assert {(p.training.batch_per_worker, p.model.width) for p in points} == {
        (4, 8),
        (4, 16),
        (8, 8),
        (8, 16),
    }


def test_a_frameworks_own_options_multiply_its_own_points_only(study: Path) -> None:
    points = read_study(study, {"horovod.cycle_time_ms": [1, 5], "repeats": 1}).configs()
    assert sum(point.framework == "horovod" for point in points) == 6
    assert sum(point.framework == "pytorch_native" for point in points) == 3
    assert all((point.horovod is None) == (point.framework == "pytorch_native") for point in points)


def test_a_repeat_has_one_seed_for_all_its_runs(study: Path) -> None:
    points = read_study(study).configs()
    assert {(point.repeat, point.seed) for point in points} == {(1, 10), (2, 11)}


def test_paths_are_absolute_and_may_use_variables(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_study(study).configs()[0].data.folder == str(PROJECT / "images")
    monkeypatch.setenv("WORK", "/somewhere")
    found = read_study(study, {"data.folder": "$WORK/images"}).configs()[0]
    assert found.data.folder == "/somewhere/images"
    with pytest.raises(UserError, match=r"\$NOWHERE_SET"):
        read_study(study, {"data.folder": "$NOWHERE_SET/images"})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"training.epoch": 3}, r"training\.epoch: unknown key; did you mean epochs\? known here: .*epochs"),
        ({"trainings.epochs": 3}, r"trainings: unknown key; did you mean training\? known here: .*training"),
        ({"training.epochs": "3"}, r"training\.epochs: found '3'"),
        ({"training.epochs": True}, r"training\.epochs: found True"),
        ({"training.precision": "fp64"}, r"found 'fp64'.*'fp32', 'tf32' or 'bf16'"),
        ({"training.precision": ["fp32", "fp64"]}, "found 'fp64'"),
        ({"epochs": 3}, r"epochs: unknown key; did you mean training\.epochs\? known here"),
        ({"training.precision": "fb16"}, r"found 'fb16'; did you mean bf16\? allowed: 'fp32'"),
        ({"frameworks": ["horovd"]}, r"frameworks\[0\]: found 'horovd'; did you mean horovod\?"),
        ({"workers": [0]}, r"workers\[0\]: found 0"),
        ({"workers": []}, r"workers: found \[\]; at least one value is needed"),
        ({"training.precision": []}, r"training\.precision: found \[\]; at least one value is needed"),
        ({"training": 5}, "training: found 5; allowed: a table"),
        ({"frameworks": ["horovod"], "pytorch_native.bucket": 5}, r"pytorch_native\.bucket: unknown key"),
        ({"name": "a/b"}, "name: found 'a/b'; allowed: a text of letters, digits and"),
        ({"workers": [1, 2, 1]}, "names a value twice"),
        ({"training.batch_per_worker": [4, 4]}, "names a value twice"),
        ({"frameworks": ["deepspeed"]}, "'pytorch_native', 'horovod', 'lightning' or 'accelerate'"),
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


# Each with the range that the error names.
ABSURD = [
    ("training.learning_rate", float("inf"), "at least 1e-30, at most 1e+30"),
    ("training.learning_rate", float("nan"), "at least 1e-30, at most 1e+30"),
    ("training.learning_rate", 0.0, "at least 1e-30"),
    ("training.epochs", 2**63, "at least 0, at most 1000000"),
    ("training.epochs", -1, "at least 0, at most 1000000"),
    ("training.batch_per_worker", 2**40, "at most 1000000"),
    ("training.accumulate", 2**40, "at most 1000000"),
    ("training.warmup_epochs", 2**40, "at most 1000000"),
    ("training.evaluate_every", 2**40, "at most 1000000"),
    ("training.timeout_seconds", 10**10, "at least 1, at most 2592000"),
    ("training.cores_per_worker", 2**40, "at least 1, at most 1000000"),
    ("training.checkpoint_minutes", float("inf"), "at least 0, at most 525600"),
    ("training.checkpoint_minutes", float("nan"), "at least 0, at most 525600"),
    ("data.image_height", 2**40, "at least 1, at most 65536"),
    ("data.image_width", 2**40, "at least 1, at most 65536"),
    ("data.passes_per_epoch", 2**63, "at most 1000000"),
    ("data.split_seed", 2**64, "at least 0, at most 9223372036854775807"),
    ("data.loader_workers", 2**40, "at most 1000000"),
    ("data.test_share", float("nan"), "more than 0, less than 1"),
    ("data.augment_crop", float("nan"), "more than 0, at most 1"),
    ("data.augment_contrast", float("inf"), "at least 0, less than 1"),
    ("model.width", 2**40, "at most 1000000"),
    ("model.depth", 99, "at least 1, at most 16"),
    ("pytorch_native.bucket_cap_mb", float("inf"), "more than 0, at most 1048576"),
    ("horovod.cycle_time_ms", float("inf"), "at least 0, at most 60000"),
    ("horovod.fusion_threshold_mb", float("nan"), "at least 0, at most 1048576"),
    ("horovod.groups", 2**40, "at most 1000000"),
    ("criteria.iou_margin", float("nan"), "more than 0, less than 1"),
    ("criteria.target_iou", float("inf"), "more than 0, less than 1"),
    ("repeats", 2**63, "at least 1, at most 10000"),
    ("repeats", 0, "at least 1, at most 10000"),
    ("seed", 2**64, "at least 0, at most 9007199254740992"),
    ("workers", [1, 2**40], "at least 1, at most 65536"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), ABSURD, ids=lambda value: str(value)[:30])
def test_refuses_numbers_beyond_any_study_with_their_range(
    study: Path, key: str, value: object, allowed: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_study(study, {key: value})
    worst = value[-1] if isinstance(value, list) else value
    assert re.search(
        rf"sweep\.toml: {key}(\[1\])?: found {worst}; allowed: .*{re.escape(allowed)}", str(caught.value)
    )


def test_all_that_is_wrong_with_a_study_is_said_at_once(study: Path) -> None:
    wrong = {
        "repeat": 3,
        "workers": [0, 1, 70_000],
        "data.folder": ["$NOWHERE_SET/a", 5],
        "training.epochs": "2",
        "training.precision": ["fp32", "fp23", "fp64"],
        "horovod.cycle_time": 1,
        "criteria.iou_margin": 2,
    }
    with pytest.raises(UserError) as caught:
        read_study(study, wrong)
    lines = str(caught.value).removeprefix(f"{study}: ").split("\n       ")
    assert {line.partition(": ")[0] for line in lines} == {
        "repeat",
        "workers[0]",
        "workers[2]",
        "data.folder",
        "data.folder[1]",
        "training.epochs",
        "training.precision[1]",
        "training.precision[2]",
        "horovod.cycle_time",
        "criteria.iou_margin",
    }
    assert not re.search(r"\[A-Za|\^|Input should", str(caught.value))


def test_every_pair_of_values_that_exclude_each_other_is_said_at_once(study: Path) -> None:
    axes = {"data.loader_workers": [1, 2], "training.accumulate": [2, 3], "pytorch_native.static_graph": True}
    with pytest.raises(UserError) as caught:
        read_study(study, axes)
    told = str(caught.value)
    assert told.count("data.loader_workers = 1") == told.count("data.loader_workers = 2") == 1
    with pytest.raises(UserError) as caught:
        read_study(study, {key: value for key, value in axes.items() if key != "data.loader_workers"})
    assert "found 2: where" in str(caught.value)
    assert "found 3: where" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xef\xbb\xbfworkers = [0]", r"workers\[0\]: found 0"),
        (b"workers = [1]\n# caf\xe9", r"line 2 is not UTF-8"),
        (None, r"is a folder; name a TOML file in it"),
    ],
)
def test_a_file_that_is_no_text_is_named_with_the_cure(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_study(path)


def test_every_number_of_a_study_has_an_upper_limit() -> None:
    tables: list[type[StrictModel]] = [StudyConfig, *OPTION_TABLES.values(), Criteria]
    for table in tables:
        schema = table.model_json_schema()["properties"]
        for key, described in schema.items():
            kinds = [described, described.get("items", {}), *described.get("anyOf", [])]
            numbers = [kind for kind in kinds if kind.get("type") in ("integer", "number")]
            assert all({"maximum", "exclusiveMaximum", "enum"} & set(kind) for kind in numbers), key


def test_refuses_an_axis_whose_value_makes_a_name_too_long(study: Path) -> None:
    long = ",".join(map(str, range(100)))
    with pytest.raises(UserError) as caught:
        read_study(study, {"data.foreground": ["255", long]})
    told = str(caught.value)
    assert "sweep.toml: data.foreground: found '0,1,2,3," in told
    assert "has 322 characters; allowed: 255" in told
    assert "shorter values or fewer axes" in told
    assert read_study(study, {"data.foreground": long}).configs()
    with pytest.raises(UserError, match=r"name: found .*at most 255 characters"):
        read_study(study, {"name": "x" * 256})


def test_refuses_more_runs_than_can_be_written_down_at_once(study: Path) -> None:
    axes = {"training.batch_per_worker": list(range(1, 1000)), "repeats": 10_000}
    with pytest.raises(UserError, match=r"sweep\.toml: .*repeats = 10000 give 59940000 runs, at most 100000"):
        read_study(study, axes)


def test_a_setting_below_a_key_that_is_no_table_is_refused(study: Path) -> None:
    with pytest.raises(UserError, match=r"sweep\.toml: workers\.first: workers is no table"):
        read_study(study, {"workers.first": 3})


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml does not exist"):
        read_study(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("workers = [1,")
    with pytest.raises(UserError, match=r"broken\.toml is not valid TOML"):
        read_study(tmp_path / "broken.toml")


def test_a_point_survives_its_file(study: Path, tmp_path: Path) -> None:
    for point in read_study(study, {"horovod.cycle_time_ms": 5}).configs():
        (tmp_path / "config.json").write_text(point.model_dump_json())
        assert read_config(tmp_path / "config.json") == point
        assert read_config(tmp_path / "config.json").digest() == point.digest()


def test_a_point_file_that_is_cut_off_is_an_error(study: Path, tmp_path: Path) -> None:
    text = read_study(study).configs()[0].model_dump_json()
    (tmp_path / "config.json").write_text(text[:-1])
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        read_config(tmp_path / "config.json")


def test_any_change_changes_the_digest(study: Path) -> None:
    plain = read_study(study).configs()[0].digest()
    overrides = ({"training.epochs": 3}, {"data.channels": 3}, {"model.depth": 4}, {"seed": 11})
    younger = (
        {"training.budget": "off"},
        {"training.timeout_seconds": 9},
        {"training.checkpoint_minutes": 0},
        {"training.gradient_compression": "fp16"},
        {"data.loader_workers": 1, "data.loading": "decode"},
        {"data.augment_flips": True},
        {"data.augment_crop": 0.5},
        {"data.augment_brightness": 0.1},
        {"data.augment_contrast": 0.1},
        {"pytorch_native.static_graph": True},
        {"pytorch_native.gradient_as_bucket_view": True},
    )
    for override in (*overrides, *younger):
        assert read_study(study, override).configs()[0].digest() != plain


# Options that no configuration of formats 1 to 4 has.
ADDED_SINCE: Any = {"task": True, "emulation": True, "saliency": True, "training": {"compute_profile"}}


def test_a_digest_leaves_out_what_has_its_default() -> None:
    """Written down when record format 5 began: an option added since changes no digest."""
    first = "b57746b96a24bdf54833c6083b14d789a7fc7a65e773d38c38eba79b90850b11"
    assert make_point(Path("/images")).digest() == first


def test_a_configuration_of_the_first_records_keeps_its_older_digest() -> None:
    """Written down with format 1: records of those days are still known by it."""
    earlier = "ab30fc10ec956f052802e7e6a13bf05f01e41ddf64c07d81d4e8045bdf1267b0"
    assert older_digest(make_point(Path("/images")).model_dump(exclude=ADDED_SINCE)) == earlier


@given(st.text(max_size=30))
def test_run_ids_are_plain_names_whatever_an_axis_holds(text: str) -> None:
    tables = {
        "data": {"folder": "x", "image_height": 8, "image_width": 8, "foreground": [text, "255"]},
        "training": {"epochs": 1},
    }
    study = StudyConfig.model_validate({"name": "s", "workers": [1], "repeats": 1, **tables})
    try:
        runs = [point.run for point in study.configs()]
    except UserError:
        return
    assert all("/" not in run and "\n" not in run and not run.startswith(".") for run in runs)


def test_the_shipped_studies_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK", "/work-folder")
    studies = sorted((PROJECT / "slurm" / "studies").glob("*.toml"))
    assert studies
    for path in studies:
        assert read_study(path).configs()


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "slurm" / "studies").glob("why_*.toml")), ids=lambda p: p.stem
)
def test_an_ablation_changes_one_thing_and_says_what_confirms_it(path: Path) -> None:
    points = read_study(path).configs()
    assert len(varying(points)) == 1
    comment = path.read_text().partition("workers =")[0]
    assert all(
        word in comment for word in ("Tests ", "One thing changes", "Confirmed where", "refuted where")
    )


def test_knobs_of_horovod_reach_its_environment() -> None:
    assert HorovodKnobs().environment() == {}
    knobs = HorovodKnobs(cycle_time_ms=2, fusion_threshold_mb=0.5, yield_when_idle=True)
    assert knobs.environment() == {
        "HOROVOD_CYCLE_TIME": "2.0",
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_WAIT_MODE": "1",
    }
    assert set(HorovodKnobs(yield_when_idle=False).environment().values()) == {"0"}
    assert set(HorovodKnobs(controller="gloo").environment().values()) == {"gloo"}


def test_a_horovod_configuration_of_the_first_records_keeps_its_older_digest(study: Path) -> None:
    """Written down before yield_when_idle was there."""
    earlier = "36bfd4bd9f9d7adf329c5fea0be648078d9f1d277ba6f3667c2364942c063787"
    point = next(p for p in read_study(study, {"horovod.cycle_time_ms": 5}).configs() if p.horovod)
    placed = point.model_copy(update={"data": make_point(Path("/images")).data})
    assert older_digest(placed.model_dump(exclude=ADDED_SINCE)) == earlier
    changed = point.model_copy(update={"horovod": HorovodKnobs(cycle_time_ms=5, yield_when_idle=True)})
    assert changed.digest() != point.digest()


def test_criteria_reach_the_analysis_and_change_no_point(study: Path, tmp_path: Path) -> None:
    plain = read_study(study)
    judged = read_study(study, {"criteria.iou_margin": 0.02, "criteria.target_iou": 0.75})
    assert judged.configs() == plain.configs()
    StudyFolder(tmp_path / "logs", judged).prepare()
    recorded = recorded_study(tmp_path / "logs")
    assert recorded is not None
    assert recorded.criteria == Criteria(iou_margin=0.02, target_iou=0.75)
    assert recorded_study(tmp_path) is None


def test_a_study_file_that_is_cut_off_is_an_error_with_its_cure(study: Path, tmp_path: Path) -> None:
    StudyFolder(tmp_path / "logs", read_study(study)).prepare()
    path = tmp_path / "logs" / STUDY_NAME
    path.write_text(path.read_text()[:-20])
    with pytest.raises(
        UserError, match=r"study.json cannot be read: .*unet-scaling run STUDY.toml .* writes it again"
    ):
        recorded_study(tmp_path / "logs")


def test_a_run_folder_of_an_earlier_version_keeps_the_name_of_its_configuration(
    study: Path, tmp_path: Path
) -> None:
    folder = StudyFolder(tmp_path / "logs", read_study(study))
    first = folder.prepare()[0]
    older = folder.run_folder(first) / "point.json"
    config_path(folder.run_folder(first)).rename(older)
    assert folder.prepare()[0] == first
    assert config_path(folder.run_folder(first)) == older
    assert not (folder.run_folder(first) / "config.json").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"workers": [2], "training.plays": 3}, "training.plays = 3 is no multiple of workers = 2"),
        ({"model.batch_norm": "sync", "training.plays": 4}, "training.plays is for model.batch_norm"),
        (
            {"workers": [1], "training.plays": 4, "pytorch_native.static_graph": True},
            "static_graph needs one pass per step (training.accumulate, training.plays), found 4",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(study: Path, override: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        read_study(study, override).configs()


def test_played_workers_are_an_axis_and_real_ones_their_default(study: Path) -> None:
    axes = {"workers": [1], "training.plays": [2, 14], "training.accumulate": 3}
    played = read_study(study, axes).configs()
    assert {(config.played_workers, config.passes_per_step) for config in played} == {(2, 6), (14, 42)}
    real = read_study(study, {"workers": [4], "training.accumulate": 3}).configs()
    assert {(config.played_workers, config.plays_per_worker) for config in real} == {(4, 1)}
