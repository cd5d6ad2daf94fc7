"""Native DDP against Horovod: the ratio at every worker count, and the verdict in words."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from analysis.findings.check import Check
from analysis.findings.comparison import FASTER, SUGGESTED, compare, withhold
from analysis.findings.fairness_table import fairness_checks
from analysis.findings.significance import holm, repeats_needed
from analysis.findings.verdict import verdicts
from analysis.study import Study
from tests.simulated import (
    Draw,
    Noise,
    Throughputs,
    equal_frameworks,
    sentence_of,
    simulate,
    study_from,
    verdict_list,
)


def test_all_common_worker_counts_are_compared() -> None:
    both: Throughputs = {("pytorch_native", 1): [110.0] * 3, ("horovod", 1): [100.0] * 3}
    more: Throughputs = {("pytorch_native", 2): [200.0] * 3, ("horovod", 4): [300.0] * 3}
    far: Throughputs = {("pytorch_native", 8): [720.0] * 3, ("horovod", 8): [800.0] * 3}
    found = compare(study_from({**both, **more, **far}))
    assert found["workers"].tolist() == [1, 8]
    assert found["ratio"].tolist() == pytest.approx([1.1, 0.9])
    assert found["outcome"].tolist() == ["suggests native DDP faster", "suggests Horovod faster"]
    assert found["coverage"].tolist() == [0.75, 0.75]


def test_knobs_are_compared_in_every_combination() -> None:
    study = study_from({("pytorch_native", 1): [100.0] * 3, ("horovod", 1): [100.0] * 3})
    copies = [study.runs.assign(knobs=knob) for knob in ("a", "b")]
    found = compare(replace(study, runs=pd.concat(copies, ignore_index=True)))
    pairs = list(found[["native_knobs", "horovod_knobs"]].itertuples(index=False, name=None))
    assert pairs == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]


def test_a_point_without_common_repeats_is_listed_with_no_ratio() -> None:
    study = study_from({("pytorch_native", 1): [100.0] * 3, ("horovod", 1): [100.0] * 3})
    study.runs.loc[study.runs["framework"] == "horovod", "repeat"] += 10
    (row,) = compare(study).to_dict("records")
    assert (row["pairs"], row["outcome"]) == (0, "not enough repeats")
    assert np.isnan([row["ratio"], row["ratio_low"], row["coverage"], row["repeats_needed"]]).all()


def test_one_framework_alone_gives_an_empty_table_with_its_columns() -> None:
    found = compare(study_from({("horovod", 1): [100.0] * 3}))
    assert found.empty
    assert {"options", "workers", "ratio", "outcome"} <= set(found.columns)


def test_the_order_of_runs_does_not_matter() -> None:
    study = simulate(1, Noise(0.02, 0.02, 0.02, 6), 4, 1.03)
    shuffled = replace(study, runs=study.runs.sample(frac=1, random_state=2))
    key = ["options", "workers"]
    first, second = (compare(each).sort_values(key, ignore_index=True) for each in (study, shuffled))
    pd.testing.assert_frame_equal(first, second)


def test_the_repeats_needed_grow_with_the_spread_and_shrink_with_the_difference() -> None:
    spread = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    assert repeats_needed(spread + 0.01) > repeats_needed(spread + 0.02) > 5
    assert repeats_needed(2 * spread + 0.01) > repeats_needed(spread + 0.01)
    assert repeats_needed(0.01 * spread + 0.01) == 6


def test_the_repeats_needed_are_unknown_where_nothing_can_be_said_of_the_spread() -> None:
    assert np.isnan(repeats_needed(np.array([0.1, 0.2])))
    assert np.isnan(repeats_needed(np.array([-0.1, 0.0, 0.1])))


@pytest.mark.parametrize("noise", [Noise(0, 0, 0.02, 5), Noise(0.02, 0.005, 0.02, 10)], ids=str)
def test_five_repeats_resolve_3_percent_and_mostly_not_half_a_percent(noise: Noise) -> None:
    found = []
    for ratio in (1.03, 1.005):
        study = simulate(7, noise, 40, ratio)
        found.append((compare(study, family=["options"])["outcome"] == "native DDP faster").mean())
    assert found[0] >= 0.85
    assert found[1] <= 0.3


def test_a_difference_of_3_percent_is_found_and_one_of_half_a_percent_is_not() -> None:
    outcomes = []
    for ratio in (1.03, 1.005):
        study = simulate(12, Noise(0.02, 0.005, 0.02, 10), 1, ratio)
        outcomes += compare(study)["outcome"].tolist()[-1:]
    assert outcomes == ["native DDP faster", "no significant difference"]


def test_the_verdict_names_the_faster_framework_with_its_interval() -> None:
    native, horovod = [108.0, 112.0, 115.0, 112.0, 110.0], [100.0] * 5
    sentence = sentence_of({("pytorch_native", 4): native, ("horovod", 4): horovod})
    assert sentence.startswith("At 4 workers native DDP is 12 % faster than Horovod [8, 1")
    assert sentence.endswith("(94 % interval, 5 repeats)")


def test_the_verdict_is_symmetric_in_the_frameworks() -> None:
    native, horovod = [100.0] * 5, [108.0, 112.0, 115.0, 112.0, 110.0]
    one = sentence_of({("pytorch_native", 4): native, ("horovod", 4): horovod})
    other = sentence_of({("pytorch_native", 4): horovod, ("horovod", 4): native})
    names = {"native DDP": "Horovod", "Horovod": "native DDP"}
    assert one.startswith("At 4 workers Horovod is 12 % faster than native DDP")
    assert one.split(names["native DDP"])[1].split("[")[1] == other.split("[")[1]


def test_the_verdict_pairs_runs_of_one_repeat() -> None:
    """The repeats differ by a factor of 5 and the frameworks by 1.1 in each of them."""
    horovod = [100.0, 200.0, 300.0, 400.0, 500.0]
    native = [1.1 * value for value in horovod]
    sentence = sentence_of({("pytorch_native", 2): native, ("horovod", 2): horovod})
    assert sentence.startswith("At 2 workers native DDP is 10 % faster than Horovod [10, 10]")


def test_an_interval_that_holds_1_is_no_significant_difference() -> None:
    native, horovod = [97.0, 102.0, 104.0, 101.0, 103.0], [100.0] * 5
    sentence = sentence_of({("pytorch_native", 1): native, ("horovod", 1): horovod})
    start = "At 1 worker no significant difference between native DDP and Horovod: ratio 1.020 ["
    assert sentence.startswith(start)


def test_too_few_repeats_give_no_verdict() -> None:
    one: Throughputs = {("pytorch_native", 1): [100.0] * 2, ("horovod", 1): [100.0] * 2}
    two: Throughputs = {("pytorch_native", 2): [187.0] * 2, ("horovod", 2): [162.0] * 2}
    assert sentence_of({**one, **two}) == (
        "not enough repeats for a verdict: 2 per point, at least 3 needed (5 recommended); "
        "measured so far: native DDP 1.87x, Horovod 1.62x (2 workers)"
    )


def test_too_few_repeats_without_a_baseline_tell_the_throughput() -> None:
    sentence = sentence_of({("pytorch_native", 2): [187.0], ("horovod", 2): [162.0]})
    assert "DDP 187 images/s, Horovod 162 images/s" in sentence


def test_what_is_measured_so_far_is_what_counts_for_speed() -> None:
    study = study_from({("pytorch_native", 2): [100.0, 101.0, 99.0, 10.0], ("horovod", 2): [80.0, 81.0]})
    busy = study.runs["images_per_second"] < 20
    study = replace(study, runs=study.runs.assign(disturbed=busy.map({True: "busy", False: ""})))
    (verdict,) = verdicts(study, compare(study))
    assert "DDP 100 images/s" in verdict.sentence


def test_repeats_without_a_partner_do_not_count() -> None:
    study = study_from({("pytorch_native", 2): [100.0] * 3, ("horovod", 2): [100.0] * 3})
    study.runs.loc[study.runs["framework"] == "horovod", "repeat"] += 2
    (verdict,) = verdict_list(study)
    assert verdict.sentence.startswith("not enough repeats for a verdict: 1 that both frameworks have")


def test_the_verdict_is_about_the_largest_common_worker_count() -> None:
    both: Throughputs = {("pytorch_native", 2): [100.0] * 3, ("horovod", 2): [90.0] * 3}
    assert sentence_of({**both, ("pytorch_native", 4): [200.0] * 3}).startswith("At 2 workers")


def test_one_framework_alone_gives_no_verdict() -> None:
    sentence = sentence_of({("pytorch_native", 1): [100.0] * 3})
    assert sentence == "no verdict: there is no usable run of Horovod"


def test_frameworks_without_a_common_worker_count_give_no_verdict() -> None:
    sentence = sentence_of({("pytorch_native", 1): [100.0], ("horovod", 2): [100.0]})
    assert sentence == "no verdict: the frameworks have no worker count in common"


def test_every_set_of_options_has_its_own_verdict() -> None:
    study = study_from({("pytorch_native", 1): [100.0], ("horovod", 1): [100.0]})
    copies = [study.runs.assign(options=f"precision={precision}") for precision in ("bf16", "fp32")]
    first, second = verdict_list(replace(study, runs=pd.concat(copies, ignore_index=True)))
    assert str(first).startswith("[precision=bf16] not enough")
    assert str(second).startswith("[precision=fp32] not enough")


def test_missing_middle_points_leave_the_others_comparable() -> None:
    both: Throughputs = {
        (name, n): [100.0 * n] * 3 for name in ("pytorch_native", "horovod") for n in (1, 2, 4)
    }
    found = compare(study_from({key: value for key, value in both.items() if key != ("horovod", 2)}))
    assert found["workers"].tolist() == [1, 4]


NATIVE_12_PERCENT: Throughputs = {
    ("pytorch_native", 4): [108.0, 112.0, 115.0, 112.0, 110.0],
    ("horovod", 4): [100.0] * 5,
}


@pytest.mark.parametrize(("repeats", "claims"), [(3, False), (4, False), (5, True), (6, True)])
def test_fewer_than_five_repeats_only_suggest(repeats: int, claims: bool) -> None:
    native = [112.0, 112.5, 111.5, 112.0, 112.2, 111.8][:repeats]
    sentence = sentence_of({("pytorch_native", 4): native, ("horovod", 4): [100.0] * repeats})
    is_faster = "native DDP is 12 % faster than Horovod ["
    said = f"At 4 workers {'' if claims else f'{repeats} repeats suggest that '}{is_faster}"
    assert sentence.startswith(said)
    assert claims or sentence.endswith("; 5 or more can show it)")


def test_holm_asks_more_of_the_first_of_many_and_stops_at_the_first_that_fails() -> None:
    significance, adjusted, tests = holm(np.array([0.04, 0.001, 0.012, 0.5, 0.013]))
    assert tests.tolist() == [5.0] * 5
    assert adjusted == pytest.approx([0.08, 0.005, 0.048, 0.5, 0.048])
    assert significance == pytest.approx([0.025, 0.01, 0.0125, 0.025, 0.05 / 3])
    assert ((np.array([0.04, 0.001, 0.012, 0.5, 0.013]) <= significance) == (adjusted <= 0.05)).all()


def test_a_difference_that_one_count_would_show_is_not_claimed_among_five() -> None:
    """A paired t-test gives it 2 %: enough alone, not for the best of five."""
    native = [100.0, 101.0, 102.0, 103.0, 104.0]
    alone: Throughputs = {("pytorch_native", 16): native, ("horovod", 16): [100.0] * 5}
    others: Throughputs = {
        (name, workers): [99.0, 101.0, 100.0, 98.0, 102.0][:: 1 if name == "horovod" else -1]
        for workers in (1, 2, 4, 8)
        for name in ("pytorch_native", "horovod")
    }
    assert compare(study_from(alone))["outcome"].tolist() == ["native DDP faster"]
    found = compare(study_from({**alone, **others}))
    assert found["outcome"].tolist() == ["no significant difference"] * 5
    assert found["ratio_low"].iloc[-1] < 1
    assert found["comparisons"].tolist() == [5.0] * 5


def test_withholds_faster_where_fairness_forbids_it_and_says_why() -> None:
    study = study_from(NATIVE_12_PERCENT)
    order = Check("order", "no", "all runs of native DDP started before any of Horovod's", withholds=True)
    remark = Check("equal repeats", "no", "3 to 5 per point")
    compared = withhold(compare(study), [order, remark])
    assert compared["outcome"].tolist() == ["withheld"]
    (verdict,) = verdicts(study, compared)
    assert verdict.sentence.startswith(
        "At 4 workers no verdict on speed: native DDP measured 12 % faster than Horovod [8, 1"
    )
    assert "but the fairness table says no to: order (94 % interval" in verdict.sentence
    assert withhold(compare(study), [remark])["outcome"].tolist() == ["native DDP faster"]


def test_withholds_at_the_points_concerned_alone() -> None:
    more: Throughputs = {(name, 2): values for (name, _), values in NATIVE_12_PERCENT.items()}
    pairs = frozenset({("", "", "", 4)})
    check = Check("same nodes", "no", "other hosts", withholds=True, pairs=pairs)
    found = withhold(compare(study_from({**NATIVE_12_PERCENT, **more})), [check])
    assert found["outcome"].tolist() == ["native DDP faster", "withheld"]


def test_withholds_a_suggestion_too_and_leaves_no_difference_as_it_is() -> None:
    check = Check("order", "no", "one after the other", withholds=True)
    for native, outcome in (([112.0, 112.5, 111.5], "withheld"), ([99.0, 100.0, 101.5], None)):
        study = study_from({("pytorch_native", 2): native, ("horovod", 2): [100.0] * 3})
        (found,) = withhold(compare(study), [check])["outcome"]
        assert found == (outcome or "no significant difference")


def test_withholds_faster_where_the_medians_of_the_table_name_the_other() -> None:
    """In every repeat native DDP is ahead, but it lacks the fast repeats that Horovod has."""
    study = study_from(
        {
            ("pytorch_native", 2): [52.0, 53.0, 54.0, 55.4, 56.0],
            ("horovod", 2): [46.0, 47.5, 48.0, 49.0, 50.5, 70.0, 71.0, 72.0, 73.0, 74.0, 75.0],
        }
    )
    (row,) = compare(study).to_dict("records")
    assert row["ratio_low"] > 1 > row["ratio_of_medians"]
    assert row["outcome"] == "withheld"
    (verdict,) = verdict_list(study)
    assert "the medians over all launches name the other framework (their ratio is 0.771)" in str(verdict)


def test_says_why_the_table_shows_another_order_where_no_difference_is_claimed() -> None:
    native, horovod = [55.4, 40.0, 75.0, 45.0, 70.0], [49.0, 58.7, 68.0, 60.0, 50.0]
    sentence = sentence_of({("pytorch_native", 2): native, ("horovod", 2): horovod})
    assert "no significant difference between native DDP and Horovod: ratio 1.103" in sentence
    assert "the medians over all launches have the ratio 0.944" in sentence


def claims(study: Study) -> tuple[float, float]:
    """Percent of studies without a difference that call a framework faster, and that suggest it."""
    compared = withhold(compare(study, family=["options"]), fairness_checks(study))
    faster, suggested = (
        100 * compared["outcome"].isin(words).groupby(compared["options"]).any().mean()
        for words in (FASTER, SUGGESTED)
    )
    return faster, suggested


def steady(random: np.random.Generator, launches: int) -> NDArray[np.float64]:
    return random.normal(0, 0.02, launches)


def stragglers(random: np.random.Generator, launches: int) -> NDArray[np.float64]:
    """1 % of noise, and one launch in five slower by 20 % on average."""
    slowed = np.where(random.random(launches) < 0.2, random.exponential(0.2, launches), 0.0)
    return random.normal(0, 0.01, launches) - slowed


def bimodal(random: np.random.Generator, launches: int) -> NDArray[np.float64]:
    """1 % of noise, and half of the launches 10 % slower."""
    return random.normal(0, 0.01, launches) - 0.1 * (random.random(launches) < 0.5)


@pytest.mark.parametrize(
    ("draw", "drift"),
    [(steady, 0.0), (stragglers, 0.0), (bimodal, 0.0), (steady, 0.1)],
    ids=["2 % launch", "stragglers", "bimodal", "10 % drift"],
)
def test_equal_frameworks_are_rarely_called_faster(draw: Draw, drift: float) -> None:
    """Of 400 studies more than 9 % would be false with a probability below 1 in 1,000 if 5 % are."""
    faster, suggested = claims(equal_frameworks(draw, 400, 5, drift=drift))
    assert faster <= 9
    assert suggested == 0


def test_three_repeats_never_call_a_framework_faster() -> None:
    faster, suggested = claims(equal_frameworks(steady, 200, 3))
    assert faster == 0
    assert suggested <= 11


def test_one_arm_after_the_other_is_never_called_faster() -> None:
    assert claims(equal_frameworks(steady, 200, 5, drift=0.1, alternate=False)) == (0, 0)


def in_unequal_conditions(horovod: float, **of_horovod: float) -> Study:
    """Five repeats on 2 workers, Horovod at this throughput and with these columns; native DDP with 0."""
    study = study_from({("pytorch_native", 2): [100.0] * 5, ("horovod", 2): [horovod] * 5})
    slower = study.runs["framework"] == "horovod"
    busy = np.where(slower, of_horovod.get("busy_share", 0.0), 0.0)
    clocks = np.where(slower, of_horovod.get("frequency_mhz", 3000.0), 3000.0)
    budgets = pd.DataFrame({"run": study.runs["run"], "frequency_mhz": clocks})
    return replace(study, runs=study.runs.assign(busy_share=busy), budgets=budgets)


@pytest.mark.parametrize(
    ("study", "told"),
    [
        (in_unequal_conditions(96.0, busy_share=0.033), "other processes took 3.3 % more of the slower"),
        (in_unequal_conditions(96.0, frequency_mhz=2860.0), "its cores ran at 2860 MHz, those of the faster"),
        (in_unequal_conditions(0.01), "differ by no factor above 10: read the records"),
    ],
)
def test_withholds_faster_where_something_else_may_be_most_of_the_difference(study: Study, told: str) -> None:
    (row,) = compare(study).to_dict("records")
    assert row["outcome"] == "withheld"
    assert told in row["doubts"]
    (verdict,) = verdicts(study, compare(study))
    assert "no verdict on speed" in str(verdict)


def test_small_inequalities_do_not_withhold_a_large_difference() -> None:
    study = in_unequal_conditions(80.0, busy_share=0.033, frequency_mhz=2950.0)
    (row,) = compare(study).to_dict("records")
    assert (row["outcome"], row["doubts"]) == ("native DDP faster", "")


def test_the_ratio_of_medians_is_of_the_launches_that_count_for_speed() -> None:
    study = study_from({("pytorch_native", 2): [100.0, 50.0, 101.0, 102.0], ("horovod", 2): [100.0] * 4})
    slow = study.runs["images_per_second"] == 50.0
    disturbed = replace(study, runs=study.runs.assign(disturbed=np.where(slow, "busy", "")))
    (row,) = compare(disturbed).to_dict("records")
    assert row["ratio_of_medians"] == pytest.approx(1.01)
