"""Disturbed launches and stalls: what a record says of other programs and of a worker that stood still."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.checks import fairness_checks
from analysis.contrast import compare
from analysis.iou import iou_table
from analysis.load import load_study
from analysis.points import summarise
from tests.budgets import Steps, write_budget_run
from tests.evidence import evidence
from tests.golden_studies import COMMITTED
from unet_scaling.study.disturbance import DISTURBED_SHARE, Disturbance, disturbance
from unet_scaling.study.measurements import LongestStep
from unet_scaling.study.record import Record, read_record

LOADED = {"communication": 0.0, "runqueue": 0.05, "other": 0.05}
LONG = {"training": {"epochs": 13}}
GAP_STUDIES = [name for name in COMMITTED if name.startswith("published_gap_")]
PUBLISHED = [path for name in GAP_STUDIES for path in sorted(evidence(name).glob("*/run.jsonl"))]
# What Horovod's own polling thread takes of a worker's only core, under the MPI that lets it poll.
POLLING = [path for path in PUBLISHED if "horovod-w02" in str(path) and "yield_when_idle=False" in str(path)]


def judged(folder: Path, steps: Steps, **more: object) -> Disturbance:
    run = write_budget_run(folder, "pytorch_native", 2, 1, steps, **more)  # type: ignore[arg-type]
    return disturbance(read_record(run / "run.jsonl"))


OWN = {"communication": 0.05, "runqueue": 0.05}  # of polling threads of the worker itself
ASLEEP = {"communication": 0.0, "runqueue": 0.0, "other": 0.01}
BESIDE = Steps(forward=0.08, contended=LOADED)
BEFORE_FORMAT_4 = {name: value for name, value in LOADED.items() if name != "other"}


@pytest.mark.parametrize(
    ("steps", "pace", "share", "is_disturbed"),
    [
        (Steps(), 1.0, 0.0, False),
        # 0.05 s of a step of 0.149 s, less a tick of each epoch.
        (BESIDE, 1.0, 0.05 / 0.149 - 0.01 / (6 * 0.149), True),
        (BESIDE, 0.1, None, False),  # too short to be judged
        (Steps(sync=0.02, wire=0.02, contended=ASLEEP), 1.0, 0.0, False),
        (Steps(forward=0.08, contended=OWN), 1.0, 0.0, False),
        (Steps(forward=0.08, contended=BEFORE_FORMAT_4), 1.0, 0.1, True),  # judged by how long it waited
    ],
)
def test_what_other_programs_took_from_a_worker_disturbs_its_launch(
    steps: Steps, pace: float, share: float | None, is_disturbed: bool, tmp_path: Path
) -> None:
    found = judged(tmp_path, steps, pace=pace)
    assert found.busy_share == (None if share is None else pytest.approx(share, abs=1e-3))
    assert bool(found.reason) == is_disturbed
    assert found.stalls == ()


# Of a step of 0.149 s on the same two cores: each worker computes 0.134 s, and waits for the other meanwhile.
CROWDED = {"communication": 0.0, "runqueue": 0.07, "other": 0.164}


def judged_on_shared_cores(folder: Path, contended: dict[str, float], budget: bool = True) -> Disturbance:
    steps = Steps(forward=0.08, contended=contended, cores=2)
    record = read_record(write_budget_run(folder, "pytorch_native", 2, 1, steps) / "run.jsonl")
    assert record.header is not None
    workers = [worker.model_copy(update={"cores": [0, 1]}) for worker in record.header.workers]
    header = record.header.model_copy(update={"workers": workers})
    unknown = {} if budget else {"budget": None, "no_budget": "no model"}
    epochs = tuple(epoch.model_copy(update=unknown) for epoch in record.epochs)
    return disturbance(replace(record, header=header, epochs=epochs))


@pytest.mark.parametrize("budget", [True, False])
@pytest.mark.parametrize(
    ("contended", "share"),
    [
        (CROWDED | {"other_workers": 0.164}, 0.0),
        # Of the step of 0.149 s another program has 0.03 s of two cores, less a tick of each epoch.
        (CROWDED | {"other_workers": 0.134}, 0.03 / (2 * 0.149) - 0.01 / (6 * 0.149)),
        ({"communication": 0.0, "runqueue": 0.0, "other": 0.16, "other_workers": 0.1}, 0.0),  # none waited
    ],
)
def test_workers_of_the_run_on_the_same_cores_are_no_other_programs(
    contended: dict[str, float], share: float, budget: bool, tmp_path: Path
) -> None:
    assert judged_on_shared_cores(tmp_path, contended, budget).busy_share == pytest.approx(share)


def test_older_records_of_workers_on_the_same_cores_are_judged_by_their_waiting(tmp_path: Path) -> None:
    assert (judged_on_shared_cores(tmp_path, CROWDED).busy_share or 0.0) > DISTURBED_SHARE


def test_of_real_launches_all_but_one_lie_below_the_bound_though_horovods_own_thread_contends() -> None:
    found = {path: disturbance(read_record(path)) for path in PUBLISHED}
    assert None not in [found[path].busy_share for path in POLLING]
    # Another program ran beside this one: of its worker's core the process had three quarters.
    assert [path.parent.parent.name for path in POLLING if found[path].reason] == ["published_gap_mpich"]
    shares = sorted(each.busy_share or 0.0 for each in found.values())
    assert sum(share >= DISTURBED_SHARE for share in shares) == 1
    assert shares[len(shares) * 9 // 10] < DISTURBED_SHARE / 10


STILL = Steps(forward=(0.03, 10.03), sync=(10.0, 0.0))  # worker 1 for 60 s; worker 0 waits for it in sync


@pytest.mark.parametrize(
    ("epochs", "stalled", "reason"),
    [
        (13, {7: STILL}, "worker 1 stalled in epoch 7: 60.6 s, usually 0.594 s"),
        (3, {2: STILL}, "worker 1 stalled in epoch 2: 60.6 s, usually 0.594 s"),
        (13, {7: Steps(sync=10.0, wire=10.0)}, "the workers stalled in epoch 7: 60.6 s, usually 0.594 s"),
        (13, {7: Steps(forward=0.12), 9: Steps(forward=0.1)}, ""),
    ],
)
def test_a_stall_is_named_with_epoch_time_and_worker(
    epochs: int, stalled: dict[int, Steps], reason: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, Steps(), options={"training": {"epochs": epochs}}, stalled=stalled)
    assert (found.reason, bool(found.stalls)) == (reason, bool(reason))


def with_longest_step(record: Record, epoch: int, longest: LongestStep, beyond: float) -> Record:
    """The record with one epoch longer by so many seconds, which that step took."""
    changed = record.epochs[epoch]
    assert changed.budget is not None
    budget = changed.budget.model_copy(update={"longest_step": longest})
    seconds = [seconds + beyond for seconds in changed.worker_seconds]
    update = {"budget": budget, "worker_seconds": seconds, "seconds": max(seconds)}
    epochs = list(record.epochs)
    epochs[epoch] = changed.model_copy(update=update)
    return replace(record, epochs=tuple(epochs))


@pytest.mark.parametrize(
    ("seconds", "work", "who"),
    [(1.1, 1.09, "worker 1 stalled"), (1.1, 0.1, "the workers stalled"), (0.4, 0.4, "")],
)
def test_a_single_stalled_step_disturbs_a_launch_whose_epochs_look_alike(
    seconds: float, work: float, who: str, tmp_path: Path
) -> None:
    """Where it matters for the speed of the whole launch."""
    run = write_budget_run(tmp_path, "pytorch_native", 2, options=LONG)
    longest = LongestStep(step=3, seconds=seconds, worker=1, work_seconds=work)
    found = disturbance(with_longest_step(read_record(run / "run.jsonl"), 7, longest, seconds - 0.1))
    assert found.reason == (f"{who} in step 3 of epoch 7: {seconds} s, usually 0.099 s" if who else "")
    assert found.stalled_epochs == frozenset()


@pytest.mark.parametrize(("busy", "pairs", "mark"), [({2, 4}, 3, "yes"), ({1, 2, 3, 4, 5}, 5, "no")])
def test_disturbed_launches_are_left_out_of_speed_where_enough_others_are_and_kept_in_iou(
    busy: set[int], pairs: int, mark: str, tmp_path: Path
) -> None:
    for repeat in range(1, 6):
        for workers in (1, 2):
            write_budget_run(tmp_path, "horovod", workers, repeat)
            steps = BESIDE if workers == 2 and repeat in busy else Steps()
            write_budget_run(tmp_path, "pytorch_native", workers, repeat, steps)
    study = load_study(tmp_path)
    points = summarise(study).set_index(["framework", "workers"])
    assert points["repeats"]["pytorch_native", 2] == pairs
    speed = points["images_per_second"]
    assert (speed["pytorch_native", 2] == pytest.approx(speed["horovod", 2])) == (mark == "yes")
    assert set(iou_table(study)["seeds"]) == {5}
    assert compare(study).set_index("workers")["pairs"].to_dict() == {1: 5, 2: pairs}
    (check,) = [check for check in fairness_checks(study) if check.check == "machine quiet"]
    assert (check.mark, check.withholds) == (mark, mark == "no")
    assert (study.runs["disturbed"] != "").sum() == len(busy)
