"""No attack of the catalogue leaves a report or a comparison that claims as an honest study's does.

Judged by files and exit codes, not by sentences. NOT_YET names what still gets through, and is exact: who
cures an attack takes it out.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analysis.assembly.assemble import make_report
from analysis.read.load import load_study
from analysis.report.exports import summary_json
from tests.attacks import MORE, ON_REPORT, Attack, Do, every, write_base
from tests.attacks_on_pairs import ON_PAIRS, in_b, slower_half_is_warm_up, write_pair
from tests.honest import Honest, Lines, write_honest
from tests.reports import Compared
from tests.tampering import (
    Runs,
    as_own_task,
    change_study,
    header,
    in_epochs,
    in_turn,
    processors,
    rows_of,
    scored,
    slower,
    started,
    workers,
    write_lines,
)
from unet_scaling.base.errors import UserError
from unet_scaling.format.record_lines import Resumed
from unet_scaling.study.config import Framework

# What still gets through, and why.
NOT_YET = {
    # The answer is the right one: do not scale out, with what is lost.
    "a margin as wide as the score",
    # A few per cent of all seconds leave no trace in a record.
    "A slowed on more workers",
    # Of other code: a reason to launch again.
    "B has slower launches set aside",
}
# One for each way to claim too much; `make verify` takes all.
QUICK = {
    "all background", "losses that rise", "a margin as wide as the score",
    "a wrapper trains alone", "repeats 1, 3, 5, 7, 12 of 12",
    "the best of three launches",
    "slow repeats of one arm removed", "more workers emulated",
    "Horovod without NCCL on GPUs",
    "strangers on one arm's GPUs", "always the same arm first",
    "one arm throttled", "launches of a split second", "masks of another size in one arm",
    "own task: a score called error_rate",
    "B has the best 5 of 12 repeats", "B at a higher clock", "B with other losses",
    "B calls its slower half warm-up",
    "neither learned anything", "B has slower launches set aside",
}  # fmt: skip


def quick_or_all(attacks: Sequence[Attack]) -> list[Any]:
    """Parameters of a test; those that are not quick are for `make verify`."""
    marks = [() if attack.name in QUICK else pytest.mark.verify for attack in attacks]
    return [
        pytest.param(attack, id=attack.name, marks=mark) for attack, mark in zip(attacks, marks, strict=True)
    ]


FEWEST_FOR_TRUST = 5
CLAIMS = ("native DDP faster", "Horovod faster")
STUDIES_DIFFER = ("A faster", "B faster", "A higher", "B higher")


def claims_plainly(report: Path) -> bool:
    """Return whether the first screen of a report recommends or claims without any qualification.

    That is: more workers, with good lights for speed, score and trust, on a count that both arms were
    measured on; to stay on 1 worker with a good light for trust, where the others say why; or a faster
    framework with good lights for score and trust. And no check that is not met, and no run left out.
    Where there are fewer repeats than recommended the lights say so of every study, an honest one too:
    there caution is as good. A report that was refused claims nothing.
    """
    path = report / "summary.json"
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    answer, *_ = found["answers"]
    speed, score, _, trust = (tile["light"] for tile in answer["tiles"])
    outcomes = {row["outcome"] for row in found["comparisons"]}
    unmet = any(check["mark"] == "no" or check["withholds"] for check in found["checks"])
    if unmet or found["doubts"] or found["left_out"] or "withheld" in outcomes or answer["kind"] == "unfair":
        return False
    few = min(row["repeats"] for row in found["points"]) < FEWEST_FOR_TRUST
    plain = {"good", "caution"} if few else {"good"}
    if answer["kind"] == "stay":
        return trust in plain
    if answer["kind"] == "undecided":
        return {score, trust} <= plain and not outcomes.isdisjoint(CLAIMS)
    chosen = next((each["workers"] for each in found["recommendations"] if each["workers"]), None)
    compared = {row["workers"] for row in found["comparisons"]}
    return {speed, score, trust} <= plain and chosen in compared


def says_what_is_not_known(report: Path) -> bool:
    """Return whether the first screen says that checks are not known: an honest study says it, too."""
    found = json.loads((report / "summary.json").read_text())
    unknown = any(check["mark"] == "not known" for check in found["checks"])
    return unknown and "not known" in found["answers"][0]["tiles"][-1]["value"]


def names_one_for_nothing(report: Path) -> bool:
    """Return whether one framework alone is recommended though the report shows no difference there."""
    found = json.loads((report / "summary.json").read_text())
    for advice in found["recommendations"]:
        same = [row["outcome"] for row in found["comparisons"] if row["workers"] == advice["workers"]]
        if advice["framework"] and same and not any("faster" in outcome for outcome in same):
            return True
    return False


def compared_plainly(comparison: Path, changed: Sequence[str] = ("commit",)) -> bool:
    """Return whether a comparison claims a difference, and shows no other cause than what was changed.

    A comparison that was refused claims nothing.
    """
    if not (comparison / "compare.csv").exists():
        return False
    claimed = False
    for row in rows_of(comparison / "compare.csv"):
        outcomes = {value for column, value in row.items() if column.endswith("outcome")}
        qualified = row["doubts"] or "nothing learned" in outcomes
        claimed |= not outcomes.isdisjoint(STUDIES_DIFFER) and not qualified
    facts = rows_of(comparison / "compare_facts.csv")
    return claimed and all(fact["differs"] == "False" or fact["fact"] in changed for fact in facts)


def report_on(folder: Path, output: Path) -> Path:
    """Write the summary.json of a report on the records in a folder, and nothing else of it.

    Raises UserError where they are refused as a whole; without a usable run nothing is written.
    """
    study = load_study(folder)
    output.mkdir(parents=True)
    if len(study.subject.runs):
        (output / "summary.json").write_text(summary_json(make_report(study)))
    return output


def compare_pair(folder: Path, output: Path) -> Path:
    """Compare the studies a and b in a folder. Raises UserError where that is refused."""
    files = Compared(folder / "a", folder / "b").files
    output.mkdir(parents=True)
    for name in ("compare.csv", "compare_facts.csv"):
        (output / name).write_bytes(files[name])
    return output


Base = Callable[[str], Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """Return the folder of an honest study, which tests copy."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("base") / "study"
            (write_pair if name == "a pair" else lambda folder: write_base(name, folder))(made[name])
        return made[name]

    return folder_of


@pytest.mark.parametrize("attack", quick_or_all(ON_REPORT))
def test_an_attack_leaves_no_plain_claim(attack: Attack, base: Base, tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(base(attack.base), study)
    attack.do(study)
    with suppress(UserError):
        report_on(study, tmp_path / "report")
    report = tmp_path / "report"
    assert (claims_plainly(report) and not says_what_is_not_known(report)) is (attack.name in NOT_YET)


@pytest.mark.parametrize("attack", quick_or_all(ON_PAIRS))
def test_an_attack_leaves_no_plain_comparison(attack: Attack, base: Base, tmp_path: Path) -> None:
    studies = tmp_path / "studies"
    shutil.copytree(base("a pair"), studies)
    attack.do(studies)
    with suppress(UserError):
        compare_pair(studies, tmp_path / "compare")
    assert compared_plainly(tmp_path / "compare") is (attack.name in NOT_YET)


def test_epochs_of_other_work_withhold_a_claim_of_compare_at_their_point(base: Base, tmp_path: Path) -> None:
    studies = shutil.copytree(base("a pair"), tmp_path / "studies")
    in_b(slower_half_is_warm_up, workers=[4])(studies)
    rows = rows_of(compare_pair(studies, tmp_path / "compare") / "compare.csv")
    doubts = {row["workers"]: (row["outcome"], "warmup in epoch" in row["doubts"]) for row in rows}
    assert doubts == {"1": ("B faster", False), "4": ("withheld", True)}


def resumed(folder: Path) -> None:
    """One run was interrupted and went on, on the same machine and code."""

    def change(lines: Lines) -> Lines:
        new = {"attempt": 2, "earlier": [lines.header], "resumed": Resumed(epoch=4, step=0)}
        lines = replace(lines, header=lines.header.model_copy(update=new))
        # The first epoch of every attempt is warm-up.
        return in_epochs(warmup=lambda epoch: epoch.epoch in (0, 4))(lines)

    Runs(folder).of("horovod", workers=[4], repeats=[2]).change(change)


def began_again(folder: Path) -> None:
    """One run failed in its second epoch and was launched again."""
    ((run, lines),) = Runs(folder).of("horovod", workers=[4], repeats=[2]).records()
    broken = replace(lines, epochs=lines.epochs[:2], results=[], end=None)
    write_lines(run, started(lambda _, at: at - timedelta(seconds=5))(broken))
    (run / "run.jsonl").rename(run / "run.attempt1.jsonl")
    write_lines(run, header(attempt=2)(lines))


def disturbed_and_repeated(folder: Path) -> None:
    """Other programs took a fifth of one launch, which was therefore launched again."""
    ((run, lines),) = Runs(folder).of("horovod", workers=[2], repeats=[3]).records()
    lost = processors(other_seconds=lambda facts: 0.2 * facts.process_seconds)
    write_lines(run, in_turn(lost, started(lambda _, at: at - timedelta(hours=12)))(lines))
    (run / "run.jsonl").rename(run / "run.disturbed1.jsonl")
    write_lines(run, lines)


def of_older_code(folder: Path) -> None:
    every(in_turn(header(gradient_bytes=None), workers(environment=None, allocator=None)))(folder)


SLURM = {"SLURM_CLUSTER_NAME": "main", "SLURM_JOB_PARTITION": "cpu", "SLURM_CPUS_PER_TASK": "1"}
IN_JOBS = header(job=lambda found: SLURM | {"SLURM_JOB_ID": found.started_utc[11:19].replace(":", "")})
WRAPPERS: Sequence[Framework] = ("pytorch_native", "horovod", "lightning", "accelerate")
HONEST: Mapping[str, tuple[Honest, Do | None]] = {
    "native DDP faster": (Honest(), None),
    "Horovod faster": (Honest(advantage=-0.02, seed=5), None),
    "equally fast, 3 repeats": (Honest(advantage=0.0, repeats=3, seed=8), None),
    "4 repeats": (Honest(repeats=4, seed=9), None),
    "two wrappers": (Honest(WRAPPERS, workers=(1, 2), seed=10), None),
    "GPUs": (Honest(is_gpu=True, nodes=0.03), None),
    "two hosts": (Honest(workers=(1, 2, 8), hosts=("node1", "node2")), None),
    "step samples and older logs": (Honest(has_files=True), None),
    "a low IoU that was learned": (Honest(iou=0.45), None),
    "does not scale": (Honest(overhead=20.0), None),
    "an own task": (Honest(), as_own_task),
    "jobs of Slurm": (Honest(), every(IN_JOBS)),
    "a virtual machine's clock": (Honest(), every(processors(frequency_mhz=2700.0))),
    "records of older code": (Honest(), of_older_code),
    "a resumed run": (Honest(), resumed),
    "a run that began again": (Honest(), began_again),
    "a disturbed launch, repeated": (Honest(), disturbed_and_repeated),
}
QUICK_HONEST = ("native DDP faster", "equally fast, 3 repeats", "two wrappers", "GPUs", "does not scale")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK_HONEST else pytest.mark.verify) for kind in HONEST]
)
def test_an_honest_study_claims_plainly(kind: str, tmp_path: Path) -> None:
    truth, also = HONEST[kind]
    study = write_honest(tmp_path / "study", truth)
    if also:
        also(study)
    report = report_on(study, tmp_path / "report")
    assert claims_plainly(report)
    assert not names_one_for_nothing(report)


@pytest.mark.parametrize("better", ["speed", "IoU"])
def test_an_honest_change_is_claimed_plainly(better: str, base: Base, tmp_path: Path) -> None:
    studies = tmp_path / "studies"
    shutil.copytree(base("a pair"), studies)
    if better == "IoU":
        in_b(slower(1.08))(studies)
        in_b(scored(lambda run: 0.9 + 0.001 * run.seed))(studies)
    assert compared_plainly(compare_pair(studies, tmp_path / "compare"))


def test_a_floor_between_equal_arms_names_none_of_them(base: Base, tmp_path: Path) -> None:
    """Of two arms between which no difference is shown, one is above the study's floor by a hair."""
    study = tmp_path / "study"
    shutil.copytree(base("equally fast"), study)
    points = json.loads((report_on(study, tmp_path / "first") / "summary.json").read_text())["points"]
    lows = [point["efficiency_common_low"] for point in points if point["workers"] == MORE[-1]]
    change_study(study, criteria={"efficiency_floor": sum(lows) / len(lows)})
    report = report_on(study, tmp_path / "report")
    assert names_one_for_nothing(report) is ("one named for nothing" in NOT_YET)
