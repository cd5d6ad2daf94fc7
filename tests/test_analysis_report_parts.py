"""The fairness table, the provenance and the study file of a report, and how it writes numbers."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest

from analysis.figures.drawing.titles import launch_titles
from analysis.findings.check import Check
from analysis.findings.comparison import compare
from analysis.findings.fairness_table import fairness_checks, fairness_table
from analysis.loading.load import load_study
from analysis.loading.options import flat_options
from analysis.loading.reference import load_reference
from analysis.report.assemble import make_report
from analysis.report.figure_files import inputs_of
from analysis.report.markdown import escaped
from analysis.report.provenance import origins
from analysis.report.reproduction import reproduction
from analysis.study import Names, Study
from analysis.text import (
    NOT_RESOLVED,
    chart_number,
    chart_percent,
    clean,
    count,
    first_of,
    number,
    with_interval,
)
from tests.records import make_workers, write_run
from tests.report_studies import write_study
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.record_lines import Resumed
from unet_scaling.study.study_file import read_study


def check_of(study: Study, name: str) -> Check:
    (found,) = [check for check in fairness_checks(study) if check.check == name]
    return found


def marks(study: Study) -> dict[str, str]:
    table = fairness_table(fairness_checks(study))
    return dict(zip(table["check"], table["mark"], strict=True))


def fact(study: Study, check: str) -> str:
    table = fairness_table(fairness_checks(study)).set_index("check")
    return str(table.loc[check, "fact"])


def identity(point: RunConfig) -> tuple[object, ...]:
    return point.framework, point.workers, point.repeat, point.seed, *flat_options(point).items()


def write_pair(folder: Path, *, native: Mapping[str, object], horovod: Mapping[str, object]) -> Study:
    """One run of each framework on 2 workers, their headers changed."""
    write_run(folder, "pytorch_native", 2, header=native)
    write_run(folder, "horovod", 2, header=horovod)
    return load_study(folder)


def write_reference_log(path: Path) -> None:
    rows = [
        f"{epoch},{seconds},0.5,0.001,{10.0 + 2 * 5.0},1.0,0.9"
        for epoch, seconds in enumerate((10.0, 5.0, 5.0))
    ]
    path.write_text("\n".join([",time_per_epoch,loss,lr,training_time,test_time,iou", *rows, ""]))


def test_a_fair_study_is_marked_yes_in_every_row_but_those_of_the_processor(tmp_path: Path) -> None:
    found = marks(load_study(write_study(tmp_path)))
    not_recorded = ("same clock of the cores", "machine quiet", "asked for and read")
    assert {found.pop(check) for check in not_recorded} == {"not known"}
    assert set(found.values()) == {"yes"}


def test_logs_without_records_are_not_known_but_for_their_repeats(tmp_path: Path) -> None:
    for name in ("log_1.csv", "log_hvd_1.csv"):
        write_reference_log(tmp_path / name)
    found = marks(load_reference(tmp_path))
    assert found.pop("equal repeats") == "yes"
    assert set(found.values()) == {"not known"}


def test_changes_that_no_commit_holds_leave_the_software_unknown(tmp_path: Path) -> None:
    study = write_pair(tmp_path, native={"dirty": True}, horovod={"dirty": True})
    assert marks(study)["same software"] == "not known"


def test_gpu_workers_that_could_use_the_same_cores_are_marked(tmp_path: Path) -> None:
    workers = [each.model_copy(update={"cores": [0, 1]}) for each in make_workers(2, device="H200")]
    study = write_pair(tmp_path, native={"workers": workers}, horovod={"workers": workers})
    assert marks(study)["workers share nothing"] == "no"
    assert "2 runs" in fact(study, "workers share nothing")


def test_an_allocator_or_environment_that_is_not_recorded_is_not_known(tmp_path: Path) -> None:
    unknown = [each.model_copy(update={"allocator": None, "environment": None}) for each in make_workers(2)]
    older = write_pair(tmp_path / "older", native={"workers": unknown}, horovod={"workers": unknown})
    assert marks(older)["same way of computing"] == "not known"
    assert marks(older)["same environment"] == "not known"


def test_attempts_of_which_one_framework_alone_left_no_record_are_one_sided(tmp_path: Path) -> None:
    resumed = {"format": 2, "attempt": 2, "resumed": Resumed(epoch=1, step=0)}
    found = check_of(write_pair(tmp_path, native={}, horovod=resumed), "same machine in all attempts")
    assert (found.mark, found.one_sided) == ("not known", True)


def test_one_repeat_says_nothing_of_the_order(tmp_path: Path) -> None:
    study = write_pair(tmp_path, native={}, horovod={})
    assert marks(study)["order interleaved in time"] == "not known"


def test_unequal_repeats_are_marked_with_their_range(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_run(tmp_path, "pytorch_native", 1, repeat)
    write_run(tmp_path, "horovod", 1, 1)
    study = load_study(tmp_path)
    assert marks(study)["equal repeats"] == "no"
    assert fact(study, "equal repeats") == "1 to 3 per point"


def test_other_numbers_of_pixels_evaluated_are_marked_and_withhold(tmp_path: Path) -> None:
    study = write_pair(tmp_path, native={}, horovod={})
    of_horovod = study.evaluations["run"].astype(str).str.startswith("horovod")
    study.evaluations.loc[of_horovod, "true_negative"] = 5
    found = check_of(study, "same images evaluated")
    assert (found.mark, found.withholds) == ("no", True)
    assert "1,000,005 to 10,000,000 pixels" in found.fact


def test_origins_hold_every_value_that_the_records_have(tmp_path: Path) -> None:
    study = write_pair(
        tmp_path,
        native={"started_utc": "2025-01-31T12:00:00Z"},
        horovod={"versions": {"python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1"}},
    )
    found = {origin.name: origin.values for origin in origins(study)}
    assert found["version of horovod"] == ("0.28.1",)
    assert found["transport of native DDP"] == ("backend gloo",)
    assert found["hosts"] == ("node1",)
    assert found["Slurm jobs"] == ()


def test_the_study_file_gives_the_same_points_again(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for framework in ("pytorch_native", "horovod"):
            for workers in (1, 4):
                for repeat in (1, 2):
                    options: dict[str, dict[str, object]] = {
                        "data": {"folder": str(PROJECT / "data/nuclei")},
                        "training": {"precision": precision, "epochs": 3, "learning_rate": 0.0002},
                    }
                    label = f"-{precision}"
                    write_run(tmp_path, framework, workers, repeat, options=options, label=label)
    study = load_study(tmp_path)
    again = reproduction(study)
    assert again is not None
    assert again.remarks == ("tiny.toml is beside this report; the command names its usual place",)
    assert again.commands[0] == ".venv/bin/unet-scaling run logs/tiny/report/tiny.toml"
    assert str(PROJECT) not in again.study_file
    (tmp_path / "tiny.toml").write_text(again.study_file)
    points = read_study(tmp_path / "tiny.toml").configs()
    assert {identity(point) for point in points} == {identity(h.config) for h in study.headers.values()}


def test_runs_that_the_study_file_would_repeat_but_are_missing_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, "pytorch_native", 1, 1)
    write_run(tmp_path, "pytorch_native", 2, 2)
    again = reproduction(load_study(tmp_path))
    assert again is not None
    assert again.remarks[0] == "the file asks for 4 runs; 2 of them are used here"


def test_a_study_of_slurm_names_no_place_of_the_machine_that_trained(tmp_path: Path) -> None:
    write_run(tmp_path, header={"job": {"SLURM_JOB_ID": "7"}})
    again = reproduction(load_study(tmp_path))
    assert again is not None
    assert (
        again.commands[0]
        == ".venv/bin/unet-scaling submit logs/tiny/report/tiny.toml --cluster YOUR_CLUSTER.toml"
    )
    assert 'folder = "data/nuclei"' in again.study_file
    assert any(remark.startswith("data.folder: the runs read a place outside") for remark in again.remarks)
    assert any("YOUR_CLUSTER.toml stands for yours" in remark for remark in again.remarks)


def test_a_default_among_the_values_of_an_axis_is_told(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_run(tmp_path, options={"pytorch_native": {"bucket_cap_mb": 5.0}}, label="-5")
    again = reproduction(load_study(tmp_path))
    assert again is not None
    assert "bucket_cap_mb = [5.0]" in again.study_file
    assert any("without pytorch_native.bucket_cap_mb" in remark for remark in again.remarks)


def test_logs_without_records_have_neither_origin_nor_study_file(tmp_path: Path) -> None:
    write_reference_log(tmp_path / "log_1.csv")
    study = load_reference(tmp_path)
    assert origins(study) == []
    assert reproduction(study) is None


def test_numbers_that_are_not_known_are_dashes() -> None:
    assert number(float("nan"), ".2f") == "—"
    assert number(0.935, ".1%") == "93.5 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(729.14, "729.1"), (1606.2, "1,606"), (0.0051612, "0.005161"), (0.0, "0.000"), (2e7, "20,000,000")],
)
def test_four_digits_count_and_no_exponent_is_shown(value: float, text: str) -> None:
    assert number(value, "~4") == text


def test_an_interval_has_the_decimals_of_its_number() -> None:
    row: dict[Hashable, float] = {"ratio": 99.54, "ratio_low": 98.4812, "ratio_high": 101.0}
    assert with_interval(row, "ratio", "~4") == "99.54 [98.48, 101.00]"
    assert with_interval(row | {"ratio_low": np.nan, "ratio_high": np.nan}, "ratio", "~4") == "99.54"
    assert with_interval(row | {"ratio_low": 99.54, "ratio_high": 99.54}, "ratio", "~4") == "99.54"


def test_a_clean_text_has_one_line_and_no_control_character() -> None:
    assert clean("a\r\n\tb\x00\x1b[31mc\u2066d") == "a b[31mcd"


def test_markdown_cells_cannot_be_left() -> None:
    assert escaped("a|b\n*c* <script> [x](y)") == "a\\|b \\*c\\* \\<script\\> [x](y)"


def test_counts_have_the_plural_of_their_noun() -> None:
    assert [count(1, "run"), count(2, "run"), count(3, "launch")] == ["1 run", "2 runs", "3 launches"]
    assert first_of(["a", "b", "c", "d"], "host", 2) == "a, b and 2 more hosts"


def test_an_interval_too_wide_to_use_is_not_resolved_in_texts_and_charts(tmp_path: Path) -> None:
    for repeat, slow in enumerate((1, 40, 1), start=1):
        write_run(tmp_path, workers=1, repeat=repeat, images_per_second=100 / slow, iou=0.8)
        write_run(tmp_path, workers=2, repeat=repeat, images_per_second=190, iou=0.8)
    report = make_report(load_study(tmp_path))
    row = report.points.set_index("workers").loc[2]
    assert row["efficiency_high"] > 10
    assert with_interval(row.to_dict(), "efficiency", ".0%") == f"95 % {NOT_RESOLVED}"
    drawn = inputs_of(report).points.set_index("workers").loc[2]
    assert drawn[["efficiency_low", "efficiency_high"]].isna().all()
    narrow: dict[Hashable, float] = {
        "x": -0.038,
        "x_low": -0.09,
        "x_high": 0.01,
        "y": 0.0,
        "y_low": 0.0,
        "y_high": 0.02,
    }
    assert not any(NOT_RESOLVED in with_interval(narrow, name, "+.3f") for name in "xy")


def test_a_launch_on_many_hosts_names_the_first_ones() -> None:
    run = {"run": "r1", "hosts": "a b c d", "seed": 1, "throughput": 1.0}
    (title,) = launch_titles(pd.DataFrame([run]), "images / s")
    assert title.startswith("r1, a, b, c and 1 more host,")


def test_charts_have_a_true_minus_sign_and_no_exponent() -> None:
    assert chart_number(-1234567.0) == "\N{MINUS SIGN}1,234,567"
    assert chart_percent(-0.125, 1) == "\N{MINUS SIGN}12.5 %"
    assert chart_number(float("nan")) == chart_percent(float("nan")) == ""


def test_a_further_framework_leaves_the_comparison_with_its_two(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, workers=(1, 2), repeats=2))
    runs = study.runs[study.runs["framework"] == "horovod"].assign(framework="further")
    names = cast(Names, {**study.names, "further": "Further"})
    more = replace(study, runs=pd.concat([study.runs, runs], ignore_index=True), names=names)
    assert more.compared_names == study.compared_names == ("native DDP", "Horovod")
    pd.testing.assert_frame_equal(compare(more), compare(study))
