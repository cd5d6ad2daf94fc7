"""Throughput at larger counts, predicted from smaller ones: known truths, intervals, and what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize  # type: ignore[import-untyped]

from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.prediction.extrapolation import extrapolate
from analysis.prediction.least_squares import refit
from analysis.prediction.scaling_laws import Counts, Vector, term_matrix
from analysis.prediction.step_time import STEP_TERMS, fit_designs, fit_step_time
from analysis.study import Study
from tests.records import write_run

V100 = Path(__file__).resolve().parents[2] / "shared" / "reference" / "v100"
needs_v100 = pytest.mark.skipif(not V100.is_dir(), reason="the published V100 logs are not on this machine")
BATCH = 8
STEPS = 10
COUNTS = (1, 2, 4, 6, 8, 14)


def counts_of(workers: Sequence[int], nodes: Sequence[int] | None = None) -> Counts:
    known = np.full(len(workers), np.nan) if nodes is None else np.array(nodes, dtype=np.float64)
    return Counts(np.array(workers, dtype=np.float64), known)


def truth(workers: Sequence[int], *terms: float) -> Vector:
    """Seconds of a step: compute, transfer, transfer between nodes, latency, imbalance."""
    return np.asarray(term_matrix(tuple(STEP_TERMS.values()), counts_of(workers)) @ np.array(terms))


def study_of(folder: Path, seconds: Mapping[int, Sequence[float]]) -> Study:
    """Native DDP with these seconds per step, by worker count; their places are the repeats."""
    for workers, launches in seconds.items():
        for repeat, step in enumerate(launches, start=1):
            images = STEPS * BATCH * workers
            rate = images / STEPS / step
            write_run(folder, workers=workers, repeat=repeat, images_per_second=rate, images_per_epoch=images)
    return load_study(folder)


def test_known_terms_are_recovered_exactly(tmp_path: Path) -> None:
    seconds = truth(COUNTS, 0.1, 0.02, 0, 0.001, 0)
    (row,) = extrapolate(study_of(tmp_path, dict(zip(COUNTS, seconds[:, None], strict=True)))).fits.to_dict(
        "records"
    )
    assert row["compute"] == pytest.approx(0.1, rel=0.01)
    assert row["transfer"] == pytest.approx(0.02, rel=0.05)
    assert row["latency"] == pytest.approx(0.001, rel=0.05)
    assert row["fitted_on"] == "1-14"


@pytest.mark.parametrize(
    "terms", [(0.1, 0, 0, 0, 0), (0.1, 0.02, 0, 0.0005, 0), (0.1, 0.06, 0, 0, 0), (0.1, 0, 0, 0, 0.006)]
)
def test_a_known_truth_is_predicted_within_noise(tmp_path: Path, terms: tuple[float, ...]) -> None:
    noise = np.random.default_rng(3).normal(0, 0.005, (len(COUNTS), 5))
    seconds = truth(COUNTS, *terms)[:, None] * (1 + noise)
    table = extrapolate(study_of(tmp_path, dict(zip(COUNTS, seconds, strict=True)))).predictions
    row = table[(table["fitted_on"] == "1-8") & (table["workers"] == 14)].iloc[0]
    assert abs(row["error"]) < 0.03
    assert row["predicted_low"] < BATCH * 14 / truth([14], *terms)[0] < row["predicted_high"]


def test_every_larger_count_checks_every_fit_and_one_prediction_goes_beyond(tmp_path: Path) -> None:
    seconds = dict.fromkeys((1, 2, 4, 8, 16), (0.1,))
    table = extrapolate(study_of(tmp_path, seconds)).predictions
    assert list(zip(table["fitted_on"], table["workers"], table["held_out"], strict=True)) == [
        ("1-4", 8, True),
        ("1-4", 16, True),
        ("1-8", 16, True),
        ("1-16", 32, False),
    ]
    assert table["error"].iloc[:3].to_numpy(dtype=float) == pytest.approx(0, abs=1e-9)
    assert table[["measured", "error"]].iloc[3].isna().all()
    assert table["predicted"].iloc[3] == pytest.approx(32 * BATCH / 0.1)


def test_nothing_measured_beyond_the_split_is_used(tmp_path: Path) -> None:
    seconds = {1: [0.1, 0.11, 0.1], 2: [0.12] * 3, 4: [0.13, 0.14, 0.13], 8: [0.15] * 3, 14: [0.16] * 3}
    first = extrapolate(study_of(tmp_path / "first", seconds)).predictions
    other = extrapolate(study_of(tmp_path / "other", seconds | {8: [0.45] * 3, 14: [0.9] * 3})).predictions
    columns = ["workers", "predicted", "predicted_low", "predicted_high"]
    on_four, other_on_four = (table[table["fitted_on"] == "1-4"][columns] for table in (first, other))
    pd.testing.assert_frame_equal(on_four, other_on_four)
    assert first["predicted"].iloc[-1] != other["predicted"].iloc[-1]


def test_images_that_are_dropped_do_not_count_as_speed(tmp_path: Path) -> None:
    """104 images: 13 steps of 8 on 1 worker, 3 of 32 on 4; every step takes 0.1 s, so scaling is perfect."""
    for workers in (1, 2, 3, 4):
        images = 104 // (BATCH * workers) * BATCH * workers
        write_run(tmp_path, workers=workers, images_per_second=workers * BATCH / 0.1, images_per_epoch=images)
    study = load_study(tmp_path)
    assert study.runs["images_per_epoch"].nunique() > 1
    (row,) = extrapolate(study).predictions.query("held_out").to_dict("records")
    assert row["predicted"] == pytest.approx(4 * BATCH / 0.1)
    assert row["predicted_high"] / row["predicted_low"] == pytest.approx(1)


def test_throughput_is_never_negative_however_wild_the_points(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for number in range(20):
        launches = tuple(np.exp(random.normal(0, 1.5, 1 + number % 4)) for _ in range(4))
        fitted = fit_step_time(counts_of((1, 2, 4, 8)), launches)
        low, high = fitted.interval(counts_of([64]))
        assert (fitted.terms >= 0).all()
        assert fitted.seconds(counts_of([64]))[0] > 0
        assert 0 < low < high < np.inf


def noisy(
    workers: Sequence[int], terms: tuple[float, ...], noise: float, random: np.random.Generator
) -> tuple[Vector, ...]:
    """Step times of 5 launches at every count; `noise` is that of a launch, relative."""
    return tuple(np.exp(noise * random.standard_normal((len(workers), 5))) * truth(workers, *terms)[:, None])


@pytest.mark.parametrize(
    "terms", [(100, 0, 0, 0, 0), (100, 60, 0, 0, 0), (100, 0, 0, 1, 0), (100, 15, 0, 0.6, 5)]
)
def test_intervals_hold_what_is_measured_in_most_studies(terms: tuple[float, ...]) -> None:
    """As docs/prediction.md shows at length: 92 to 99 % over all truths, here of 40 studies each."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(40):
        *fitted, last = noisy((1, 2, 4, 8, 14), terms, 0.01, random)
        low, high = fit_step_time(counts_of((1, 2, 4, 8)), tuple(fitted)).interval(counts_of([14]))
        held += low <= float(np.median(last)) <= high
    assert held >= 36


def test_intervals_widen_with_the_noise_of_launches() -> None:
    widths = []
    for noise in (0.001, 0.05):
        launches = noisy((1, 2, 4, 8), (100, 10, 0, 0, 0), noise, np.random.default_rng(2))
        low, high = fit_step_time(counts_of((1, 2, 4, 8)), launches).interval(counts_of([16]))
        widths.append(high - low)
    assert widths[0] < 0.2 * widths[1]


def test_more_launches_of_the_same_spread_narrow_the_interval() -> None:
    at = counts_of((1, 2, 4, 8))
    widths = []
    for launches in (3, 30):
        times = tuple(
            value * np.linspace(0.97, 1.03, launches) for value in truth((1, 2, 4, 8), 1, 0.1, 0, 0, 0)
        )
        low, high = fit_step_time(at, times).interval(counts_of([16]))
        widths.append(high - low)
    assert widths[1] < 0.6 * widths[0]


def test_single_launches_are_as_uncertain_as_the_misfit() -> None:
    bent = truth((1, 2, 4, 8), 1, 0.1, 0, 0, 0) * [1.01, 0.98, 1.01, 0.99]
    fitted = fit_step_time(counts_of((1, 2, 4, 8)), tuple(bent[:, None]))
    low, high = fitted.term_intervals()
    assert high[0] - low[0] > 0.01
    assert 0.005 < float(np.median(np.abs(fitted.noise))) < 0.05


def test_a_misfit_that_the_launches_explain_is_not_counted_twice() -> None:
    bent = [1.002, 0.995, 1.003]
    fitted = fit_step_time(counts_of((1, 2, 4)), tuple(value * np.linspace(0.97, 1.03, 5) for value in bent))
    assert 0.01 < float(np.std(fitted.noise)) < 0.02
    assert np.abs(fitted.noise).max() < 0.08


def test_a_design_has_fewer_terms_than_points_and_weights_sum_to_one() -> None:
    seconds = truth((1, 2, 4), 0.1, 0.02, 0, 0.001, 0.002)
    designs = fit_designs(counts_of((1, 2, 4)), seconds)
    assert max(len(design.columns) for design in designs) == 2
    assert sum(design.weight for design in designs) == pytest.approx(1)
    assert all((design.coefficients >= 0).all() for design in designs)


def test_refitting_many_draws_equals_nnls_of_each() -> None:
    random = np.random.default_rng(1)
    matrix = term_matrix(tuple(STEP_TERMS.values()), counts_of((1, 2, 4, 8, 14), (1, 1, 2, 4, 7)))
    times = np.exp(random.normal(0, 0.2, (50, 5)))
    columns = [(0, 1, 3), (0, 2, 3, 4), (0,)]
    chosen = np.arange(50) % 3
    found = refit(matrix, times, columns, chosen)
    weight = 1 / times.mean(axis=0)
    for draw in range(50):
        used = columns[chosen[draw]]
        expected = np.zeros(5)
        expected[list(used)] = optimize.nnls(matrix[:, used] * weight[:, None], times[draw] * weight)[0]
        assert found[draw] == pytest.approx(expected, abs=1e-9)


def test_a_slower_link_between_nodes_is_a_term_of_its_own() -> None:
    at = counts_of((1, 2, 4, 8, 16), (1, 1, 1, 2, 4))
    matrix = term_matrix(tuple(STEP_TERMS.values()), at)
    seconds = matrix @ [0.1, 0.01, 0.05, 0, 0]
    fitted = fit_step_time(at, tuple(seconds[:, None]))
    assert fitted.terms[1:3] == pytest.approx([0.01, 0.05], rel=0.05)
    # Where no point with several workers is within one node there is one link, not two.
    assert 2 not in fit_step_time(counts_of((1, 2, 4, 8), (1, 2, 4, 8)), tuple(seconds[:4, None])).known


def test_no_interval_across_a_link_that_was_not_measured(tmp_path: Path) -> None:
    study = study_of(tmp_path, dict.fromkeys((1, 2, 4, 8), (0.1,)))
    nodes = study.runs["workers"].map({1: 1.0, 2: 1.0, 4: 1.0, 8: 2.0})
    (row,) = (
        extrapolate(replace(study, runs=study.runs.assign(nodes=nodes)))
        .predictions.query("held_out")
        .to_dict("records")
    )
    assert np.isnan([row["predicted_low"], row["predicted_high"]]).all()
    assert row["why"] == "the link between nodes is not among the points fitted"
    assert "holds within one node only" in " ".join(extrapolate(study).notes)


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ((2, 4, 8, 16), "native DDP: no prediction: no run on 1 worker"),
        ((1, 8), "native DDP: no prediction: 2 worker counts, at least 3 needed"),
        ((1,), "native DDP: no prediction: 1 worker count, at least 3 needed"),
    ],
)
def test_a_series_that_cannot_be_predicted_says_why(
    tmp_path: Path, workers: tuple[int, ...], reason: str
) -> None:
    study = study_of(tmp_path, dict.fromkeys(workers, (0.1,)))
    assert extrapolate(study).predictions.empty
    assert extrapolate(study).fits.empty
    assert list(extrapolate(study).notes) == [reason]


def test_three_counts_are_predicted_beyond_and_have_no_check(tmp_path: Path) -> None:
    study = study_of(tmp_path, {1: [0.1] * 3, 2: [0.11] * 3, 4: [0.12] * 3})
    assert extrapolate(study).predictions["workers"].tolist() == [8]
    (row,) = extrapolate(study).fits.to_dict("records")
    assert np.isnan(row["held_out_error"])
    assert row["held_out_points"] == 0
    (note,) = [note for note in extrapolate(study).notes if "node" not in note]
    assert note.startswith("native DDP: fitted on 1-4, 8 workers are expected to reach")


def test_every_series_has_the_error_of_keeping_the_last_efficiency(tmp_path: Path) -> None:
    study = study_of(tmp_path, {1: [0.1], 2: [0.12], 4: [0.125], 8: [0.15]})
    (fitted,) = extrapolate(study).fits.to_dict("records")
    assert fitted["last_efficiency_error"] == pytest.approx(0.15 / 0.125 - 1)


@pytest.mark.parametrize(
    ("seconds", "no_better"),
    [
        ({1: [0.10], 2: [0.12], 4: [0.15], 8: [0.15]}, True),
        ({1: [0.10], 2: [0.101], 4: [0.103], 8: [0.107]}, False),
    ],
    ids=["it levels off at once", "latency"],
)
def test_says_where_the_model_predicts_no_better_than_the_last_efficiency(
    tmp_path: Path, seconds: Mapping[int, Sequence[float]], no_better: bool
) -> None:
    (note,) = [note for note in extrapolate(study_of(tmp_path, seconds)).notes if "without a model" in note]
    assert note.startswith("native DDP: keeping the efficiency of the largest count fitted")
    assert note.endswith("here the model predicts no better") == no_better


@needs_v100
def test_the_published_logs_are_predicted_better_than_by_keeping_the_last_efficiency() -> None:
    """docs/prediction.md has the errors of all laws."""
    fits = extrapolate(load_reference(V100)).fits
    assert fits["held_out_points"].tolist() == [3, 3]
    assert (fits["held_out_error"] < 0.05).all()
    assert fits["held_out_error"].mean() < fits["last_efficiency_error"].mean()


@needs_v100
def test_logs_without_steps_are_predicted_in_their_own_unit_and_say_what_they_lack() -> None:
    study = load_reference(V100)
    table = extrapolate(study).predictions
    beyond = table[~table["held_out"].astype(bool)]
    assert beyond["workers"].tolist() == [16, 16]
    assert (beyond["predicted_low"] < beyond["predicted"]).all()
    assert (beyond["predicted"] < beyond["predicted_high"]).all()
    assert table.loc[table["held_out"].astype(bool), "workers"].tolist() == [6, 8, 8] * 2
    notes = " ".join(extrapolate(study).notes)
    assert notes.count("without a model") == 2
    assert "epochs / h" in notes
    assert "no launch-to-launch variation" in notes
