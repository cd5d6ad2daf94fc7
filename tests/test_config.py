"""Studies: the product of their axes, and errors that name file, key, value and what is allowed."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.launch.study_folder import StudyFolder
from tests.studies import make_point
from unet_scaling.base.errors import UserError
from unet_scaling.base.validation import StrictModel
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.frameworks import OPTION_TABLES
from unet_scaling.study.options import Criteria, HorovodKnobs, NativeKnobs
from unet_scaling.study.study_file import read_config, read_study, recorded_study

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


def test_is_the_product_of_its_axes_with_a_seed_for_each_repeat(study: Path) -> None:
    """Options of a framework multiply its own points only; paths are absolute."""
    points = read_study(study, {"horovod.cycle_time_ms": [1, 5], "model.width": [8, 16]}).configs()
    counts = Counter(point.framework for point in points)
    assert counts == {"horovod": 3 * 2 * 2 * 2, "pytorch_native": 3 * 2 * 2}
    assert len({point.run for point in points}) == len(points)
    assert {(point.repeat, point.seed) for point in points} == {(1, 10), (2, 11)}
    assert {point.data.folder for point in points} == {str(PROJECT / "images")}
    assert all(point.knobs == NativeKnobs() for point in points if point.framework == "pytorch_native")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"training.epoch": 3}, r"training\.epoch: unknown key; did you mean epochs\?"),
        ({"training.precision": "fp64"}, r"found 'fp64'.*'fp32', 'tf32' or 'bf16'"),
        ({"task.options": {"value": {"a": 1}}}, r"task\.options\.value: found \{'a': 1\}; allowed: true or"),
        ({"epochs": 3}, r"epochs: unknown key; did you mean training\.epochs\?"),
        ({"training.colour": 3}, r"colour: unknown key; unet-scaling explain training lists those known"),
        ({"training.precision": "fb16"}, r"found 'fb16'; did you mean bf16\? allowed: 'fp32'"),
        ({"frameworks": ["horovd"]}, r"frameworks\[0\]: found 'horovd'; did you mean horovod\?"),
        ({"workers": []}, r"workers: found \[\]; at least one value is needed"),
        ({"frameworks": ["horovod"], "pytorch_native.bucket": 5}, r"pytorch_native\.bucket: unknown key"),
        ({"name": "a/b"}, "name: found 'a/b'; allowed: a text of letters, digits and"),
        ({"workers": [1, 2, 1]}, "names a value twice"),
        ({"repeats": "until"}, "found 'until'; allowed: a number such as 5, \"until 3 %\""),
        ({"repeats": "until 3 %, at most 2"}, r"until\.most: found 2; Input should be greater than or equal"),
        ({"repeats": "until 3 %", "frameworks": ["horovod"]}, "name both frameworks"),
        (
            {"frameworks": ["ddp"]},
            r"'pytorch_native' \(DDP\), 'horovod', 'lightning' \(Fabric\) or 'accelerate'",
        ),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(
    study: Path, override: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read_study(study, override)
    assert "sweep.toml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_refuses_numbers_beyond_any_study_with_their_range(study: Path) -> None:
    """Every number that a study may hold has an upper limit, which the error names."""
    tables: dict[str, type[StrictModel]] = {"": StudyConfig, **OPTION_TABLES, "criteria": Criteria}
    asked = 0
    for table, model in tables.items():
        for key, described in model.model_json_schema()["properties"].items():
            kinds = [described, described.get("items", {}), *described.get("anyOf", [])]
            for kind in (kind for kind in kinds if kind.get("type") in ("integer", "number")):
                assert {"maximum", "exclusiveMaximum", "enum"} & set(kind), key
                dotted = f"{table}.{key}".lstrip(".")
                for value in (10**40, float("inf"), float("nan"))[: 1 if kind["type"] == "integer" else 3]:
                    given = [value] if dotted == "workers" else value
                    with pytest.raises(UserError) as caught:
                        read_study(study, {dotted: given})
                    assert re.search(rf"sweep\.toml: {dotted}(\[0\])?: found {value}", str(caught.value))
                    asked += 1
    assert asked > 40


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xef\xbb\xbfworkers = [0]", r"workers\[0\]: found 0"),
        (b"workers = [1]\n# caf\xe9", r"line 2 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_named_with_the_cure(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_study(path)


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


@pytest.mark.parametrize("table", ["horovod", "pytorch_native", "lightning", "training", ""])
def test_a_key_of_a_later_version_is_named(table: str, tmp_path: Path) -> None:
    content = json.loads(make_point(tmp_path).model_dump_json())
    where = content if not table else content.setdefault(table, {}) or {}
    where["later_key"] = 1
    if table:
        content[table] = where
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"{'.'.join(filter(None, (table, 'later_key')))}: unknown key; "):
        read_config(tmp_path / "config.json")


def test_a_key_that_older_files_have_is_read_and_left_out(study: Path) -> None:
    plain = read_study(study).configs()[0]
    assert read_study(study, {"training.noise_scale_every": 8}).configs()[0] == plain
    recorded = plain.model_dump() | {"training": plain.training.model_dump() | {"noise_scale_every": "auto"}}
    assert RunConfig.model_validate(recorded).digest() == plain.digest()


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


def test_a_digest_leaves_out_what_has_its_default() -> None:
    """Written down when record format 5 began: an option added since changes no digest."""
    first = "b57746b96a24bdf54833c6083b14d789a7fc7a65e773d38c38eba79b90850b11"
    assert make_point(Path("/images")).digest() == first


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


def test_criteria_reach_the_analysis_and_change_no_point(study: Path, tmp_path: Path) -> None:
    plain = read_study(study)
    judged = read_study(study, {"criteria.iou_margin": 0.02, "criteria.target_iou": 0.75})
    assert judged.configs() == plain.configs()
    StudyFolder(tmp_path / "logs", judged).prepare()
    recorded = recorded_study(tmp_path / "logs")
    assert recorded is not None
    assert recorded.criteria == Criteria(iou_margin=0.02, target_iou=0.75)
    assert recorded_study(tmp_path) is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"workers": [2], "training.plays": 3}, "training.plays = 3 is no multiple of workers = 2"),
        ({"model.batch_norm": "sync", "training.plays": 4}, "training.plays is for model.batch_norm"),
        (
            {"workers": [1], "training.plays": 4, "pytorch_native.static_graph": True},
            "static_graph needs one pass per step (training.accumulate, training.plays), found 4",
        ),
        (
            {"model.activation_checkpointing": True, "training.compile": True},
            "model.activation_checkpointing = true and training.compile = true: remove one of them",
        ),
        ({"strategy.synchronise_every": 4, "strategy.staleness": 1}, "set one of them"),
        (
            {"strategy.average_moments": False},
            "has no effect at strategy.synchronise_every = 1; set that, or remove strategy.average_moments",
        ),
        (
            {"strategy.synchronise_every": 4, "strategy.outer_nesterov": True},
            "strategy.outer_nesterov = true has no effect at strategy.outer_momentum = 0",
        ),
        (
            {"strategy.staleness": [0, 1], "strategy.outer_momentum": 0.9},
            "strategy.outer_momentum = 0.9 has no effect at any point; remove it",
        ),
        (
            {"strategy.synchronise_every": 4, "strategy.subgroup_size": 2, "workers": [3]},
            "strategy.subgroup_size = 2 is no divisor of 3 workers",
        ),
        (
            {
                "strategy.synchronise_every": 4,
                "strategy.subgroup_size": 2,
                "workers": [2],
                "training.plays": 6,
            },
            "strategy.subgroup_size = 2: each worker plays 3; use workers = 1",
        ),
        (
            {"strategy.synchronise_every": 4, "model.batch_norm": "sync"},
            "model.batch_norm = 'sync' exchanges in every step",
        ),
        ({"model.batch_norm": "sync"}, "set training.channels_last = false"),
        ({"strategy.staleness": 1, "horovod.groups": 2}, "horovod.groups has no effect; remove it"),
        (
            {"strategy.synchronise_every": 4, "training.gradient_compression": "fp16"},
            "strategy.synchronise_every = 4: training.gradient_compression has no effect; remove it",
        ),
        (
            {"strategy.staleness": 1, "frameworks": ["lightning"]},
            "strategy.staleness = 1 is for pytorch_native and horovod, found lightning",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(study: Path, override: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        read_study(study, override).configs()


def test_strategies_are_points_of_one_study_but_never_two_at_once(study: Path) -> None:
    axes = {"strategy.synchronise_every": [1, 4], "strategy.staleness": [0, 1], "frameworks": ["horovod"]}
    chosen = (each.strategy for each in read_study(study, axes | {"workers": [2], "repeats": 1}).configs())
    assert [(each.synchronise_every, each.staleness) for each in chosen] == [(1, 0), (1, 1), (4, 0)]
    none = axes | {"strategy.synchronise_every": [4, 16], "strategy.staleness": [1]}
    with pytest.raises(UserError, match=r"strategy\.staleness: one needs its default"):
        read_study(study, none).configs()


def test_an_option_of_a_strategy_is_an_axis_where_it_has_an_effect(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no point of its own is left out, which is said once, and leaves averaged gradients there."""

    def points(**axes: object) -> list[dict[str, object]]:
        given = {f"strategy.{key}": value for key, value in axes.items()}
        read = read_study(study, given | {"frameworks": ["horovod"], "workers": [2], "repeats": 2})
        configs = read.configs()
        assert [each.run for each in configs] == read.run_names()
        return [each.strategy.model_dump(exclude_defaults=True) for each in configs if each.repeat == 1]

    local, weights = {"synchronise_every": 5}, {"synchronise_every": 5, "average_moments": False}
    assert points(synchronise_every=[1, 5], average_moments=[True, False]) == [{}, local, weights]
    assert capsys.readouterr().err.count("average_moments = false with synchronise_every = 1") == 1
    assert points(synchronise_every=[1, 5], average_moments=False) == [{}, weights]
    assert not capsys.readouterr().err
    late = {"staleness": 1, "stale_rate_factor": 0.5}
    outer = [local | {"outer_momentum": momentum} for momentum in (0.5, 0.9)]
    both = points(
        synchronise_every=[1, 5], staleness=[0, 1], outer_momentum=[0.5, 0.9], stale_rate_factor=0.5
    )
    assert both == [{}, late, *outer]
