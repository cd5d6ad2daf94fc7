"""Native DDP against Horovod: the ratio at every worker count, and the verdict in words."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.findings.comparison import compare, repeats_needed
from benchmarks.coverage import Noise, resolved, simulate
from tests.simulated import Throughputs, sentence_of, study_from, verdict_list


def test_all_common_worker_counts_are_compared() -> None:
    both: Throughputs = {("pytorch_native", 1): [110.0] * 3, ("horovod", 1): [100.0] * 3}
    more: Throughputs = {("pytorch_native", 2): [200.0] * 3, ("horovod", 4): [300.0] * 3}
    far: Throughputs = {("pytorch_native", 8): [720.0] * 3, ("horovod", 8): [800.0] * 3}
    found = compare(study_from({**both, **more, **far}))
    assert found["workers"].tolist() == [1, 8]
    assert found["ratio"].tolist() == pytest.approx([1.1, 0.9])
    assert found["outcome"].tolist() == ["native DDP faster", "Horovod faster"]
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
    study = simulate(np.random.default_rng(1), Noise(0.02, 0.02, 0.02, 6), 4, 5, 1.03)
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
    assert resolved(noise, 1.03, 5, 40) >= 85
    assert resolved(noise, 1.005, 5, 40) <= 30


def test_a_difference_of_3_percent_is_found_and_one_of_half_a_percent_is_not() -> None:
    outcomes = []
    for ratio in (1.03, 1.005):
        study = simulate(np.random.default_rng(12), Noise(0.02, 0.005, 0.02, 10), 1, 5, ratio)
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


def test_an_interval_that_holds_1_is_no_significant_difference_and_tells_the_repeats_that_would_do() -> None:
    native, horovod = [97.0, 102.0, 104.0, 101.0, 103.0], [100.0] * 5
    sentence = sentence_of({("pytorch_native", 1): native, ("horovod", 1): horovod})
    start = "At 1 worker no significant difference between native DDP and Horovod: ratio 1.020 ["
    assert sentence.startswith(start)
    assert "about 23 repeats would show it in 4 of 5 studies" in sentence


def test_an_advice_of_hundreds_of_repeats_is_none() -> None:
    native, horovod = [95.0, 100.1, 103.0], [100.0] * 3
    assert "more than 100 repeats" in sentence_of({("pytorch_native", 1): native, ("horovod", 1): horovod})


def test_too_few_repeats_give_no_verdict() -> None:
    one: Throughputs = {("pytorch_native", 1): [100.0] * 2, ("horovod", 1): [100.0] * 2}
    two: Throughputs = {("pytorch_native", 2): [187.0] * 2, ("horovod", 2): [162.0] * 2}
    assert sentence_of({**one, **two}) == (
        "not enough repeats for a verdict: 2 per point, at least 3 needed (5 recommended); "
        "measured so far: DDP 1.87x, Horovod 1.62x (2 workers)"
    )


def test_too_few_repeats_without_a_baseline_tell_the_throughput() -> None:
    sentence = sentence_of({("pytorch_native", 2): [187.0], ("horovod", 2): [162.0]})
    assert "DDP 187 images/s, Horovod 162 images/s" in sentence


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
