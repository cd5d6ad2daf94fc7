"""Hosts, clocks, order and baseline of the frameworks compared: what is marked, and what forbids "faster"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.findings.check import Check, withholding
from analysis.findings.fairness_table import fairness_checks, fairness_table
from analysis.findings.machines import check_places
from analysis.loading.load import load_study
from analysis.study import Study
from tests.records import make_workers, write_run
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.record_lines import Resumed

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
AT_TWO = ("", "", "", 2)


def write_in_order(folder: Path, runs: str, minutes: float = 1.0) -> Study:
    """Runs on 2 workers, started one after the other: "NHNH" has a letter for each, repeats counted up.

    Letters followed by digits name their repeat: "N2".
    """
    repeats = dict.fromkeys(FRAMEWORKS, 0)
    names: dict[str, Framework] = {"N": "pytorch_native", "H": "horovod"}
    for place, letter in enumerate(runs.split() if " " in runs else runs):
        framework = names[letter[0]]
        repeats[framework] += 1
        repeat = int(letter[1:] or repeats[framework])
        started = START + timedelta(minutes=minutes * place)
        write_run(folder, framework, 2, repeat, header={"started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}"})
    return load_study(folder)


def check_of(study: Study, name: str) -> Check:
    (found,) = [check for check in fairness_checks(study) if check.check == name]
    return found


def order_of(study: Study) -> Check:
    return check_of(study, "order interleaved in time")


@pytest.mark.parametrize(
    "runs", ["NHNHNH", "NHHNNH", "NHNHNHNHNH", "NHNH", "NHHN", "N1 H1 H2 N3 H3 N4 H4 N5 H5 N2"]
)
def test_runs_in_turn_are_interleaved(tmp_path: Path, runs: str) -> None:
    assert order_of(write_in_order(tmp_path, runs)).mark == "yes"


@pytest.mark.parametrize(
    "runs",
    [
        "NNHH",
        "NNNHHH",
        "HHHHHNNNNN",
        # One late rerun of one framework's first, middle or last repeat does not hide it.
        "N2 N3 N4 N5 H1 H2 H3 H4 H5 N1",
        "N1 N2 N4 N5 H1 H2 H3 H4 H5 N3",
        "N1 N2 N3 N4 H1 H2 H3 H4 H5 N5",
        "N1 N2 H1 H2 H3 N3",
        "N1 N2 N3 H1 H2 N4 H3 H4",
    ],
)
def test_a_framework_that_ran_before_the_other_is_marked_and_withholds(tmp_path: Path, runs: str) -> None:
    study = write_in_order(tmp_path, runs)
    found = order_of(study)
    assert (found.mark, found.withholds, found.pairs) == ("no", True, frozenset((AT_TWO,)))
    assert withholding(fairness_checks(study), AT_TWO) == [found]
    assert withholding(fairness_checks(study), ("", "", "", 4)) == []


@pytest.mark.parametrize("runs", ["NH", "NHH"])
def test_few_runs_do_not_tell_their_order(tmp_path: Path, runs: str) -> None:
    assert order_of(write_in_order(tmp_path, runs)).mark == "not known"


def test_runs_at_the_same_time_are_not_one_after_the_other(tmp_path: Path) -> None:
    """Slurm starts jobs together: those of one framework a second before the other's are no doubt."""
    assert order_of(write_in_order(tmp_path, "NNNNNHHHHH", minutes=1 / 300)).mark == "yes"


def test_a_framework_whose_runs_all_started_together_after_the_other_s_is_marked(tmp_path: Path) -> None:
    for framework, hour in (("pytorch_native", 12), ("horovod", 14)):
        for repeat in (1, 2, 3):
            header = {"started_utc": f"2025-01-31T{hour}:00:00Z"}
            write_run(tmp_path, framework, 2, repeat, header=header)  # type: ignore[arg-type]
    assert order_of(load_study(tmp_path)).mark == "no"


@pytest.mark.parametrize(("apart_seconds", "mark"), [(59, "no"), (20, "yes")])
def test_runs_that_overlap_only_shortly_ran_one_after_the_other(
    tmp_path: Path, apart_seconds: int, mark: str
) -> None:
    """Each trains for 60 s: two epochs and a warm-up of four times their length."""
    for repeat in (1, 2, 3):
        for extra, framework in enumerate(FRAMEWORKS):
            started = START + timedelta(seconds=repeat + extra * apart_seconds)
            header = {"started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
            write_run(tmp_path, framework, 2, repeat, images_per_epoch=1000, header=header)
    assert order_of(load_study(tmp_path)).mark == mark


ALONE = "one run at a time on a core"


def write_at(folder: Path, seconds: Mapping[tuple[Framework, int], int], **header: object) -> Study:
    """Runs on 2 workers that train for 6 s, each started that many seconds after the first."""
    for (framework, repeat), after in seconds.items():
        started = {"started_utc": f"{START + timedelta(seconds=after):%Y-%m-%dT%H:%M:%SZ}"}
        write_run(folder, framework, 2, repeat, images_per_epoch=100, header=started | header)
    return load_study(folder)


IN_TURN: Mapping[tuple[Framework, int], int] = {
    ("pytorch_native", 1): 0,
    ("horovod", 1): 6,
    ("pytorch_native", 2): 12,
    ("horovod", 2): 18,
}


def test_two_runs_at_once_on_a_core_are_named_with_the_host_and_withhold(tmp_path: Path) -> None:
    study = write_at(tmp_path, {**IN_TURN, ("horovod", 2): 8})
    found = check_of(study, ALONE)
    assert (found.mark, found.withholds, found.pairs) == ("no", True, frozenset((AT_TWO,)))
    told = "horovod-w02-r1 and horovod-w02-r2 trained at the same time on core 0 of host node1"
    assert found.fact.startswith(told)


def test_runs_one_after_the_other_have_their_cores_to_themselves(tmp_path: Path) -> None:
    assert check_of(write_at(tmp_path, IN_TURN), ALONE).mark == "yes"


def test_a_slowed_run_trains_for_longer_than_its_seconds_say(tmp_path: Path) -> None:
    study = write_at(tmp_path, IN_TURN)
    headers = {run: header.model_copy(update={"dilation": 2.0}) for run, header in study.headers.items()}
    assert check_of(replace(study, headers=headers), ALONE).mark == "no"


@pytest.mark.parametrize(("dilation", "mark"), [(1.0, "no"), (2.0, "yes")])
def test_slowed_runs_overlap_by_the_clock_of_their_machine(
    tmp_path: Path, dilation: float, mark: str
) -> None:
    """Each trains for 60 s of its cluster, and one framework began 50 s after the other."""
    study = write_in_order(tmp_path, "NNNHHH", minutes=0)
    started = study.runs["framework"].map({"pytorch_native": "12:00:00Z", "horovod": "12:00:50Z"})
    seconds = pd.Series([0, 1, 2] * 2)
    times = pd.to_datetime("2025-01-31T" + started) + pd.to_timedelta(seconds, unit="s")
    runs = study.runs.assign(
        started_utc=times.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), training_seconds=60.0, dilation=dilation
    )
    assert order_of(replace(study, runs=runs)).mark == mark


def test_runs_at_once_on_separate_cores_have_them_to_themselves(tmp_path: Path) -> None:
    for framework in FRAMEWORKS:
        cores = 2 * FRAMEWORKS.index(framework)
        workers = [
            worker.model_copy(update={"cores": [core + cores for core in worker.cores]})
            for worker in make_workers(2)
        ]
        write_at(tmp_path, {(framework, 1): 0}, workers=workers)
    assert check_of(load_study(tmp_path), ALONE).mark == "yes"


def test_two_runs_at_once_on_a_device_are_marked(tmp_path: Path) -> None:
    at_once: Mapping[tuple[Framework, int], int] = {("pytorch_native", 1): 0, ("horovod", 1): 0}
    found = check_of(write_at(tmp_path, at_once, workers=make_workers(2, device="H200")), ALONE)
    assert found.mark == "no"
    assert "on device GPU-0" in found.fact


def test_of_a_resumed_run_only_the_epochs_of_its_last_attempt_count(tmp_path: Path) -> None:
    """Its last attempt trained for 1 s of 6."""
    resumed = {"attempt": 2, "resumed": Resumed(epoch=2, step=0)}
    write_at(tmp_path, {("pytorch_native", 1): 0}, **resumed)
    assert check_of(write_at(tmp_path, {("horovod", 1): 2}), ALONE).mark == "yes"


def test_runs_without_a_start_do_not_tell_whether_they_were_alone(tmp_path: Path) -> None:
    assert check_of(write_at(tmp_path, IN_TURN), ALONE).mark == "yes"
    write_run(tmp_path, "horovod", 4, header={"started_utc": "later"})
    assert check_of(load_study(tmp_path), ALONE).mark == "not known"


def test_the_table_names_what_withholds(tmp_path: Path) -> None:
    table = fairness_table(fairness_checks(write_in_order(tmp_path, "NNNHHH")))
    assert list(table.columns) == ["check", "mark", "fact", "withholds"]
    assert table.loc[table["withholds"], "check"].tolist() == ["order interleaved in time"]


def write_on_hosts(folder: Path, hosts: Mapping[Framework, Sequence[str]]) -> Study:
    """Runs on 2 workers of each framework, each on its host, in turn."""
    for framework, names in hosts.items():
        for repeat, host in enumerate(names, start=1):
            started = f"2025-01-31T12:{repeat:02}:{FRAMEWORKS.index(framework) * 30:02}Z"
            header = {"workers": make_workers(2, host=host), "started_utc": started}
            write_run(folder, framework, 2, repeat, header=header)
    return load_study(folder)


@pytest.mark.parametrize("horovod", [["b"] * 5, ["b", "b", "b", "b", "a"]])
def test_hosts_that_one_framework_had_alone_withhold(tmp_path: Path, horovod: list[str]) -> None:
    found = check_of(
        write_on_hosts(tmp_path, {"pytorch_native": ["a"] * 5, "horovod": horovod}), "same nodes"
    )
    assert (found.mark, found.withholds, found.pairs) == ("no", True, frozenset((AT_TWO,)))
    assert "a in native DDP" in found.fact or "a: 5 of 5 in native DDP" in found.fact


def test_hosts_of_a_slowed_virtual_cluster_are_one_machine(tmp_path: Path) -> None:
    real = write_on_hosts(tmp_path, {"pytorch_native": ["a"] * 3, "horovod": ["b"] * 3})
    slowed = replace(real, runs=real.runs.assign(dilation=10.0))
    assert [check_places(study).mark for study in (real, slowed)] == ["no", "yes"]


def test_hosts_that_served_both_frameworks_alike_do_not_withhold(tmp_path: Path) -> None:
    hosts: dict[Framework, Sequence[str]] = {"pytorch_native": ["a", "b", "a"], "horovod": ["b", "a", "a"]}
    found = check_of(write_on_hosts(tmp_path, hosts), "same nodes")
    assert (found.mark, found.withholds) == ("no", False)


@pytest.mark.parametrize(("swapped", "withholds"), [(5, True), (4, True), (3, False)])
def test_one_host_that_one_framework_had_alone_withholds_whatever_they_share(
    tmp_path: Path, swapped: int, withholds: bool
) -> None:
    """All share a, b and c; in that many of five launches Horovod had a slow host instead of d."""
    for repeat in range(1, 6):
        for framework in FRAMEWORKS:
            last = "slow" if framework == "horovod" and repeat <= swapped else "d"
            workers = [
                worker.model_copy(update={"host": host})
                for worker, host in zip(make_workers(4), ("a", "b", "c", last), strict=True)
            ]
            started = START + timedelta(minutes=2 * repeat + FRAMEWORKS.index(framework))
            header = {"workers": workers, "started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
            write_run(tmp_path, framework, 4, repeat, header=header)
    found = check_of(load_study(tmp_path), "same nodes")
    assert (found.mark, found.withholds) == ("no", withholds)
    if withholds:
        assert f"5 of 5 in native DDP, {5 - swapped} of 5 in Horovod" in found.fact


def test_hosts_of_which_exactly_half_are_shared_withhold(tmp_path: Path) -> None:
    hosts: dict[Framework, Sequence[str]] = {"pytorch_native": ["a", "b"], "horovod": ["a", "c"]}
    assert check_of(write_on_hosts(tmp_path, hosts), "same nodes").withholds


def clocked(study: Study, native: Sequence[float], horovod: Sequence[float]) -> Study:
    """The study with these clocks of its runs, MHz."""
    clocks: dict[str, Sequence[float]] = {"pytorch_native": native, "horovod": horovod}
    by_run = {
        row["run"]: clocks[row["framework"]][row["repeat"] - 1] for row in study.runs.to_dict("records")
    }
    study.budgets["frequency_mhz"] = study.budgets["run"].astype(str).map(by_run)
    return study


@pytest.mark.parametrize(
    ("native", "horovod", "mark"),
    [
        ([3000.0] * 3, [1500.0] * 3, "no"),
        ([3010.0, 2990.0, 3000.0], [2820.0, 2800.0, 1500.0], "no"),
        ([3010.0, 2990.0, 3000.0], [2990.0, 3000.0, 2950.0], "yes"),
        ([3010.0, 2990.0, 3000.0], [3000.0, 3000.0, 1500.0], "yes"),
        ([2700.0] * 3, [2700.0] * 3, "not known"),
        ([float("nan")] * 3, [2700.0] * 3, "not known"),
    ],
)
def test_clocks_are_compared(tmp_path: Path, native: list[float], horovod: list[float], mark: str) -> None:
    found = check_of(clocked(write_in_order(tmp_path, "NHNHNH"), native, horovod), "same clock of the cores")
    assert (found.mark, found.withholds) == (mark, mark == "no" or np.isnan(native[0]))


def write_baseline(folder: Path, started: datetime, host: str = "node1") -> Study:
    """Three repeats of Horovod: on 1 worker of that host from then on, on 2 workers of node1."""
    for repeat in (1, 2, 3):
        for workers, begin, name in ((1, started, host), (2, START, "node1")):
            time = begin + timedelta(hours=repeat)
            header = {
                "workers": make_workers(workers, host=name),
                "started_utc": f"{time:%Y-%m-%dT%H:%M:%SZ}",
            }
            write_run(folder, "horovod", workers, repeat, header=header)
    return load_study(folder)


def test_a_baseline_of_other_days_is_doubted_with_the_dates(tmp_path: Path) -> None:
    found = check_of(write_baseline(tmp_path, START - timedelta(days=19)), "same baseline")
    assert (found.mark, found.withholds) == ("no", False)
    assert "3 of 3 runs of Horovod on 1 worker started on 2025-01-12" in found.fact
    assert "19 days from those on 2 workers (2025-01-31)" in found.fact


def test_a_baseline_of_another_host_is_doubted_with_the_hosts(tmp_path: Path) -> None:
    found = check_of(write_baseline(tmp_path, START, host="old7"), "same baseline")
    assert found.mark == "no"
    assert "3 of 3 runs of Horovod on 1 worker ran on old7, those on 2 workers on node1" in found.fact


def test_a_baseline_of_the_same_hosts_and_hours_is_not_doubted(tmp_path: Path) -> None:
    study = write_baseline(tmp_path, START + timedelta(minutes=5))
    assert check_of(study, "same baseline").mark == "yes"


def write_counts(folder: Path, hosts: Mapping[int, str], days: Mapping[int, int]) -> Study:
    """Three repeats of Horovod on 1, 2 and 4 workers: each count on its host and day."""
    for repeat in (1, 2, 3):
        for workers in (1, 2, 4):
            started = START + timedelta(days=days.get(workers, 0), hours=repeat, minutes=workers)
            header = {
                "workers": make_workers(workers, host=hosts.get(workers, "node1")),
                "started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}",
            }
            write_run(folder, "horovod", workers, repeat, header=header)
    return load_study(folder)


def test_a_baseline_is_compared_with_the_hosts_of_each_larger_count(tmp_path: Path) -> None:
    """The runs on 2 workers ran where those on 1 did; those on 4, of which it matters most, did not."""
    found = check_of(write_counts(tmp_path, {4: "fast"}, {}), "same baseline")
    assert found.mark == "no"
    assert "3 of 3 runs of Horovod on 1 worker ran on node1, those on 4 workers on fast" in found.fact


def test_a_baseline_is_compared_with_the_days_of_each_larger_count(tmp_path: Path) -> None:
    found = check_of(write_counts(tmp_path, {}, {4: 30}), "same baseline")
    assert found.mark == "no"
    assert "30 days from those on 4 workers" in found.fact


def test_equal_doubts_of_several_counts_are_one(tmp_path: Path) -> None:
    found = check_of(write_counts(tmp_path, {1: "old"}, {}), "same baseline")
    told = "3 of 3 runs of Horovod on 1 worker ran on old, those on 2 and 4 workers on node1"
    assert found.fact.startswith(f"{told}: ")


@pytest.mark.parametrize(("baseline_mhz", "mark"), [(1500.0, "no"), (2950.0, "yes")])
def test_a_baseline_of_another_clock_is_doubted_with_both(
    tmp_path: Path, baseline_mhz: float, mark: str
) -> None:
    study = write_counts(tmp_path, {}, {})
    clocks = {run: baseline_mhz if "-w01-" in run else 3000.0 for run in study.runs["run"]}
    study.budgets["frequency_mhz"] = study.budgets["run"].astype(str).map(clocks)
    found = check_of(study, "same baseline")
    assert found.mark == mark
    told = "the 3 runs of Horovod on 1 worker had 1,500 MHz, those on 2 and 4 workers 3,000 MHz"
    assert (told in found.fact) == (mark == "no")
