"""No attack of the catalogue leaves a report or a comparison that claims as an honest study's does.

Judged by files and exit codes (tests/claims.py). NOT_YET names what still gets through, and is exact: who
cures an attack takes it out.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from tests.attacks import MORE, ON_TRAINING, Attack, every, write_base
from tests.attacks_on_facts import ON_FACTS
from tests.attacks_on_pairs import ON_PAIRS, in_b, write_pair
from tests.claims import (
    claims_plainly,
    compare_pair,
    compared_plainly,
    names_one_for_nothing,
    report_on,
    says_what_is_not_known,
)
from tests.honest import write_honest
from tests.honest_studies import HONEST
from tests.reports import without_figures
from tests.tampering import change_study, scored, slower
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

# What still gets through, and why.
NOT_YET = {
    # The answer is the right one: do not scale out, with what is lost.
    "a margin as wide as the score",
    # Counts of a task of one's own do not tell its most frequent class, nor does a record tell more.
    "own task: the most frequent class",
    # A few per cent of all seconds leave no trace in a record; builders of tests write equal epochs, too.
    "A slowed on more workers",
    "epochs equal to 16 digits",
    # Of other code: a reason to launch again.
    "B has slower launches set aside",
}
ON_REPORT = (*ON_TRAINING, *ON_FACTS)
# One for each way to claim too much; `make verify` takes all.
QUICK = {
    "all background", "losses that rise", "a margin as wide as the score", "other weights on 2 workers",
    "a wrapper trains alone", "nothing averaged in 0 s", "repeats 1, 3, 5, 7, 12 of 12",
    "the best of three launches", "grown after a look, without repeats.json",
    "slow repeats of one arm removed", "more workers emulated", "scripts only",
    "records under the other framework's name", "Horovod without NCCL on GPUs", "always the same arm first",
    "one arm throttled", "launches of a split second", "masks of another size in one arm",
    "the best epoch as the last", "own task: a score called error_rate", "B is A in a hurry",
    "B has the best 5 of 12 repeats", "B at a higher clock", "B with other losses",
    "neither learned anything", "B has slower launches set aside",
}  # fmt: skip


def quick_or_all(attacks: Sequence[Attack]) -> list[Any]:
    """Parameters of a test; those that are not quick are for `make verify`."""
    marks = [() if attack.name in QUICK else pytest.mark.verify for attack in attacks]
    return [
        pytest.param(attack, id=attack.name, marks=mark) for attack, mark in zip(attacks, marks, strict=True)
    ]


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


def test_every_attack_has_a_name_of_its_own() -> None:
    names = [attack.name for attack in (*ON_REPORT, *ON_PAIRS)]
    others = {"one named for nothing"}
    assert len(set(names)) == len(names)
    assert set(names) | others >= NOT_YET
    assert set(names) >= QUICK


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


def test_the_commands_themselves_tell_a_study_from_an_attacked_one(
    base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of each kind: plain, qualified, refused; reports and comparisons."""
    shutil.copytree(base("native faster"), tmp_path / "study")
    shutil.copytree(base("a pair"), tmp_path / "pair")
    sides = [str(tmp_path / "pair" / side) for side in "ab"]
    with without_figures():
        assert main([str(tmp_path / "study")]) == 0
        assert main(["compare", *sides]) == 0
        assert claims_plainly(tmp_path / "study" / "report")
        assert compared_plainly(tmp_path / "pair" / "b" / "compare")
        for name, attack in {attack.name: attack for attack in (*ON_REPORT, *ON_PAIRS)}.items():
            if name == "other programs beside one arm":
                attack.do(tmp_path / "study")
            if name == "B with other torch":
                attack.do(tmp_path / "pair")
        assert main([str(tmp_path / "study")]) == 0
        assert main(["compare", *sides]) == 0
        assert not claims_plainly(tmp_path / "study" / "report")
        assert not compared_plainly(tmp_path / "pair" / "b" / "compare")
    every(slower(1e-9))(tmp_path / "study")
    with pytest.raises(UserError) as refused:
        main([str(tmp_path / "study")])
    assert refused.value.exit_code == EXIT_BAD_DATA
