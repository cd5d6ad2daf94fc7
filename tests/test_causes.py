"""Why a framework is slower: the part of a step that differs between the arms, and none that both have."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.report.exports import which_framework
from tests.honest import Honest, write_honest
from tests.invented_budgets import CAUSES, named_cause
from tests.reports import report_of
from tests.tampering import Change, Runs, in_turn, longer, slower
from unet_scaling.format.record_lines import Phase

STUDIES = 5


@pytest.mark.parametrize("cause", CAUSES)
def test_the_part_that_differs_is_named_and_none_of_equal_budgets(cause: str) -> None:
    """5 studies of 12 causes; `python -m benchmarks.causes` takes 1,440."""
    found = [named_cause(cause, 0.08, 5, seed) for seed in range(STUDIES)]
    named = [each for each in found if each.parts]
    assert sum(each.is_true for each in named) >= len(named) - (cause != "uneven work")
    assert bool(named) == bool(CAUSES[cause][-1])
    if not CAUSES[cause][-1]:
        assert sum(each.in_either for each in found) <= 1


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_honest(tmp_path_factory.mktemp("equal") / "study", Honest(workers=(1, 4), advantage=0.0))


WAITS = longer(Phase.SYNC, 0.15)
CASES: dict[str, tuple[Change, Change | None, Sequence[str], str]] = {
    "optimizer": (longer(Phase.OPTIMIZER, 0.1), None, ["the optimizer (99 %"], ""),
    "data wait": (longer(Phase.DATA_WAIT, 0.1), None, ["data wait (99 %", "workers wait for"], "more cores"),
    "communication": (longer(Phase.SYNC, 0.1), None, ["communication (99 %"], "horovod.fusion_threshold_mb"),
    "compute": (longer(Phase.FORWARD, 0.1), None, ["compute (forward and backward) (100 %"], "fewer workers"),
    "late worker": (longer(Phase.BACKWARD, 0.1, only=2), None, ["all wait for worker 2"], "a look"),
    "late for its data": (longer(Phase.DATA_WAIT, 0.1, only=1), None, ["data wait (100 %"], "a look"),
    "both average slowly": (in_turn(WAITS, longer(Phase.OPTIMIZER, 0.1)), WAITS, ["the optimizer (99 %"], ""),
    "two parts": (
        in_turn(longer(Phase.SYNC, 0.05), longer(Phase.OPTIMIZER, 0.05)), None,
        ["the optimizer (51 % of it) and in communication (48 %"], "horovod.fusion_threshold_mb",
    ),
    "nothing": (slower(1.0), None, [], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_says_in_which_part_of_a_step_the_difference_lies(
    case: str, equal: Path, tmp_path: Path
) -> None:
    change, of_both, said, cure = CASES[case]
    folder = shutil.copytree(equal, tmp_path / "study")
    Runs(folder).of("horovod", workers=[4]).change(change)
    if of_both:
        Runs(folder).of("pytorch_native", workers=[4]).change(of_both)
    report = report_of(folder).report
    sentence = report.slower[""]
    assert sentence in which_framework(report, report.answers[0]) or not sentence
    assert ("the difference lies in " in sentence) == bool(said)
    assert [words for words in said if words not in sentence] == [], sentence
    assert ("; try " in sentence) == bool(cure)
    assert cure in sentence
    # Both have it: no reason, though it may be cured.
    assert "averaging takes far longer" not in sentence
