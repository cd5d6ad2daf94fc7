"""The overhead budget: known losses land in their own parts, and the parts sum to the whole exactly."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.budget.shares import FRACTIONS, PARTS, run_shares
from analysis.budget.tables import budget_notes, budget_table, difference_table
from analysis.findings.comparison import compare
from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from tests.budgets import Steps, write_budget_run
from tests.records import write_run
from tests.report_studies import write_study

ALONE = Steps()
STEP = 0.099


def write_pair(folder: Path, steps: Steps, repeats: int = 3, workers: int = 2) -> Path:
    """Native DDP on 1 worker as always, and on more with these steps; each repeat at its own pace."""
    for repeat in range(1, repeats + 1):
        pace = 1 + 0.1 * repeat
        write_budget_run(folder, "pytorch_native", 1, repeat, ALONE, pace=pace)
        write_budget_run(folder, "pytorch_native", workers, repeat, steps, pace=pace)
    return folder


def row_of(folder: Path) -> "pd.Series[float]":
    table = budget_table(load_study(folder))
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (Steps(data_wait=0.020), {"data_wait": 0.010}),
        (Steps(host_to_device=0.012), {"data_wait": 0.010}),
        (Steps(backward=0.060), {"compute": 0.010}),
        (Steps(sync=0.010, wire=0.010), {"wire": 0.010}),
        (Steps(forward=(0.030, 0.040), sync=(0.010, 0.0)), {"compute": 0.005, "imbalance": 0.005}),
        (Steps(optimizer=0.016), {"optimizer": 0.010}),
        (Steps(rest=0.011), {"rest": 0.010}),
        (Steps(rest=(0.001, 0.011)), {"rest": 0.005, "imbalance": 0.005}),
    ],
)
def test_a_loss_lands_in_its_own_part(tmp_path: Path, steps: Steps, expected: dict[str, float]) -> None:
    row = row_of(write_pair(tmp_path, steps))
    step = STEP + 0.010
    for part in PARTS:
        assert row[part] == pytest.approx(expected.get(part, 0.0) / step, abs=2e-8), part
    assert row["deviation"] == pytest.approx(0.010 / step)


def write_noisy(folder: Path, repeats: int = 5) -> Path:
    """Both frameworks on 1, 2 and 4 workers; every phase of every run has its own noise."""
    random = np.random.default_rng(3)
    for repeat in range(1, repeats + 1):
        for framework, extra in (("pytorch_native", 0.002), ("horovod", 0.009)):
            for workers in (1, 2, 4):
                noise = 1 + 0.05 * random.standard_normal(6)
                sync = [0.004 * (workers - 1) + extra * noise[0] * (worker > 0) for worker in range(workers)]
                steps = Steps(
                    data_wait=0.010 * noise[1],
                    forward=0.030 * noise[2],
                    backward=0.050 * noise[3],
                    optimizer=0.006 * noise[4],
                    sync=sync,
                    wire=min(sync),
                )
                write_budget_run(folder, framework, workers, repeat, steps)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("repeats", [1, 4, 5])
def test_the_parts_sum_to_the_deviation_of_the_summary(tmp_path: Path, repeats: int) -> None:
    study = load_study(write_noisy(tmp_path, repeats))
    table, points = budget_table(study), summarise(study)
    assert len(table) == 4
    both = table.merge(points, on=["options", "framework", "knobs", "workers"], suffixes=("", "_summary"))
    sums = both[list(PARTS)].sum(axis=1)
    np.testing.assert_allclose(sums, both["deviation_summary"], rtol=0, atol=1e-14)
    np.testing.assert_allclose(both["deviation_low"], both["deviation_low_summary"], atol=1e-6)
    np.testing.assert_allclose(both["deviation_high"], both["deviation_high_summary"], atol=1e-6)
    assert both["compute_low"].notna().all() == (repeats >= 3)


def test_the_parts_of_a_difference_sum_to_the_ratio_of_the_comparison(tmp_path: Path) -> None:
    """Also where further frameworks are compared, so that each interval is wider."""
    folder = write_noisy(tmp_path)
    for repeat in range(1, 6):
        write_budget_run(folder, "lightning", 2, repeat, ALONE, pace=1 + 0.01 * repeat)
    report = make_report(load_study(folder))
    assert set(report.comparisons["comparisons"]) == {4}
    both = report.overhead.differences.merge(report.comparisons, on=["options", "workers", "pairs"])
    assert list(both["workers"]) == [1, 2, 4]
    np.testing.assert_allclose(both[list(PARTS)].sum(axis=1), both["ratio"] - 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(both["difference_low"], both["ratio_low"] - 1, atol=1e-6)


def test_a_difference_lands_in_its_own_part_with_its_sign(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_budget_run(tmp_path, "pytorch_native", 2, repeat, ALONE, pace=repeat)
        write_budget_run(tmp_path, "horovod", 2, repeat, Steps(data_wait=0.109), pace=repeat)
    study = load_study(tmp_path)
    (row,) = difference_table(study, compare(study)).to_dict("records")
    assert row["data_wait"] == pytest.approx(1.0)
    assert row["data_wait_low"] == pytest.approx(1.0)
    assert sum(abs(row[part]) for part in PARTS) == pytest.approx(1.0)


def test_what_a_repeat_has_in_common_cancels_and_what_it_has_not_widens(tmp_path: Path) -> None:
    steady = row_of(write_pair(tmp_path / "steady", Steps(data_wait=0.020), repeats=5))
    assert steady["data_wait_high"] - steady["data_wait_low"] == pytest.approx(0, abs=2e-8)
    for repeat in range(1, 6):
        write_budget_run(tmp_path / "apart", "pytorch_native", 1, repeat, ALONE, pace=1 + 0.1 * repeat)
        write_budget_run(tmp_path / "apart", "pytorch_native", 2, repeat + 5, ALONE, pace=1 + 0.1 * repeat)
    apart = row_of(tmp_path / "apart")
    assert apart["compute_low"] < -0.05 < 0.05 < apart["compute_high"]


def test_intervals_hold_their_numbers(tmp_path: Path) -> None:
    table = budget_table(load_study(write_noisy(tmp_path)))
    for part in ("compute", "wire", "imbalance", "data_wait"):
        assert (table[f"{part}_low"] <= table[part]).all(), part
        assert (table[part] <= table[f"{part}_high"]).all(), part


def test_no_difference_of_shares_has_an_interval_beyond_what_is_possible(tmp_path: Path) -> None:
    for repeat, pace in enumerate((1.0, 30.0, 1.0), start=1):
        write_budget_run(tmp_path, "pytorch_native", 1, repeat, ALONE, pace=pace)
        write_budget_run(tmp_path, "pytorch_native", 2, repeat, ALONE)
    row = row_of(tmp_path)
    ends = row[[f"{part}{end}" for part in PARTS for end in ("_low", "_high")]].astype(float)
    assert np.isnan(row["compute_low"])
    assert ends.dropna().between(-1, 1).all()


def test_every_run_has_shares_that_sum_to_one(tmp_path: Path) -> None:
    shares = run_shares(load_study(write_noisy(tmp_path, 2)))
    np.testing.assert_allclose(shares[list(FRACTIONS)].sum(axis=1), 1)


def test_without_a_baseline_the_reason_is_said_and_no_row_is_made(tmp_path: Path) -> None:
    write_budget_run(tmp_path, "horovod", 2)
    study = load_study(tmp_path)
    assert budget_table(study).empty
    assert list(budget_notes(study, budget_table(study))) == [
        "Horovod on 2 workers: no overhead budget: no run on 1 worker"
    ]


def test_a_run_without_a_budget_takes_its_point_out_and_says_why(tmp_path: Path) -> None:
    write_pair(tmp_path, ALONE)
    write_budget_run(tmp_path, "pytorch_native", 2, 4, budget=None)
    study = load_study(tmp_path)
    assert budget_table(study).empty
    (note,) = budget_notes(study, budget_table(study))
    assert note.endswith("no overhead budget: where sync begins is not known (1 of 4 runs)")


def test_older_records_say_in_one_sentence_that_they_have_none(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, (1, 2), repeats=1))
    assert budget_table(study).empty
    assert difference_table(study, compare(study)).empty
    (note,) = budget_notes(study, budget_table(study))
    assert "recorded no budget" in note


def test_unequal_work_is_shown_as_it_is_and_never_guessed(tmp_path: Path) -> None:
    assert row_of(write_pair(tmp_path / "equal", ALONE))["unequal_work"] == 0
    study = load_study(write_pair(tmp_path / "unequal", ALONE))
    budgets = study.budgets.assign(images=study.budgets["images"] - 1)
    object.__setattr__(study, "budgets", budgets)
    assert budget_table(study).empty
    assert "was not equal" in next(budget_notes(study, budget_table(study)))


def test_too_much_rest_is_a_warning(tmp_path: Path) -> None:
    quiet = load_study(write_pair(tmp_path / "quiet", Steps(rest=0.0015)))
    assert list(budget_notes(quiet, budget_table(quiet))) == []
    loud = load_study(write_pair(tmp_path / "loud", Steps(rest=0.005)))
    (note,) = budget_notes(loud, budget_table(loud))
    assert note == "native DDP on 2 workers: no phase explains 4.9 % of a step"


def test_a_study_without_records_has_empty_tables(tmp_path: Path) -> None:
    write_run(tmp_path)
    study = load_study(tmp_path)
    assert study.budgets["no_budget"].iloc[0].startswith("the run recorded no budget")
    assert study.probes.empty
