"""The diagnosis: every rule has a run that it speaks about and one that it is silent about."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.budget.diagnosis import RULES, Diagnosis, diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.tables import budget_table
from analysis.loading.load import load_study
from tests.budgets import Steps, make_probe, write_budget_run
from tests.records import make_workers, write_run
from unet_scaling.study.config import PROJECT, WRAPPERS, Framework
from unet_scaling.study.record_lines import WorkerFacts

BUSY_HELPER = {"communication": 0.05}
POLLING_HELPER = BUSY_HELPER | {"runqueue": 0.0}
NO_CORE = {"communication": 0.0, "runqueue": 0.02}
OWN_HELPER = {"communication": 0.02, "runqueue": 0.02}
OTHER_PROGRAM = {"communication": 0.0, "runqueue": 0.02, "other": 0.02}
TWO_HOSTS = [*make_workers(2, host="node1"), *make_workers(2, host="node2")]
FOUR = [each.model_copy(update={"worker": number}) for number, each in enumerate(TWO_HOSTS)]
GPUS_ON_ONE_CORE = [each.model_copy(update={"cores": [0]}) for each in make_workers(2, device="H200")]
SLOW_NODE2 = Steps(forward=(0.03, 0.03, 0.05, 0.05), sync=(0.02, 0.02, 0.0, 0.0))
# Node2 works longer, but by far less than all wait for each other.
HARDLY_SLOW = Steps(
    data_wait=0,
    forward=(0.002, 0.002, 0.003, 0.003),
    backward=0.003,
    optimizer=0,
    sync=(0.021, 0.021, 0.02, 0.02),
)
SYNC_NORM = {"model": {"batch_norm": "sync"}}


PACES = (1.0, 1.04, 1.02)


def findings(
    folder: Path,
    steps: Steps,
    *,
    alone: Steps | None = None,
    framework: Framework = "horovod",
    workers: int = 2,
    facts: Sequence[WorkerFacts] | None = None,
    one: Sequence[WorkerFacts] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    turns: bool = False,
    about: Mapping[str, object] | None = None,
    paces: Sequence[float] = (1.0, 1.0, 1.0),
) -> dict[str, Diagnosis]:
    """What is found in three repeats on 1 and on several workers.

    `turns`: in each repeat another worker is slow. `about` replaces fields of the headers; `paces` are of the
    repeats on several workers.
    """
    for repeat, pace in enumerate(paces, start=1):
        write_budget_run(
            folder, framework, 1, repeat, alone or Steps(), facts=one, options=options, about=about
        )
        several = _slow_one(repeat) if turns else steps
        write_budget_run(
            folder,
            framework,
            workers,
            repeat,
            several,
            pace=pace,
            probe=make_probe(),
            facts=facts,
            options=options,
            about=about,
        )
    study = load_study(folder)
    assert study.left_out.empty, study.left_out["reason"].tolist()
    return {each.rule: each for each in diagnose(study, budget_table(study), network_table(study))}


def _slow_one(repeat: int) -> Steps:
    slow = [worker == repeat for worker in range(4)]
    return Steps(
        forward=[0.05 if each else 0.03 for each in slow], sync=[0 if each else 0.02 for each in slow]
    )


@pytest.mark.parametrize(
    ("rule", "steps", "more", "evidence", "cure"),
    [
        ("input-bound", Steps(data_wait=0.1), {}, "data wait is 54", "profile"),
        (
            "input-bound",
            Steps(data_wait=0.1),
            {"options": {"data": {"loading": "decode"}}},
            "decode",
            "why_decoding.toml",
        ),
        ("input-bound", Steps(data_wait=0.02), {}, "9.2 % of it more than on 1 worker", "profile"),
        (
            "core contention",
            Steps(data_wait=0.02, contended=BUSY_HELPER),
            {},
            "45.9 % of the cores' time",
            "why_yield.toml",
        ),
        (
            "core contention",
            Steps(forward=0.04, contended=OWN_HELPER),
            {"framework": "pytorch_native"},
            "waits for a core 18.3 %",
            "more cores per worker",
        ),
        ("slower compute", Steps(forward=0.04), {}, "compute takes 9.2 %", "fewer workers per host"),
        ("machine busy", Steps(forward=0.04, contended=NO_CORE), {}, "3 of 6 launches", "without other work"),
        (
            "machine busy",
            Steps(forward=0.04, contended=OTHER_PROGRAM),
            {"alone": Steps(contended=OTHER_PROGRAM)},
            "6 of 6 launches lost 5.0 % or more",
            "without other work",
        ),
        (
            "slower compute",
            Steps(forward=0.2, contended=OWN_HELPER),
            {},
            "at most 7.4 %",
            "fewer workers",
        ),
        (
            "shared cores",
            Steps(),
            {"facts": GPUS_ON_ONE_CORE, "one": GPUS_ON_ONE_CORE[:1]},
            "cores that two workers",
            "cpu-bind",
        ),
        (
            "straggling host",
            SLOW_NODE2,
            {"workers": 4, "facts": FOUR},
            "node2 works 20.2 % longer than the others in 3 of 3 runs",
            "--exclude=node2",
        ),
        (
            "straggling host",
            Steps(forward=(0.03, 0.05), sync=(0.02, 0.0)),
            {},
            "worker 1 works 20.2 % longer",
            "Try a look at the clock",
        ),
        ("load imbalance", Steps(), {"workers": 4, "turns": True}, "none is slower", "accumulate"),
        ("load imbalance", HARDLY_SLOW, {"workers": 4, "facts": FOUR}, "but node2, by 3.4 %", "accumulate"),
        (
            "wire above its floor",
            Steps(sync=0.02, wire=0.02),
            {},
            "9.8 times the 2.05 ms",
            "why_fusion.toml",
        ),
        (
            "wire above its floor",
            Steps(sync=0.02, wire=0.02),
            {"framework": "pytorch_native"},
            "20 ms a step",
            "why_bucket.toml",
        ),
        *(
            (
                "wire above its floor",
                Steps(sync=0.02, wire=0.02),
                {"framework": wrapper},
                "20 ms a step",
                f"{wrapper}.bucket_cap_mb",
            )
            for wrapper in WRAPPERS
        ),
        (
            "negotiation",
            Steps(sync=0.005, wire=0.005),
            {"alone": Steps(sync=0.005, wire=0.005)},
            "on 1 worker it still syncs 5 ms a step, 4.8 %",
            "why_cycle_time.toml",
        ),
        (
            "too little work",
            Steps(data_wait=0, forward=0.002, backward=0.003, optimizer=0, sync=0.003, wire=0.003),
            {"alone": Steps(data_wait=0, forward=0.002, backward=0.003, optimizer=0)},
            "near the floor of 2.05 ms",
            "batch_per_worker",
        ),
        (
            "synchronised batch norm",
            Steps(forward=0.04),
            {"options": SYNC_NORM},
            "compute takes 9.2 %",
            "batch_norm = 'local'",
        ),
    ],
)
def test_a_rule_speaks_where_its_evidence_is(
    tmp_path: Path, rule: str, steps: Steps, more: dict[str, Any], evidence: str, cure: str
) -> None:
    found = findings(tmp_path, steps, **more)
    assert rule in found, found
    text = str(found[rule])
    assert evidence in text, text
    assert cure in text, text


SOUND = Steps()


@pytest.mark.parametrize(
    ("rule", "steps", "more"),
    [
        ("input-bound", Steps(data_wait=0.012), {}),
        ("input-bound", Steps(data_wait=0.02, contended=NO_CORE), {}),
        ("machine busy", Steps(forward=0.04, contended=OWN_HELPER), {}),
        ("machine busy", Steps(forward=0.04), {}),
        ("core contention", Steps(forward=0.04), {}),
        ("core contention", Steps(forward=0.04, contended=NO_CORE), {}),
        ("core contention", Steps(forward=0.04, contended=OTHER_PROGRAM), {}),
        ("core contention", Steps(contended=BUSY_HELPER), {}),
        ("core contention", Steps(data_wait=0.02, contended=POLLING_HELPER), {}),
        # What waits for a core is too little to be what was lost, or waits where it has nothing else to do.
        ("core contention", Steps(forward=0.2, contended=OWN_HELPER), {}),
        ("core contention", Steps(forward=0.04, sync=0.03, wire=0.03, contended=NO_CORE), {}),
        ("core contention", Steps(forward=0.04, contended=BUSY_HELPER, cores=12), {"alone": Steps(cores=12)}),
        ("slower compute", Steps(forward=0.04, contended=OWN_HELPER), {}),
        ("slower compute", Steps(forward=0.04, contended=NO_CORE), {}),
        ("slower compute", Steps(forward=0.031), {}),
        ("shared cores", SOUND, {"facts": make_workers(2, device="H200"), "one": GPUS_ON_ONE_CORE[:1]}),
        ("straggling host", SOUND, {"workers": 4, "facts": FOUR}),
        ("straggling host", SOUND, {"workers": 4, "turns": True}),
        ("straggling host", HARDLY_SLOW, {"workers": 4, "facts": FOUR}),
        ("load imbalance", SLOW_NODE2, {"workers": 4, "facts": FOUR}),
        ("wire above its floor", Steps(sync=0.004, wire=0.004), {}),
        ("wire above its floor", Steps(sync=0.0025, wire=0.0025), {}),
        ("negotiation", Steps(sync=0.005, wire=0.005), {}),
        (
            "negotiation",
            SOUND,
            {"alone": Steps(sync=0.005, wire=0.005), "framework": "pytorch_native"},
        ),
        ("too little work", Steps(sync=0.003, wire=0.003), {}),
        ("too little work", Steps(sync=0.03, wire=0.03), {}),
        ("synchronised batch norm", SOUND, {"options": SYNC_NORM}),
        ("synchronised batch norm", Steps(forward=0.04), {}),
    ],
)
def test_a_rule_is_silent_where_it_is_not(
    tmp_path: Path, rule: str, steps: Steps, more: dict[str, Any]
) -> None:
    assert rule not in findings(tmp_path, steps, **more)


# Other programs had 4.8 % of the cores; waits within sync; helpers on a kernel that does not tell waits.
OTHERS = {"communication": 0.0, "runqueue": 0.0, "other": 0.0069}
IN_SYNC = {"communication": 0.0, "runqueue": 0.02}
HELPERS = {"communication": 0.006}
CORES = "why_cores.toml"


@pytest.mark.parametrize(
    ("rule", "steps", "more", "cure"),
    [
        ("slower compute", Steps(forward=0.04, contended=OTHERS), {}, CORES),
        ("slower compute", Steps(forward=0.04, sync=0.02, wire=0.02, contended=IN_SYNC), {}, CORES),
        ("slower compute", Steps(forward=0.04, contended=HELPERS), {}, CORES),
        ("slower compute", Steps(forward=0.04), {"options": SYNC_NORM}, None),
        ("slower compute", Steps(forward=0.04), {"paces": PACES[:2]}, None),
        ("input-bound", Steps(data_wait=0.02, contended=OTHERS), {}, None),
        ("input-bound", Steps(data_wait=0.02), {"paces": PACES[:2]}, None),
        ("synchronised batch norm", Steps(forward=0.04, contended=OTHERS), {"options": SYNC_NORM}, None),
        (
            "negotiation",
            Steps(sync=0.005, wire=0.005),
            {"alone": Steps(sync=0.005, wire=0.005, contended={"communication": 0.0, "runqueue": 0.004})},
            None,
        ),
    ],
)
def test_no_cause_is_named_beside_a_rival_that_the_record_does_not_exclude(
    tmp_path: Path, rule: str, steps: Steps, more: dict[str, Any], cure: str | None
) -> None:
    """Each of these speaks of its cause without the rival, in the table above."""
    found = findings(tmp_path, steps, **more).get(rule)
    assert (found and found.try_next.split(" (")[-1].split(")")[0]) == cure


MPI = {
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution": True,
    "Intel(R) MPI Library 2021.16 for Linux* OS": True,
    "MPICH Version:      5.0.2": False,
}


@pytest.mark.parametrize(("library", "can_yield"), MPI.items())
def test_the_advice_knows_the_mpi_in_use(tmp_path: Path, library: str, can_yield: bool) -> None:
    about = {"versions": {"mpi": library}, "transport": {"controller": "MPI"}}
    found = findings(tmp_path, Steps(forward=0.04, contended=OWN_HELPER), about=about)["core contention"]
    assert ("yield_when_idle" in found.try_next) == can_yield
    assert 'controller = "gloo"' in found.try_next


def test_no_mpi_knob_is_advised_under_gloo(tmp_path: Path) -> None:
    about = {"versions": {"mpi": next(iter(MPI))}, "transport": {"controller": "Gloo"}}
    found = findings(tmp_path, Steps(forward=0.04, contended=OWN_HELPER), about=about)["core contention"]
    assert found.try_next == "more cores per worker (why_cores.toml)"


def test_how_often_a_polling_thread_yields_is_no_evidence(tmp_path: Path) -> None:
    found = findings(tmp_path, Steps(forward=0.04, contended=OWN_HELPER))["core contention"]
    assert "taken off" not in found.evidence
    assert "3000" not in found.evidence


def test_a_busy_machine_is_all_that_is_said(tmp_path: Path) -> None:
    loaded = Steps(forward=0.09, sync=(0.05, 0.02), wire=0.02, contended=OTHER_PROGRAM)
    assert set(findings(tmp_path, loaded)) == {"machine busy"}


def test_a_clock_that_does_not_differ_is_no_evidence(tmp_path: Path) -> None:
    assert "MHz" not in str(findings(tmp_path, Steps(forward=0.04))["slower compute"])


def test_no_finding_rests_on_a_median_whose_interval_holds_zero(tmp_path: Path) -> None:
    """The median launch is 5 % slower than on 1 worker, and one of three is 3 % faster."""
    assert findings(tmp_path, SOUND, paces=(0.97, 1.05, 1.06)) == {}


def test_every_rule_is_tested_both_ways() -> None:
    for test in (test_a_rule_speaks_where_its_evidence_is, test_a_rule_is_silent_where_it_is_not):
        (mark,) = test.pytestmark
        assert {case[0] for case in mark.args[1]} == set(RULES)


def test_a_sound_study_has_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path, SOUND) == {}


def test_runs_that_were_refused_for_a_shared_device_are_named(tmp_path: Path) -> None:
    one_gpu = [each.model_copy(update={"device_uuid": "GPU-7"}) for each in make_workers(2, device="H200")]
    for repeat in (1, 2):
        write_run(tmp_path, "horovod", 2, repeat, header={"workers": one_gpu})
    write_run(tmp_path, "horovod", 4, end=None)
    study = load_study(tmp_path)
    (found,) = diagnose(study, budget_table(study), network_table(study))
    assert (found.rule, found.workers) == ("shared device", 2)
    assert "workers 0 and 1 share device GPU-7" in found.evidence


def test_what_is_most_at_stake_comes_first(tmp_path: Path) -> None:
    found = findings(tmp_path, Steps(data_wait=0.1, sync=0.02, wire=0.02))
    assert next(iter(found)) == "input-bound"
    stakes = [each.at_stake for each in found.values()]
    assert stakes == sorted(stakes, reverse=True)


@pytest.mark.parametrize(
    ("rule", "part", "steps"),
    [
        ("wire above its floor", "wire", Steps(sync=0.02, wire=0.02)),
        ("slower compute", "compute", Steps(forward=0.04)),
        ("input-bound", "data_wait", Steps(data_wait=0.02)),
    ],
)
def test_a_cause_has_the_interval_that_the_budget_has_of_its_part(
    tmp_path: Path, rule: str, part: str, steps: Steps
) -> None:
    found = findings(tmp_path, steps, paces=PACES)[rule]
    (row,) = budget_table(load_study(tmp_path)).to_dict("records")
    assert found.at_stake_low < found.at_stake < found.at_stake_high
    shown = [found.at_stake, found.at_stake_low, found.at_stake_high]
    assert shown == [row[f"{part}{end}"] for end in ("", "_low", "_high")]


def test_two_parts_that_lose_together_have_an_interval_of_their_sum(tmp_path: Path) -> None:
    """Data wait and compute follow the pace of a launch: the ends of their intervals do not add up."""
    steps = Steps(data_wait=0.02, contended=BUSY_HELPER)
    found = findings(tmp_path, steps, paces=PACES)["core contention"]
    (row,) = budget_table(load_study(tmp_path)).to_dict("records")
    assert found.at_stake == pytest.approx(row["data_wait"] + row["compute"])
    assert found.at_stake_low < found.at_stake < found.at_stake_high
    assert found.at_stake_low == row["contended_low"]


def test_a_share_of_a_step_has_the_interval_of_the_share(tmp_path: Path) -> None:
    found = findings(tmp_path, Steps(data_wait=0.1), paces=PACES)["input-bound"]
    assert found.at_stake == pytest.approx(0.102 / 0.189)
    assert found.at_stake_low <= found.at_stake <= found.at_stake_high


@pytest.mark.parametrize(
    ("rule", "steps", "more"),
    [
        ("straggling host", SLOW_NODE2, {"workers": 4, "facts": FOUR}),
        ("wire above its floor", Steps(sync=0.02, wire=0.02), {"paces": PACES[:2]}),
    ],
)
def test_a_cause_has_no_interval_where_none_is_of_it_alone_or_launches_are_few(
    tmp_path: Path, rule: str, steps: Steps, more: dict[str, Any]
) -> None:
    found = findings(tmp_path, steps, **more)[rule]
    assert math.isnan(found.at_stake_low)
    assert math.isnan(found.at_stake_high)


def test_a_study_without_budgets_has_no_finding(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2)
    study = load_study(tmp_path)
    assert diagnose(study, budget_table(study), network_table(study)) == []


def test_the_studies_that_the_advice_names_are_there() -> None:
    rules = (PROJECT / "analysis" / "budget").glob("*_rules.py")
    source = "".join(path.read_text() for path in rules)
    named = {word.strip("().,;\"'") for word in source.split() if "why_" in word}
    assert named
    for name in named:
        assert (PROJECT / "slurm" / "studies" / name.removesuffix(".toml")).with_suffix(".toml").exists(), (
            name
        )
