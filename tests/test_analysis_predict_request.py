"""What a report says before nodes are asked for: efficiency, cost and reach, by hand on exact step times."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.prediction.request import (
    AS_MEASURED,
    AS_PREDICTED,
    EXACT_BASELINE,
    request_table,
)
from analysis.prediction.request_sentences import efficient_counts, request_sentences
from analysis.report.assemble import make_report
from analysis.report.figure_files import FigureFiles
from analysis.report.markdown import summary_markdown
from analysis.report.sections import sections
from analysis.text import Row
from tests.predicted import STEPS, write_launches
from tests.records import write_run
from unet_scaling.study.options import Criteria

NO_PLAN = pd.DataFrame(columns=["seconds_to_target"])
# 0.1 s on 1 worker, and 10 ms for each message round after that.
LATENCY = {n: [0.1 + 0.01 * (n - 1)] * 3 for n in (1, 2, 4, 8)}
STEADY = {n: [0.1 + 0.01 * (n - 1)] * 5 for n in (2, 4, 8)}
EPOCHS = 3


def table_of(folder: Path) -> pd.DataFrame:
    study = load_study(folder)
    return request_table(study, summarise(study))


def efficient(efficiencies: Sequence[tuple[int, float, float]], floor: float = 0.7) -> list[int]:
    """The counts up to which rows of these (workers, efficiency, lower end) are efficient."""
    rows: list[Row] = [
        {"workers": workers, "efficiency": efficiency, "efficiency_low": low}
        for workers, efficiency, low in efficiencies
    ]
    return [row["workers"] for row in efficient_counts(rows, Criteria(efficiency_floor=floor))]


def test_measured_and_predicted_counts_follow_from_the_step_time(tmp_path: Path) -> None:
    write_launches(tmp_path, LATENCY)
    table = table_of(tmp_path).set_index("workers")
    assert table.index.tolist() == [1, 2, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert table["source"].tolist() == [AS_MEASURED] * 4 + [AS_PREDICTED] * 8
    for workers, row in table.iterrows():
        seconds = 0.1 + 0.01 * (int(str(workers)) - 1)
        assert row["step_seconds"] == pytest.approx(seconds, rel=0.02)
        assert row["efficiency"] == pytest.approx(0.1 / seconds, rel=0.02)
    measured = table.loc[8]
    assert measured["worker_hours"] == pytest.approx(8 * EPOCHS * STEPS * 0.17 / 3600)
    predicted = table.loc[16]
    assert predicted["worker_hours"] == pytest.approx(16 * EPOCHS * STEPS * 0.25 / 3600 / 2, rel=0.02)
    assert predicted["efficiency_low"] <= predicted["efficiency"] <= predicted["efficiency_high"]
    assert predicted["largest_term"] == "messages one after the other"


def test_an_epoch_has_as_many_images_on_more_workers(tmp_path: Path) -> None:
    """The larger count has fewer steps: 16 workers make of the 640 images of 8 workers 5 steps, not 10."""
    write_launches(tmp_path, LATENCY)
    row = table_of(tmp_path).set_index("workers").loc[16]
    assert row["worker_hours"] * 3600 / 16 == pytest.approx(EPOCHS * 5 * row["step_seconds"], rel=1e-6)


def test_the_reach_is_the_last_count_before_one_that_falls_below() -> None:
    counts = [(1, 1.0, 1.0), (2, 0.9, 0.9), (4, 0.72, 0.71), (8, 0.7, 0.69), (16, 0.9, 0.8)]
    assert efficient(counts) == [2, 4]
    assert efficient([(1, 1.0, 1.0), (2, 0.7, 0.6)]) == []


def test_a_count_without_an_interval_shows_nothing() -> None:
    assert efficient([(1, 1.0, 1.0), (2, 0.9, np.nan), (4, 0.8, 0.8), (8, 0.9, np.nan)]) == [4]
    assert efficient([(1, 1.0, np.nan), (2, 0.9, np.nan)]) == []


def test_no_count_is_efficient_beyond_one_that_was_measured_below_the_floor() -> None:
    """One launch on 4 workers has no interval: what it measured is not passed over for all that."""
    assert efficient([(1, 1.0, 1.0), (2, 0.9, 0.9), (4, 0.4, np.nan), (8, 0.8, 0.75)]) == [2]


def test_workers_that_are_slower_than_one_are_not_efficient_whatever_the_floor() -> None:
    assert efficient([(1, 1.0, 1.0), (2, 0.45, 0.4), (4, 0.45, 0.4)], floor=0.3) == []


def test_the_sentence_names_reach_cost_and_term(tmp_path: Path) -> None:
    write_launches(tmp_path, LATENCY)
    study = load_study(tmp_path)
    (said,) = request_sentences(study, table_of(tmp_path), NO_PLAN)
    assert "above 0.7 up to 4 workers, by whole intervals of 75 % confidence, there 0.77" in said
    assert said.count("as far as predictions reach") == 0
    assert "16 workers are expected at an efficiency of 0.40" in said
    assert "of what is lost the terms fitted give" in said
    assert "% to messages one after the other" in said


def test_perfect_scaling_reaches_as_far_as_predictions(tmp_path: Path) -> None:
    write_launches(tmp_path, dict.fromkeys((1, 2, 4), (0.1, 0.1, 0.1)))
    (said,) = request_sentences(load_study(tmp_path), table_of(tmp_path), NO_PLAN)
    assert "up to 8 workers (as far as predictions reach)" in said


def test_two_counts_are_not_extended(tmp_path: Path) -> None:
    write_launches(tmp_path, {1: [0.1] * 3, 2: [0.11] * 3})
    assert set(table_of(tmp_path)["source"]) == {AS_MEASURED}
    (said,) = request_sentences(load_study(tmp_path), table_of(tmp_path), NO_PLAN)
    assert "up to 2 workers, by whole intervals" in said
    assert "larger counts are not predicted: that needs 3 worker counts" in said


def test_the_confidence_is_that_of_the_fewest_launches_behind_the_reach(tmp_path: Path) -> None:
    write_launches(tmp_path, {1: [0.1] * 5, 2: [0.11] * 4, 4: [0.12] * 5})
    table = table_of(tmp_path).set_index("workers")
    assert table["coverage"].tolist() == [0.9375, 0.875, 0.9375, *[0.95] * 4]
    (said,) = request_sentences(load_study(tmp_path), table_of(tmp_path), NO_PLAN)
    assert "by whole intervals of 88 % confidence" in said


def test_a_training_has_the_epochs_of_its_own_series(tmp_path: Path) -> None:
    for epochs in (3, 9):
        options = {"training": {"epochs": epochs}}
        for repeat in (1, 2, 3):
            write_run(tmp_path, "pytorch_native", 1, repeat, options=options, label=f"-e{epochs}")
    table = table_of(tmp_path)
    assert table["worker_hours"].tolist() == pytest.approx([3 * 0.48 / 3600, 9 * 0.48 / 3600])


def test_a_noisy_baseline_widens_the_interval_of_a_predicted_efficiency(tmp_path: Path) -> None:
    """The same medians everywhere: only how far the launches on 1 worker lie apart differs."""
    widths = []
    for spread in (0.0, 0.004, 0.016):
        alone = [0.1 + share * spread for share in (-1, -0.5, 0, 0.5, 1)]
        write_launches(tmp_path / f"{spread}", STEADY | {1: alone})
        row = table_of(tmp_path / f"{spread}").set_index("workers").loc[16]
        widths.append(np.log(row["efficiency_high"] / row["efficiency_low"]))
        of_step = np.log(row["step_seconds_high"] / row["step_seconds_low"])
        assert widths[-1] == pytest.approx(of_step, abs=1e-6) if spread == 0 else widths[-1] > of_step
    assert widths == sorted(widths)
    assert widths[2] > widths[0] + 0.1


def test_a_baseline_of_two_launches_is_said_to_be_taken_as_exact(tmp_path: Path) -> None:
    write_launches(tmp_path, LATENCY | {1: [0.09, 0.11]})
    table = table_of(tmp_path)
    assert set(table.loc[table["source"] == AS_PREDICTED, "why"]) == {EXACT_BASELINE}
    (said,) = request_sentences(load_study(tmp_path), table, NO_PLAN)
    assert EXACT_BASELINE in said


def test_emulated_runs_say_so_and_cost_no_worker_hours(tmp_path: Path) -> None:
    options = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}
    for workers in (1, 2, 4):
        for repeat in (1, 2, 3):
            write_run(
                tmp_path, "pytorch_native", workers, repeat, images_per_second=9.0 * workers, options=options
            )
    table = table_of(tmp_path)
    assert table["worker_hours"].isna().all()
    (said,) = request_sentences(load_study(tmp_path), table, NO_PLAN)
    assert said.startswith("Emulated, k = 1, profile v100_like.toml: native DDP: the efficiency is above")
    assert "worker-hours" not in said


def test_the_time_to_an_iou_of_played_runs_is_named(tmp_path: Path) -> None:
    write_launches(tmp_path, LATENCY)
    plan = pd.DataFrame(
        [
            {
                "options": "", "framework": "pytorch_native", "knobs": "", "workers": 14, "target_iou": 0.75,
                "seconds_to_target": 7200.0, "seconds_to_target_low": 3600.0,
                "seconds_to_target_high": 10800.0, "speed": "predicted",
            }
        ]
    )  # fmt: skip
    *_, said = request_sentences(load_study(tmp_path), table_of(tmp_path), plan)
    assert said == "native DDP on 14 workers: 2.00 [1.00, 3.00] h to an IoU of 0.75 (speed predicted)"


def test_page_and_summary_carry_it(tmp_path: Path) -> None:
    write_launches(tmp_path, LATENCY)
    report = make_report(load_study(tmp_path))
    (section,) = [each for each in sections(report, FigureFiles({}, {})) if each.anchor == "request"]
    assert section.title == "Before you ask for nodes"
    assert "up to 4 workers" in section.conclusion
    assert section.grids[0].rows
    text = summary_markdown(report)
    assert "## Before you ask for nodes" in text
    assert "up to 4 workers" in text
