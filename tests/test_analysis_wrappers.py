"""Reports with frameworks that wrap DDP: each against native, and the pair as in any other report."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.findings.wrapper_comparison import COSTS_NOTHING, beside_native, is_negligible
from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.figure_files import draw_figures
from analysis.report.html import page
from analysis.report.tables import table_files
from analysis.study import NAMES
from analysis.text import Row
from tests.records import make_workers, write_run
from tests.report_studies import START
from unet_scaling.study.config import ALL_FRAMEWORKS, FRAMEWORKS, PROJECT, Framework

# Seconds of a step of each framework over those of native DDP, on 2 workers.
SLOWER = {"pytorch_native": 1.0, "horovod": 1.05, "lightning": 1.001, "accelerate": 1.03}


def write_arms(
    folder: Path,
    frameworks: Sequence[Framework],
    repeats: int = 5,
    header_of: Callable[[Framework, int], Mapping[str, object]] = lambda *_: {},
) -> Path:
    """Write runs on 1 and 2 workers, one after the other; `header_of` returns what differs in a header."""
    random = np.random.default_rng(5)
    begun = 0
    for repeat in range(1, repeats + 1):
        for framework in ALL_FRAMEWORKS:
            for workers in (1, 2):
                noise = 1 + 0.0005 * random.standard_normal()
                throughput = 100 * workers / SLOWER[framework] ** (workers - 1) * noise
                header: dict[str, object] = {
                    "started_utc": f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"
                }
                header |= header_of(framework, workers)
                begun += 1
                if framework in frameworks:
                    write_run(
                        folder, framework, workers, repeat, images_per_second=throughput, iou=0.85,
                        header=header,
                    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(load_study(write_arms(tmp_path_factory.mktemp("four"), ALL_FRAMEWORKS)))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(load_study(write_arms(tmp_path_factory.mktemp("two"), FRAMEWORKS)))


def of(report: Report, framework: Framework, workers: int = 2) -> Row:
    rows = report.wrappers
    (row,) = rows[(rows["framework"] == framework) & (rows["workers"] == workers)].to_dict("records")
    return row


def test_each_framework_is_compared_with_native_ddp(four: Report) -> None:
    outcomes = {name: of(four, name)["outcome"] for name in ALL_FRAMEWORKS[1:]}
    slower, equal = "native DDP faster", "no significant difference"
    assert outcomes == {"horovod": slower, "lightning": equal, "accelerate": slower}
    for framework in ALL_FRAMEWORKS[1:]:
        row = of(four, framework)
        assert row["ratio"] == pytest.approx(SLOWER[framework], rel=0.002)
        assert row["cost_ms"] == pytest.approx(row["step_ms"] * (row["ratio"] - 1))


def test_a_wrapper_costs_nothing_only_where_its_whole_interval_is_within_the_share(four: Report) -> None:
    costs = {framework: of(four, framework)["costs"] for framework in ALL_FRAMEWORKS[1:]}
    assert costs == {"horovod": "not shown", "lightning": COSTS_NOTHING, "accelerate": "not shown"}


def test_one_correction_covers_all_comparisons_of_the_study(four: Report, two: Report) -> None:
    assert set(four.wrappers["comparisons"]) == {6.0}
    assert set(four.comparisons["comparisons"]) == {6.0}
    assert set(two.comparisons["comparisons"]) == {2.0}
    same = ["ratio", "pairs", "workers", "native_knobs", "horovod_knobs"]
    pd.testing.assert_frame_equal(four.comparisons[same], two.comparisons[same])


def test_a_report_of_the_pair_has_no_table_of_further_frameworks(four: Report, two: Report) -> None:
    assert set(table_files(four)) - set(table_files(two)) == {"frameworks.csv"}
    assert beside_native(two.study) is two.study
    assert list(two.study.names) == list(FRAMEWORKS)
    assert list(four.study.names) == list(ALL_FRAMEWORKS)


def test_verdicts_say_what_a_wrapper_costs_and_whether_horovod_may_be_left(four: Report, two: Report) -> None:
    said = {verdict.knobs: verdict.sentence for verdict in four.verdicts}
    assert f"ms to it: {COSTS_NOTHING} of a step (94 % interval, 5 repeats; corrected" in re.sub(
        r" \[.*?\]", "", said["Lightning Fabric"]
    )
    assert "times the throughput of Horovod: native DDP faster (94 %" in said["leaving Horovod"]
    assert "IoU equal within the margin" in said["leaving Horovod"]
    assert not any("leaving" in verdict.knobs for verdict in two.verdicts)


def verdict_on(folder: Path, framework: Framework) -> str:
    report = make_report(load_study(folder))
    (said,) = [each.sentence for each in report.verdicts if each.knobs == NAMES[framework]]
    return said


def test_few_repeats_do_not_show_that_a_wrapper_costs_nothing(tmp_path: Path) -> None:
    said = verdict_on(write_arms(tmp_path, ("pytorch_native", "lightning"), repeats=4), "lightning")
    assert COSTS_NOTHING not in said
    assert "(88 % interval, 4 repeats; " in said


def test_other_processes_beside_one_framework_leave_open_what_a_wrapper_costs() -> None:
    rows = pd.DataFrame({"ratio_low": [0.999] * 3, "ratio_high": [1.001] * 3, "pairs": 5, "doubts": ""})
    rows["busy_difference"] = [0.0, 0.02, np.nan]
    assert is_negligible(rows).tolist() == [True, False, True]


def test_the_verdict_is_at_the_most_workers_with_enough_repeats(tmp_path: Path) -> None:
    folder = write_arms(tmp_path, ("pytorch_native", "lightning"))
    for framework in ("pytorch_native", "lightning"):
        write_run(folder, framework, 4, 1, images_per_second=400, iou=0.85)
    assert verdict_on(folder, "lightning").startswith("At 2 workers a step of native DDP takes")


def test_nothing_is_said_of_the_weights_of_runs_that_were_not_evaluated(tmp_path: Path) -> None:
    options = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}
    for framework in ("pytorch_native", "lightning"):
        for repeat in range(1, 6):
            speed = 100 + 0.01 * repeat
            write_run(tmp_path, framework, 2, repeat, images_per_second=speed, options=options)
    said = verdict_on(tmp_path, "lightning")
    assert "nothing was evaluated: weights and IoU are not compared" in said


def test_a_study_without_horovod_names_no_horovod(tmp_path: Path) -> None:
    report = make_report(load_study(write_arms(tmp_path, ("pytorch_native", "lightning"))))
    assert report.comparisons.empty
    assert set(report.wrappers["framework"]) == {"lightning"}
    said = [
        *map(str, report.verdicts),
        *(each.headline for each in report.answers),
    ]
    assert not any("Horovod" in sentence for sentence in said)


def test_every_framework_has_a_name_of_its_own() -> None:
    assert list(NAMES) == list(ALL_FRAMEWORKS)
    assert len(set(NAMES.values())) == len(NAMES)


def fairness_of(report: Report, framework: Framework) -> dict[str, Row]:
    """The rows of the fairness table that compare native DDP with this framework, by what they check."""
    ending = f" ({NAMES[framework]})"
    rows = report.fairness.to_dict("records")
    return {row["check"].removesuffix(ending): row for row in rows if row["check"].endswith(ending)}


def test_each_wrapper_has_rows_of_its_own_in_the_fairness_table(four: Report, two: Report) -> None:
    compared = {"same software", "same nodes", "order interleaved in time", "machine quiet"}
    for framework in ("lightning", "accelerate"):
        rows = fairness_of(four, framework)
        assert compared <= set(rows)
        assert not any(row["withholds"] for row in rows.values())
    assert not two.fairness["check"].str.contains("(", regex=False).any()
    assert set(two.fairness["check"]) <= set(four.fairness["check"])


def test_what_differs_in_one_wrapper_alone_is_named_with_it_and_withholds_its_verdict_only(
    tmp_path: Path,
) -> None:
    def elsewhere(framework: Framework, workers: int) -> Mapping[str, object]:
        return {"workers": make_workers(workers, host="node9")} if framework == "accelerate" else {}

    report = make_report(load_study(write_arms(tmp_path, ALL_FRAMEWORKS, header_of=elsewhere)))
    row = fairness_of(report, "accelerate")["same nodes"]
    assert (row["mark"], row["withholds"]) == ("no", True)
    assert "node1 in native DDP, node9 in Accelerate" in row["fact"]
    assert fairness_of(report, "lightning")["same nodes"]["mark"] == "yes"
    assert any(doubt.startswith("same nodes (Accelerate): no: ") for doubt in report.doubts)
    assert of(report, "accelerate")["outcome"].startswith("withheld")
    assert of(report, "horovod")["outcome"] == "native DDP faster"


def test_a_wrapper_whose_epochs_have_other_steps_is_named(tmp_path: Path) -> None:
    folder = write_arms(tmp_path, FRAMEWORKS, repeats=3)
    for repeat in (1, 2, 3):
        write_run(folder, "lightning", 2, repeat, images_per_epoch=20)
    row = fairness_of(make_report(load_study(folder)), "lightning")["same work per epoch"]
    assert (row["mark"], row["withholds"]) == ("no", True)
    assert "lightning-w02-r1" in row["fact"]


def test_a_wrapper_that_trained_beside_a_run_of_horovod_had_no_core_to_itself(tmp_path: Path) -> None:
    folder = write_arms(tmp_path, ALL_FRAMEWORKS, repeats=3)
    hours: Mapping[Framework, int] = {"horovod": 1, "lightning": 1, "pytorch_native": 2, "accelerate": 3}
    for framework, hour in hours.items():
        begun = {"started_utc": f"{START + timedelta(hours=hour):%Y-%m-%dT%H:%M:%SZ}"}
        write_run(folder, framework, 2, 4, images_per_second=1.0, header=begun)
    report = make_report(load_study(folder))
    row = fairness_of(report, "lightning")["one run at a time on a core"]
    assert (row["mark"], row["withholds"]) == ("no", True)
    assert "horovod-w02-r4 and lightning-w02-r4 trained at the same time" in row["fact"]
    assert fairness_of(report, "accelerate")["one run at a time on a core"]["mark"] == "yes"


def test_a_package_that_only_a_wrappers_runs_recorded_is_named_but_not_the_wrapper(tmp_path: Path) -> None:
    versions = {"python": "3.11.2", "torch": "2.13.0"}
    own = {"lightning": {"lightning": "2.6.6", "strange": "1.0"}, "accelerate": {"accelerate": "1.15.0"}}

    def with_own(framework: Framework, _workers: int) -> Mapping[str, object]:
        return {"versions": versions | own.get(framework, {})}

    report = make_report(load_study(write_arms(tmp_path, ALL_FRAMEWORKS, 3, with_own)))
    row = fairness_of(report, "lightning")["same software"]
    assert (row["mark"], row["withholds"]) == ("not known", True)
    assert "version of strange: not recorded in native DDP, 1.0 in Lightning Fabric" in row["fact"]
    assert fairness_of(report, "accelerate")["same software"]["mark"] == "yes"


def test_a_setting_that_one_wrapper_alone_did_not_record_is_named_with_it(tmp_path: Path) -> None:
    def unknown(framework: Framework, workers: int) -> Mapping[str, object]:
        made = [each.model_copy(update={"environment": None}) for each in make_workers(workers)]
        return {"workers": made} if framework == "lightning" else {}

    report = make_report(load_study(write_arms(tmp_path, ALL_FRAMEWORKS, 3, unknown)))
    (said,) = [doubt for doubt in report.doubts if doubt.startswith("same environment (Lightning Fabric)")]
    assert "not recorded in Lightning Fabric" in said


def test_without_horovod_the_fairness_table_compares_the_wrapper_alone(tmp_path: Path) -> None:
    report = make_report(load_study(write_arms(tmp_path, ("pytorch_native", "lightning"), 3)))
    titles = set(report.fairness["check"])
    assert "same nodes (Lightning Fabric)" in titles
    assert "same nodes" not in titles
    trust = next(tile for tile in report.answers[0].tiles if tile.title == "Trust")
    assert "machine quiet (Lightning Fabric): not known" in str(trust)


def test_the_page_has_the_colours_and_the_section_of_further_frameworks(four: Report, two: Report) -> None:
    for report, has_them in ((four, True), (two, False)):
        html = page(report, draw_figures(report))
        assert ("--lightning:" in html) is has_them
        assert ("Every framework against native DDP" in html) is has_them
        assert ("Accelerate" in html) is has_them


def test_the_page_on_leaving_horovod_says_what_the_records_say() -> None:
    """Four frameworks on two cores, of which none is shown to be faster."""
    report = make_report(load_study(PROJECT / "logs" / "leaving_horovod"))
    text = (PROJECT / "docs" / "leaving_horovod.md").read_text()
    for point in report.points.to_dict("records"):
        assert f"| {NAMES[point['framework']]} | {point['images_per_second']:.1f} |" in text
        assert f"{point['iou']:.3f} |" in text
    told = "\n".join(verdict.sentence for verdict in report.verdicts)
    for said in ("0.964 [0.926, 1.003]", "adds -1.04 ms [-3.47, +2.82]", "adds +1.08 ms [-2.00, +3.29]"):
        assert said in told
        assert said in text
    assert told.count("the same weights in 5 of 5 repeats") == 3
