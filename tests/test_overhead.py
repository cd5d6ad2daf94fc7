"""The overhead budget: a loss lands in its part, parts sum to the whole, a diagnosis has its evidence."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.causes.budget import PARTS
from tests.records import (
    GRADIENT_BYTES,
    Steps,
    make_pair,
    make_probe,
    make_workers,
    write_budget_run,
    write_run,
)
from tests.reports import Row, Told, report_of
from unet_scaling.format.record_lines import Probe, WorkerFacts
from unet_scaling.measure.ping_pong import HostPair, PingPong, write_ping_pong
from unet_scaling.study.config import PROJECT, WRAPPERS, Framework
from unet_scaling.study.study_file import PING_PONG_NAME

NATIVE: Framework = "pytorch_native"
STEP = 0.099
# Steps of 2 workers, and the seconds that each part of them takes beyond those of 1 worker.
LOSSES: Sequence[tuple[Steps, Mapping[str, float]]] = [
    (Steps(data_wait=0.020), {"data_wait": 0.010}),
    (Steps(host_to_device=0.012), {"data_wait": 0.010}),
    (Steps(backward=0.060), {"compute": 0.010}),
    (Steps(sync=0.010, wire=0.010), {"wire": 0.010}),
    (Steps(forward=(0.030, 0.040), sync=(0.010, 0.0)), {"compute": 0.005, "imbalance": 0.005}),
    (Steps(optimizer=0.016), {"optimizer": 0.010}),
    (Steps(rest=0.011), {"rest": 0.010}),
    (Steps(rest=(0.001, 0.011)), {"rest": 0.005, "imbalance": 0.005}),
]


def of_its_own(number: int) -> dict[str, Any]:
    """Options and label of runs that are compared with no others of a study."""
    return {"options": {"training": {"learning_rate": number / 1000}}, "label": f"-{number}"}


def write_pair(folder: Path, steps: Steps, repeats: int = 3, **more: Any) -> Path:
    """Native DDP on 1 worker as always, and on 2 with these steps; each repeat at its own pace."""
    for repeat in range(1, repeats + 1):
        pace = 1 + 0.1 * repeat
        write_budget_run(folder, NATIVE, 1, repeat, Steps(), pace=pace, **more)
        write_budget_run(folder, NATIVE, 2, repeat, steps, pace=pace, **more)
    return folder


def test_a_loss_lands_in_its_own_part_and_what_a_repeat_has_in_common_cancels(tmp_path: Path) -> None:
    for number, (steps, _) in enumerate(LOSSES, start=1):
        write_pair(tmp_path, steps, **of_its_own(number))
    rows = report_of(tmp_path).rows("budget")
    for row, (_, expected) in zip(rows, LOSSES, strict=True):
        step = STEP + 0.010
        for part in PARTS:
            assert row[part] == pytest.approx(expected.get(part, 0.0) / step, abs=2e-8), part
            assert row[f"{part}_high"] - row[f"{part}_low"] == pytest.approx(0, abs=2e-8)
        assert row["deviation"] == pytest.approx(0.010 / step)


def test_no_difference_of_shares_has_an_interval_beyond_what_is_possible(tmp_path: Path) -> None:
    for repeat, pace in enumerate((1.0, 30.0, 1.0), start=1):
        write_budget_run(tmp_path, NATIVE, 1, repeat, pace=pace)
        write_budget_run(tmp_path, NATIVE, 2, repeat)
    row = report_of(tmp_path).row("budget")
    ends = [row[f"{part}{end}"] for part in PARTS for end in ("_low", "_high")]
    assert np.isnan(row["compute_low"])
    assert all(-1 <= end <= 1 for end in ends if not np.isnan(end))


def no_baseline(folder: Path) -> Told:
    write_budget_run(folder, "horovod", 2)
    return report_of(folder)


def one_without(folder: Path) -> Told:
    write_pair(folder, Steps())
    write_budget_run(folder, NATIVE, 2, 4, budget=None)
    return report_of(folder)


def unequal(folder: Path) -> Told:
    study = report_of(write_pair(folder, Steps())).study
    return Told(replace(study, budgets=study.budgets.assign(images=study.budgets["images"] - 1)))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (no_baseline, "no run on 1 worker"),
        (one_without, "where sync begins is not known (1 of 4 runs)"),
        (unequal, "was not equal"),
        (lambda folder: report_of(write_run(folder, workers=2).parent), "recorded no budget"),
    ],
    ids=["no baseline", "one run without", "unequal work", "older records"],
)
def test_without_a_budget_the_reason_is_said_and_no_row_is_made(
    tmp_path: Path, write: Any, said: str
) -> None:
    found = write(tmp_path)
    assert found.rows("budget") == []
    (note,) = found.report.budget_notes
    assert said in note


def test_too_much_rest_is_a_warning(tmp_path: Path) -> None:
    for rest, notes in ((0.0015, 0), (0.005, 1)):
        assert len(report_of(write_pair(tmp_path / f"{rest}", Steps(rest=rest))).report.budget_notes) == notes


@pytest.mark.parametrize("ends", [(1, 1, 1), (1, 12, 12)], ids=["every probe", "one probe"])
def test_no_floor_is_told_from_a_probe_that_ended_far_below_the_gradients(
    tmp_path: Path, ends: tuple[int, ...]
) -> None:
    """A stall ended it at 4 bytes: 0.3 s there are no bandwidth."""
    for repeat, end in enumerate(ends, start=1):
        whole = make_probe()
        median = [0.3] if end == 1 else whole.median_seconds
        cut = {name: getattr(whole, name)[:end] for name in ("bytes", "repeats", "minimum_seconds")}
        probe = Probe.model_validate(cut | {"median_seconds": median})
        write_budget_run(tmp_path, "horovod", 2, repeat, Steps(sync=0.02, wire=0.02), probe=probe)
    row = report_of(tmp_path).row("network")
    assert row["wire_seconds"] == pytest.approx(0.02)
    expected = 1e-4 + GRADIENT_BYTES / 1e9 if 12 in ends else np.nan
    assert row["floor_seconds"] == pytest.approx(expected, rel=0.02, nan_ok=True)


def pair(first: str, second: str, bandwidth: float = 1e8) -> HostPair:
    return make_pair((first, second), 1e-4, 1e-4 + 1e6 / bandwidth, size=1_000_000)


def write_pairs(folder: Path, *pairs: HostPair) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    hosts = sorted({host for each in pairs for host in each.hosts})
    write_ping_pong(folder / PING_PONG_NAME, PingPong(mpi="MPICH", hosts=hosts, pairs=list(pairs)))
    return folder / PING_PONG_NAME


def test_ping_pongs_between_hosts_are_medians_and_torn_files_are_named(tmp_path: Path) -> None:
    write_budget_run(tmp_path, "horovod", 3, steps=Steps(sync=0.03, wire=0.03), probe=make_probe())
    write_pairs(tmp_path / "allocation-1", *(pair(*hosts) for hosts in ("ab", "bc", "ac", "ad", "aa")))
    write_pairs(tmp_path / "allocation-2", pair("b", "a", bandwidth=3e8))
    torn = write_pairs(tmp_path / "allocation-3", pair("a", "b"))
    torn.write_text(torn.read_text()[:-20])
    found = report_of(tmp_path)
    assert {row["measured_for"] for row in found.rows("ping_pong")} == {"allocation-1", "allocation-2"}
    assert "allocation-3: ping_pong.json cannot be read" in found.notes


BUSY_HELPER = {"communication": 0.05}
POLLING_HELPER = BUSY_HELPER | {"runqueue": 0.0}
NO_CORE = {"communication": 0.0, "runqueue": 0.02}
OWN_HELPER = {"communication": 0.02, "runqueue": 0.02}
OTHER_PROGRAM = {"communication": 0.0, "runqueue": 0.02, "other": 0.02}
# Other programs had 4.8 % of the cores; helpers on a kernel that does not tell waits.
OTHERS = {"communication": 0.0, "runqueue": 0.0, "other": 0.0069}
HELPERS = {"communication": 0.006}
TWO_HOSTS = [*make_workers(2, host="node1"), *make_workers(2, host="node2")]
FOUR = [each.model_copy(update={"worker": number}) for number, each in enumerate(TWO_HOSTS)]
ON_FOUR: Mapping[str, Any] = {"workers": 4, "facts": FOUR}
SLOW_NODE2 = Steps(forward=(0.03, 0.03, 0.05, 0.05), sync=(0.02, 0.02, 0.0, 0.0))
# Node2 works longer, but by far less than all wait for each other.
HARDLY_SLOW = Steps(
    data_wait=0, forward=(0.002, 0.002, 0.003, 0.003), backward=0.003, optimizer=0,
    sync=(0.021, 0.021, 0.02, 0.02),
)  # fmt: skip
TINY = Steps(data_wait=0, forward=0.002, backward=0.003, optimizer=0)
WIRED, SYNCED = Steps(sync=0.02, wire=0.02), Steps(sync=0.005, wire=0.005)
SYNC_NORM = {"model": {"batch_norm": "sync"}, "training": {"channels_last": False}}
HOST_PACED = Steps(data_wait=0.018, host_paced=0.0158)
PACES = (1.0, 1.04, 1.02)


@dataclass(frozen=True)
class Case:
    """Three repeats on 1 and on several workers; what one rule says of them, None where it is silent.

    `turns`: in each repeat another worker is slow; `paces` are of the repeats on several workers;
    `native` are the steps of native DDP on as many.
    """

    rule: str
    says: Sequence[str] | None
    steps: Steps
    alone: Steps = field(default_factory=Steps)
    framework: Framework = "horovod"
    workers: int = 2
    facts: Sequence[WorkerFacts] | None = None
    one: Sequence[WorkerFacts] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    turns: bool = False
    about: Mapping[str, object] | None = None
    paces: Sequence[float] = (1.0, 1.0, 1.0)
    native: Steps | None = None

    @property
    def runs(self) -> str:
        """What is written: several rules are asked about equal runs."""
        return repr(replace(self, rule="", says=None))

    def write(self, folder: Path, number: int) -> None:
        own = of_its_own(number)
        options = {name: {**self.options.get(name, {})} for name in {*self.options, "training"}}
        options["training"] |= own["options"]["training"]
        shared = {"options": options, "label": own["label"], "about": self.about}
        for repeat, pace in enumerate(self.paces, start=1):
            write_budget_run(folder, self.framework, 1, repeat, self.alone, facts=self.one, **shared)
            steps = slow_one(repeat) if self.turns else self.steps
            more = {"pace": pace, "probe": make_probe(), "facts": self.facts, **shared}
            write_budget_run(folder, self.framework, self.workers, repeat, steps, **more)
            if self.native:
                write_budget_run(folder, NATIVE, self.workers, repeat, self.native, **more)


def slow_one(repeat: int) -> Steps:
    slow = [worker == repeat for worker in range(4)]
    return Steps(
        forward=[0.05 if each else 0.03 for each in slow], sync=[0 if each else 0.02 for each in slow]
    )


def silent(rule: str, steps: Steps, **more: Any) -> Case:
    return Case(rule, None, steps, **more)


INPUT, CONTENTION, SLOWER, BUSY = "input-bound", "core contention", "slower compute", "machine busy"
STRAGGLER, IMBALANCE, WIRE = "straggling host", "load imbalance", "wire above its floor"
NEGOTIATION, LITTLE, PACED = "negotiation", "too little work", "host-paced"
CORES, HOSTS = "why_cores.toml", "fewer workers per host"
# All in one study, as sets of options: none is compared with another.
CASES = (
    Case(INPUT, ("data wait is 54", "profile"), Steps(data_wait=0.1)),
    Case(INPUT, ("decode", "why_decoding.toml"), Steps(data_wait=0.1),
    options={"data": {"loading": "decode"}}),
    Case(INPUT, ("9.2 % of it more", "profile"), Steps(data_wait=0.02)),
    silent(INPUT, Steps(data_wait=0.012)),
    silent(INPUT, Steps(data_wait=0.1), alone=Steps(data_wait=0.1)),
    silent(INPUT, Steps(data_wait=0.02, contended=NO_CORE)),
    Case(CONTENTION, ("45.9 % of the cores", "why_yield.toml"), Steps(data_wait=0.02, contended=BUSY_HELPER)),
    Case(CONTENTION, ("a core 18.3 %", "more cores per worker"), Steps(forward=0.04, contended=OWN_HELPER),
    framework=NATIVE),
    silent(CONTENTION, Steps(forward=0.04, contended=NO_CORE)),
    silent(CONTENTION, Steps(forward=0.04, contended=OTHER_PROGRAM)),
    silent(CONTENTION, Steps(contended=BUSY_HELPER)),
    silent(CONTENTION, Steps(data_wait=0.02, contended=POLLING_HELPER)),
    # What waits for a core is too little to be what was lost, or waits where it has nothing else to do.
    silent(CONTENTION, Steps(forward=0.2, contended=OWN_HELPER)),
    silent(CONTENTION, Steps(forward=0.04, sync=0.03, wire=0.03, contended=NO_CORE)),
    Case(SLOWER, ("compute takes 9.2 %", HOSTS), Steps(forward=0.04)),
    Case(SLOWER, ("at most 7.4 %", HOSTS), Steps(forward=0.2, contended=OWN_HELPER)),
    silent(SLOWER, Steps(forward=0.04, contended=OWN_HELPER)),
    silent(SLOWER, Steps(forward=0.04, contended=NO_CORE)),
    silent(SLOWER, Steps(forward=0.031)),
    Case(BUSY, ("3 of 6 launches", "without other work"), Steps(forward=0.04, contended=NO_CORE)),
    Case(BUSY, ("6 of 6 launches",), Steps(forward=0.04, contended=OTHER_PROGRAM),
    alone=Steps(contended=OTHER_PROGRAM)),
    silent(BUSY, Steps(forward=0.04, contended=OWN_HELPER)),
    Case(STRAGGLER, ("node2 works 20.2 % longer", "3 of 3 runs", "--exclude=node2"), SLOW_NODE2, **ON_FOUR),
    Case(STRAGGLER, ("worker 1 works 20.2 % longer", "the clock"), Steps(forward=(0.03, 0.05), sync=(0.02,
    0.0))),
    silent(STRAGGLER, Steps(), **ON_FOUR),
    silent(STRAGGLER, HARDLY_SLOW, **ON_FOUR),
    Case(IMBALANCE, ("but node2, by 3.4 %",), HARDLY_SLOW, **ON_FOUR),
    silent(IMBALANCE, SLOW_NODE2, **ON_FOUR),
    Case(WIRE, ("9.8 times the 2.05 ms", "why_fusion.toml"), WIRED),
    Case(WIRE, ("20 ms a step", "why_bucket.toml"), WIRED, framework=NATIVE),
    *(Case(WIRE, (f"{wrapper}.bucket_cap_mb",), WIRED, framework=wrapper) for wrapper in WRAPPERS),
    silent(WIRE, Steps(sync=0.0025, wire=0.0025)),
    Case(NEGOTIATION, ("syncs 5 ms a step, 4.8 %", "why_cycle_time.toml"), SYNCED, alone=SYNCED),
    silent(NEGOTIATION, SYNCED),
    silent(NEGOTIATION, Steps(), alone=SYNCED, framework=NATIVE),
    Case(LITTLE, ("near the 2.05 ms", "batch_per_worker"), replace(TINY, sync=0.003, wire=0.003),
    alone=TINY),
    silent(LITTLE, Steps(sync=0.03, wire=0.03)),
    Case(PACED, ("are 14.8 % of", "9.7 % more than with native DDP", "batch_per_worker", "!storage"),
    HOST_PACED, native=Steps(host_paced=0.005)),
    silent(INPUT, HOST_PACED, native=Steps(host_paced=0.005)),
    # Both wait as long: no cause of a difference, and what grows is the wait for data.
    silent(PACED, HOST_PACED, native=HOST_PACED),
    Case(INPUT, ("profile",), HOST_PACED, native=HOST_PACED),
    silent(PACED, HOST_PACED),
    # No cause is named beside a rival that the record does not exclude: each speaks without it, above.
    Case(SLOWER, (CORES, "perhaps"), Steps(forward=0.04, contended=OTHERS)),
    Case(SLOWER, (CORES, "perhaps"), Steps(forward=0.04, sync=0.02, wire=0.02, contended=NO_CORE)),
    Case(SLOWER, (CORES, "perhaps"), Steps(forward=0.04, contended=HELPERS)),
    silent(SLOWER, Steps(forward=0.04), options=SYNC_NORM),
    silent(SLOWER, Steps(forward=0.04), paces=PACES[:2]),
    silent(INPUT, Steps(data_wait=0.02, contended=OTHERS)),
    silent(INPUT, Steps(data_wait=0.02), paces=PACES[:2]),
    silent(NEGOTIATION, SYNCED, alone=replace(SYNCED, contended={"communication": 0.0, "runqueue": 0.004})),
    # The median launch is 5 % slower than on 1 worker, and one of three is 3 % faster.
    *(silent(rule, Steps(), paces=(0.97, 1.05, 1.06)) for rule in (SLOWER, INPUT, CONTENTION)),
)  # fmt: skip
GLOO = {"transport": {"controller": "Gloo"}}


def mpi(name: str) -> dict[str, Any]:
    return {"versions": {"mpi": name}, "transport": {"controller": "MPI"}}


# Those whose machine or software may not stand in a study with that of the others.
APART = (
    silent(CONTENTION, Steps(forward=0.04, contended=BUSY_HELPER, cores=12), alone=Steps(cores=12)),
    Case(IMBALANCE, ("none is slower", "accumulate", "!all wait for"), Steps(), turns=True, workers=4),
    silent(STRAGGLER, Steps(), turns=True, workers=4),
    Case(CONTENTION, ("yield_when_idle",), Steps(forward=0.04, contended=OWN_HELPER),
    about=mpi("Open MPI v5.0.11")),
    Case(CONTENTION, ('controller = "gloo"', "!yield_when_idle"), Steps(forward=0.04, contended=OWN_HELPER),
    about=mpi("MPICH 5")),
    Case(CONTENTION, (CORES, "!controller"), Steps(forward=0.04, contended=OWN_HELPER), about=GLOO),
)  # fmt: skip


def assert_says(case: Case, rows: Sequence[Row]) -> None:
    found = [
        f"{row['finding']}; {row['evidence']}; {row['try_next']}" for row in rows if row["rule"] == case.rule
    ]
    assert bool(found) == (case.says is not None), rows
    for word in case.says or ():
        assert (word.removeprefix("!") in found[0]) != word.startswith("!"), found


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Sequence[Row]]:
    """What is found in each of CASES."""
    folder = tmp_path_factory.mktemp("diagnosed")
    written: dict[str, str] = {}
    for number, case in enumerate(CASES, start=1):
        if case.runs not in written:
            case.write(folder, number)
            written[case.runs] = f"learning_rate={number / 1000:g}"
    found = report_of(folder)
    assert found.left_out == {}
    rows = found.rows("diagnoses")
    return [[row for row in rows if written[case.runs] in row["options"].split(", ")] for case in CASES]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_rule_speaks_where_its_evidence_is_and_is_silent_where_not(
    diagnosed: Sequence[Sequence[Row]], number: int
) -> None:
    assert_says(CASES[number], diagnosed[number])


@pytest.mark.parametrize("number", range(len(APART)))
def test_a_rule_knows_cores_devices_and_the_mpi_in_use(tmp_path: Path, number: int) -> None:
    APART[number].write(tmp_path, 1)
    assert_says(APART[number], report_of(tmp_path).rows("diagnoses"))


def test_a_busy_machine_is_all_that_is_said(tmp_path: Path) -> None:
    loaded = Steps(forward=0.09, sync=(0.05, 0.02), wire=0.02, contended=OTHER_PROGRAM)
    Case(BUSY, (), loaded).write(tmp_path, 1)
    assert {row["rule"] for row in report_of(tmp_path).rows("diagnoses")} == {BUSY}


def test_runs_that_were_refused_for_a_shared_device_are_named(tmp_path: Path) -> None:
    one_gpu = [each.model_copy(update={"device_uuid": "GPU-7"}) for each in make_workers(2, device="H200")]
    write_run(tmp_path, "horovod", 2, header={"workers": one_gpu})
    write_run(tmp_path, "horovod", 1, header={"workers": make_workers(1, device="H200")})
    told = report_of(tmp_path)
    row = told.row("diagnoses")
    assert not any(row["finding"] in step for step in told.summary["answers"][0]["next_steps"])
    assert (row["rule"], row["workers"]) == ("shared device", 2)
    assert "workers 0 and 1 share device GPU-7" in row["evidence"]


@pytest.mark.parametrize(
    "case", [next(case for case in CASES if case.rule == rule) for rule in (NEGOTIATION, INPUT)]
)
def test_what_is_not_known_to_be_lost_is_no_next_step(case: Case, tmp_path: Path) -> None:
    """Horovod's own cycle is there on 1 worker too; without runs on 1 worker nothing is known to be lost."""
    case.write(tmp_path, 1)
    for folder in tmp_path.glob("*w01*") if case.rule == INPUT else ():
        shutil.rmtree(folder)
    told = report_of(tmp_path)
    finding = told.row("diagnoses")["finding"]
    assert not any(finding in step for step in told.summary["answers"][0]["next_steps"])


def test_the_studies_that_the_advice_names_are_there() -> None:
    source = (PROJECT / "analysis" / "templates" / "diagnosis.jinja").read_text()
    named = set(re.findall(r"why_\w+\.toml", source))
    assert len(named) > 5
    assert [name for name in named if not (PROJECT / "slurm" / "studies" / name).exists()] == []
