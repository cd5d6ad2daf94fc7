"""The recommendation: the fastest point that the evidence carries, or why there is none."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.findings.comparison import compare
from analysis.findings.cost import cost_table
from analysis.findings.quality import iou_between_frameworks, iou_table
from analysis.findings.recommendation import Recommendation, recommend
from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.study import Study
from tests.records import write_run
from unet_scaling.study.config import Framework
from unet_scaling.study.options import Criteria
from unet_scaling.study.record_lines import End

POINT = ["options", "framework", "knobs", "workers"]
NAN = float("nan")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Three repeats of both frameworks on 1, 2 and 4 workers, all of equal IoU and ideally linear."""
    for framework in ("pytorch_native", "horovod"):
        for workers in (1, 2, 4):
            for repeat in (1, 2, 3):
                write_run(tmp_path, framework, workers, repeat, images_per_second=100.0 * workers)
    return load_study(tmp_path)


def points_of(study: Study, **efficiencies: tuple[float, float, float]) -> pd.DataFrame:
    """The points of a study with given efficiencies, {"horovod_4": (median, low, high)}; others are ideal."""
    rows = []
    for (options, framework, knobs, workers), runs in study.runs.groupby(POINT, sort=False):
        median, low, high = efficiencies.get(f"{framework}_{workers}", (1.0, 0.99, 1.01))
        rows.append(
            {
                **{"options": options, "framework": framework, "knobs": knobs, "workers": workers},
                **{"repeats": len(runs), "throughput": 100 * median * float(runs["workers"].iloc[0])},
                **bounded("efficiency_common", median, low, high),
            }
        )
    points = pd.DataFrame(rows)
    speed = points["throughput"]
    return points.assign(throughput_low=0.99 * speed, throughput_high=1.01 * speed)


def bounded(name: str, *values: float) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def comparisons_of(study: Study, outcome: str = "native DDP faster") -> pd.DataFrame:
    """The same outcome on every worker count."""
    ratio = bounded("ratio", 1.003, 0.99, 1.01)
    rows = [{"workers": workers, **ratio, "outcome": outcome} for workers in (1, 2, 4)]
    return pd.DataFrame(rows).assign(options="", native_knobs="", horovod_knobs="", doubts="", pairs=3)


def recommended(
    study: Study,
    points: pd.DataFrame,
    comparisons: pd.DataFrame,
    quality: pd.DataFrame | None = None,
    baseline_doubt: str = "",
) -> list[Recommendation]:
    """The recommendations with the other tables as the study gives them."""
    iou = iou_table(study) if quality is None else quality
    between, cost = iou_between_frameworks(study), cost_table(study)
    return recommend(study, points, comparisons, iou, between, cost, baseline_doubt)


def advise(
    study: Study, points: pd.DataFrame, outcome: str = "native DDP faster", **iou: str
) -> Recommendation:
    """The recommendation, with the answer on the IoU replaced for some points: {"horovod_4": "no"}."""
    quality = iou_table(study)
    for name, answer in iou.items():
        framework, _, workers = name.rpartition("_")
        chosen = (quality["framework"] == framework) & (quality["workers"] == int(workers))
        quality.loc[chosen, "non_inferior"] = answer
    (found,) = recommended(study, points, comparisons_of(study, outcome), quality)
    return found


SLOWER_HOROVOD = {"horovod_2": (0.9, 0.88, 0.92), "horovod_4": (0.9, 0.88, 0.92)}


def test_the_fastest_point_that_qualifies_is_named(study: Study) -> None:
    found = advise(study, points_of(study, **SLOWER_HOROVOD))
    assert (found.framework, found.workers) == ("pytorch_native", 4)
    assert found.sentence.startswith("Train with native DDP on 4 workers: 400 [396, 404] images / s")
    assert "efficiency 1.00 [0.99, 1.01]" in found.sentence
    assert "margin 0.01" in found.sentence
    assert "floor 0.7" in found.sentence


def test_the_evidence_names_the_other_framework_the_cost_and_the_runners_up(study: Study) -> None:
    why = "\n".join(advise(study, points_of(study, **SLOWER_HOROVOD)).why)
    assert "on 4 workers native DDP faster: native DDP / Horovod 1.003 [0.990, 1.010]" in why
    assert "worker-hours per run" in why
    assert "IoU 0.79 after" in why
    assert "largest count measured" in why
    assert "also qualifies: Horovod on 4 workers, 360 [356, 364] images / s" in why


def test_frameworks_without_a_significant_difference_are_both_named(study: Study) -> None:
    found = advise(study, points_of(study), "no significant difference")
    assert (found.framework, found.workers) == (None, 4)
    assert "native DDP or Horovod on 4 workers" in found.sentence


def test_only_a_framework_that_qualifies_is_named(study: Study) -> None:
    found = advise(study, points_of(study), "no significant difference", horovod_4="no")
    assert (found.framework, found.workers) == ("pytorch_native", 4)
    assert any("Horovod: its IoU is below that on 1 worker" in line for line in found.why)


def test_not_enough_repeats_for_a_comparison_are_neither_a_difference_nor_equality(study: Study) -> None:
    found = advise(study, points_of(study, **SLOWER_HOROVOD), "not enough repeats")
    assert found.framework is None
    assert "no verdict on which is faster" in found.sentence


def test_a_count_below_the_floor_is_excluded(study: Study) -> None:
    low = (0.6, 0.55, 0.65)
    found = advise(study, points_of(study, pytorch_native_4=low, horovod_4=low))
    assert found.workers == 2
    (passed,) = [line for line in found.why if line.startswith("excluded: Horovod on 4 workers")]
    assert passed.endswith("its efficiency of 0.600 [0.550, 0.650] is below the floor of 0.7")


def test_a_lower_bound_below_the_floor_is_undecided_and_said_in_the_sentence(study: Study) -> None:
    wide = (0.75, 0.65, 0.85)
    found = advise(study, points_of(study, pytorch_native_4=wide, horovod_4=wide))
    assert found.workers == 2
    assert "on 4 workers is faster, but undecided" in found.sentence
    assert any("undecided: native DDP on 4 workers" in line for line in found.why)


def test_the_floor_is_that_of_the_study(study: Study) -> None:
    low = (0.6, 0.55, 0.65)
    points = points_of(study, pytorch_native_4=low, horovod_4=low)
    assert advise(replace(study, criteria=Criteria(efficiency_floor=0.5)), points).workers == 4


def test_a_count_whose_iou_is_lower_is_excluded(study: Study) -> None:
    found = advise(study, points_of(study), pytorch_native_4="no", horovod_4="no")
    assert found.workers == 2
    assert any("its IoU is below that on 1 worker" in line for line in found.why)


ALL_LARGER: tuple[str, ...] = ("pytorch_native_2", "pytorch_native_4", "horovod_2", "horovod_4")


def test_missing_evidence_on_the_iou_is_no_reason_for_one_worker(study: Study) -> None:
    found = advise(study, points_of(study), **dict.fromkeys(ALL_LARGER, "not shown"))
    assert (found.framework, found.workers) == (None, None)
    assert "No recommendation: native DDP on 4 workers is the fastest that may qualify" in found.sentence
    assert "its IoU is not shown to match 1 worker" in found.sentence


def test_one_worker_is_named_where_every_larger_count_is_excluded(study: Study) -> None:
    found = advise(study, points_of(study), **dict.fromkeys(ALL_LARGER, "no"))
    assert (found.framework, found.workers) == (None, 1)
    assert found.sentence.startswith("Do not scale out, train on 1 worker: ")
    assert "native DDP on 4 workers: its IoU is below that on 1 worker" in found.sentence
    assert "no larger worker count keeps both an efficiency of 0.7 and an IoU not inferior" in found.sentence


def test_does_not_scale_out_where_efficiencies_lie_wholly_below_the_floor(study: Study) -> None:
    low = dict.fromkeys(ALL_LARGER, (0.4, 0.3, 0.5))
    found = advise(study, points_of(study, **low))
    assert (found.framework, found.workers) == (None, 1)
    assert "Horovod on 2 workers: its efficiency of 0.400 [0.300, 0.500] is below the floor" in found.sentence


def test_an_interval_that_holds_the_floor_excludes_nothing(study: Study) -> None:
    """Slower than 1 worker by its median, as one slow launch can make it: no evidence, no "do not"."""
    low, wide = (0.4, 0.3, 0.5), (0.45, 0.2, 1.341)
    efficiencies = dict.fromkeys(ALL_LARGER, low) | {"horovod_2": wide}
    found = advise(study, points_of(study, **efficiencies))
    assert found.workers is None
    assert "its efficiency of 0.450 [0.200, 1.341] may be below the floor" in found.sentence


def test_names_no_framework_for_one_worker_of_which_one_is_noisy(study: Study) -> None:
    low = dict.fromkeys(ALL_LARGER, (0.4, 0.3, 0.5))
    noisy = (0.9, 0.64, 1.341)
    found = advise(study, points_of(study, **low, pytorch_native_1=noisy))
    assert (found.framework, found.workers) == (None, 1)
    assert "Train with" not in found.sentence


def test_an_efficiency_above_1_by_its_rounding_qualifies(study: Study) -> None:
    assert advise(study, points_of(study, pytorch_native_4=(1.004, 1.002, 1.01))).workers == 4


def test_a_doubt_stands_in_the_recommendation(study: Study) -> None:
    """Which framework is faster is withheld, so both are named, with the reason."""
    doubt = "other hosts (fairness: same nodes)"
    comparisons = comparisons_of(study, "withheld").assign(doubts=doubt)
    points = points_of(study, **SLOWER_HOROVOD)
    (found,) = recommended(study, points, comparisons)
    assert (found.framework, found.workers) == (None, 4)
    assert "native DDP or Horovod on 4 workers" in found.sentence
    assert "no verdict on which is faster" in found.sentence
    assert found.sentence.endswith(f"; in doubt: {doubt}")


def test_points_without_interval_are_never_recommended(study: Study) -> None:
    few = replace(study, runs=study.runs[study.runs["repeat"] == 1])
    points = points_of(few).assign(efficiency_common_low=NAN, efficiency_common_high=NAN)
    found = advise(few, points)
    assert found.workers is None
    assert "no point has more than 1 repeat" in found.sentence
    assert "run at least 3 repeats (5 recommended)" in found.sentence


def test_a_baseline_of_few_repeats_leaves_all_undecided(study: Study) -> None:
    points = points_of(study).assign(efficiency_common_low=NAN, efficiency_common_high=NAN)
    found = advise(study, points)
    assert found.workers is None
    assert "has no interval: run at least 3 repeats (5 recommended) on 1 worker" in found.sentence


def test_a_missing_baseline_is_named(study: Study) -> None:
    runs = study.runs
    without = replace(study, runs=runs[(runs["framework"] != "horovod") | (runs["workers"] > 1)])
    unknown = dict.fromkeys(("efficiency_common", "efficiency_common_low", "efficiency_common_high"), NAN)
    found = advise(without, points_of(without).assign(**unknown))
    assert found.workers is None
    assert "no usable run of Horovod on 1 worker" in found.sentence


def test_one_worker_alone_is_no_choice(study: Study) -> None:
    alone = replace(study, runs=study.runs[study.runs["workers"] == 1])
    found = advise(alone, points_of(alone))
    assert found.workers is None
    assert "only 1 worker was measured" in found.sentence


def test_options_whose_runs_all_diverged_are_named_and_blame_no_others(tmp_path: Path) -> None:
    diverged = End(status="diverged", reason="loss is nan")
    for rate in (0.001, 1000.0):
        for workers, repeat in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (4, 1)):
            end = diverged if rate > 1 else End(status="complete")
            if (rate, workers) != (0.001, 4):
                options = {"training": {"learning_rate": rate}}
                speed = 100.0 * workers
                label = f"-{rate}"
                write_run(
                    tmp_path,
                    "horovod",
                    workers,
                    repeat,
                    images_per_second=speed,
                    options=options,
                    label=label,
                    end=end,
                )
    study = load_study(tmp_path)
    assert set(study.left_out["options"]) == {"learning_rate=1000.0"}
    found = advise(study, points_of(study))
    assert (found.options, found.workers) == ("learning_rate=0.001", 2)
    assert not any("diverged" in line for line in found.why)


def test_a_point_with_a_diverged_run_is_excluded_and_a_lost_point_is_said(tmp_path: Path) -> None:
    diverged = End(status="diverged", reason="loss is nan")
    for workers, lost in ((1, ()), (2, ()), (4, (2,)), (8, (1, 2, 3))):
        for repeat in (1, 2, 3, 4):
            end = diverged if repeat in lost else End(status="complete")
            if (workers, repeat) != (8, 4):
                write_run(tmp_path, "horovod", workers, repeat, images_per_second=100.0 * workers, end=end)
    study = load_study(tmp_path)
    found = advise(study, points_of(study))
    assert (found.framework, found.workers) == ("horovod", 2)
    assert any("Horovod on 4 workers" in line and "1 of its 4 runs diverged" in line for line in found.why)
    assert "Horovod on 8 workers: 3 runs diverged and none can be used" in found.why
    assert any("native DDP has no usable run on 2 workers" in line for line in found.why)


def test_logs_without_provenance_give_no_recommendation(study: Study) -> None:
    logs = replace(study, runs=study.runs[study.runs["repeat"] == 1], provenance_known=False)
    points = points_of(logs).assign(efficiency_common_low=NAN, efficiency_common_high=NAN)
    found = advise(logs, points)
    assert found.workers is None
    assert "one run per point and no provenance" in found.sentence


def test_each_set_of_options_has_its_own_recommendation(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for workers in (1, 2):
            for repeat in (1, 2, 3):
                options = {"training": {"precision": precision}}
                write_run(tmp_path, "horovod", workers, repeat, options=options, label=precision)
    study = load_study(tmp_path)
    found = recommended(study, points_of(study), comparisons_of(study).iloc[:0])
    assert [each.options for each in found] == ["precision=bf16", "precision=fp32"]
    assert str(found[0]).startswith("[precision=bf16] Train with Horovod on 2 workers")


def test_from_runs_to_a_recommendation(tmp_path: Path) -> None:
    speeds: dict[Framework, tuple[float, ...]] = {
        "pytorch_native": (100, 190, 360),
        "horovod": (95, 140, 200),
    }
    for framework, values in speeds.items():
        for workers, speed in zip((1, 2, 4), values, strict=True):
            for repeat, noise in enumerate((0.99, 1.0, 1.01, 1.0, 1.0), start=1):
                point = (framework, workers, repeat)
                write_run(tmp_path, *point, images_per_second=speed * noise, iou=0.8 + repeat / 1000)
    study = load_study(tmp_path)
    (found,) = recommended(study, summarise(study), compare(study))
    assert (found.framework, found.workers) == ("pytorch_native", 4)
    assert any("native DDP faster" in line for line in found.why)


def test_a_baseline_that_one_point_shows_to_be_too_slow_recommends_nothing(study: Study) -> None:
    """Efficiencies above 1 on 2 workers: then those on 4 are too high as well."""
    slow = {f"{name}_2": (1.21, 1.20, 1.22) for name in ("pytorch_native", "horovod")}
    found = advise(study, points_of(study, **slow))
    assert found.workers is None
    assert "the runs on 1 worker were slowed by something" in found.sentence
    assert "1.21 [1.20, 1.22]" in found.sentence


def test_a_framework_of_lower_iou_than_the_other_is_not_recommended(tmp_path: Path) -> None:
    """It keeps the IoU of its own 1 worker, which is bad."""
    for framework, iou, speed in (("pytorch_native", 0.85, 100.0), ("horovod", 0.30, 110.0)):
        for workers in (1, 2, 4):
            for repeat in (1, 2, 3):
                throughput = speed * workers
                point: tuple[Framework, int, int] = (framework, workers, repeat)  # type: ignore[assignment]
                write_run(tmp_path, *point, images_per_second=throughput, iou=iou + repeat / 1000)
    study = load_study(tmp_path)
    (found,) = recommended(study, summarise(study), compare(study))
    assert found.framework == "pytorch_native" or found.workers is None
    assert any("its IoU is below that of native DDP on as many workers" in line for line in found.why)


def test_the_doubts_of_the_baseline_stand_in_the_recommendation(study: Study) -> None:
    doubt = "the fairness table says no to: same baseline"
    (found,) = recommended(study, points_of(study), comparisons_of(study), baseline_doubt=doubt)
    assert found.sentence.endswith(f"; in doubt: {doubt}")
    alone = comparisons_of(study).assign(doubts=["machine quiet", "", ""])
    (found,) = recommended(study, points_of(study), alone)
    assert found.sentence.endswith("; in doubt: on 1 worker machine quiet")


def test_a_recommendation_claims_no_more_than_the_verdict(study: Study) -> None:
    points = points_of(study, horovod_4=(0.98, 0.97, 0.99))
    suggested = comparisons_of(study, "suggests native DDP faster").assign(pairs=3)
    (found,) = recommended(study, points, suggested)
    assert "(faster, as 3 repeats suggest)" in found.sentence
    few = comparisons_of(study, "not enough repeats").assign(pairs=0)
    (found,) = recommended(study, points, few)
    assert "native DDP or Horovod on 4 workers" in found.sentence
    assert "no verdict on which is faster (0 repeats in common)" in found.sentence


def test_says_that_the_other_framework_was_not_measured_on_as_many_workers(study: Study) -> None:
    points = points_of(study)
    points = points[(points["framework"] == "horovod") | (points["workers"] < 4)]
    (found,) = recommended(study, points, comparisons_of(study).query("workers < 4"))
    assert "(native DDP was not measured on 4 workers)" in found.sentence
