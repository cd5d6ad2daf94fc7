"""The diagnosis: every rule has a run that it speaks about and one that it is silent about."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.budget.diagnosis import RULES, Diagnosis, diagnose
from analysis.budget.network import network_table
from analysis.budget.tables import budget_table
from analysis.loading.load import load_study
from tests.budgets import Steps, make_probe, write_budget_run
from tests.records import make_workers, write_run
from unet_scaling.config import PROJECT, Framework
from unet_scaling.record_lines import WorkerFacts

BUSY_HELPER = {"communication": 0.05, "switches": 20.0}
POLLING_HELPER = BUSY_HELPER | {"runqueue": 0.0}
NO_CORE = {"communication": 0.0, "runqueue": 0.02, "switches": 0.0}
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
) -> dict[str, Diagnosis]:
    """What is found in three repeats on 1 and on several workers.

    `turns`: in each repeat another worker is slow.
    """
    for repeat in (1, 2, 3):
        write_budget_run(folder, framework, 1, repeat, alone or Steps(), facts=one, options=options)
        several = _slow_one(repeat) if turns else steps
        write_budget_run(
            folder, framework, workers, repeat, several, probe=make_probe(), facts=facts, options=options
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
            Steps(forward=0.04, contended=NO_CORE),
            {"framework": "pytorch_native"},
            "waits for a core 18.3 %",
            "more cores per worker",
        ),
        ("slower compute", Steps(forward=0.04), {}, "compute takes 9.2 %", "fewer workers per host"),
        ("slower compute", Steps(forward=0.2, contended=NO_CORE), {}, "does not explain it", "fewer workers"),
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
        ("taking turns", Steps(), {"workers": 4, "turns": True}, "none is slower", "accumulate"),
        ("taking turns", HARDLY_SLOW, {"workers": 4, "facts": FOUR}, "but node2, by 3.4 %", "accumulate"),
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
        ("core contention", Steps(forward=0.04), {}),
        ("core contention", Steps(contended=BUSY_HELPER), {}),
        ("core contention", Steps(data_wait=0.02, contended=POLLING_HELPER), {}),
        # What waits for a core is too little to be what was lost, or waits where it has nothing else to do.
        ("core contention", Steps(forward=0.2, contended=NO_CORE), {}),
        ("core contention", Steps(forward=0.04, sync=0.03, wire=0.03, contended=NO_CORE), {}),
        ("core contention", Steps(forward=0.04, contended=BUSY_HELPER, cores=12), {"alone": Steps(cores=12)}),
        ("slower compute", Steps(forward=0.04, contended=NO_CORE), {}),
        ("slower compute", Steps(forward=0.031), {}),
        ("shared cores", SOUND, {"facts": make_workers(2, device="H200"), "one": GPUS_ON_ONE_CORE[:1]}),
        ("straggling host", SOUND, {"workers": 4, "facts": FOUR}),
        ("straggling host", SOUND, {"workers": 4, "turns": True}),
        ("straggling host", HARDLY_SLOW, {"workers": 4, "facts": FOUR}),
        ("taking turns", SLOW_NODE2, {"workers": 4, "facts": FOUR}),
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


def test_a_study_without_budgets_has_no_finding(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2)
    study = load_study(tmp_path)
    assert diagnose(study, budget_table(study), network_table(study)) == []


def test_the_studies_that_the_advice_names_are_there() -> None:
    source = (PROJECT / "analysis" / "budget" / "diagnosis.py").read_text()
    named = {word.strip("().,;\"'") for word in source.split() if "why_" in word}
    assert named
    for name in named:
        assert (PROJECT / "slurm" / "studies" / name.removesuffix(".toml")).with_suffix(".toml").exists(), (
            name
        )
