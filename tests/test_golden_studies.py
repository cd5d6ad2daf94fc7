"""The numbers of committed and generated studies are those of tests/golden/studies."""

from pathlib import Path

import pytest

from tests.golden_studies import GOLDEN, NAMES, difference, numbers_of

# One for each kind of study; `make verify` takes all.
QUICK = (
    "leaving_horovod", "plan_nuclei", "compare_published_gap", "predict_emulated_scaling", "many_axes",
    "own_task", "scripts", "older_logs", "hostile_names", "one_point", "attempts_of_other_code",
    "the_slower_launches_of_an_arm_failed",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.verify) for name in NAMES]
)
def test_numbers_are_those_that_were_accepted(name: str, tmp_path: Path) -> None:
    changed = difference(name, numbers_of(name, tmp_path))
    assert not changed, (
        "python -m tests.golden_studies --accept, then read git diff tests/golden:\n" + "\n".join(changed)
    )


@pytest.mark.parametrize(
    ("found", "other"),
    [
        ("speedup: 1 | 1.956020898", "speedup: 1 | 1.956020918"),
        ("summary.csv speedup:", "summary.csv speed_up:"),
        ("kind: undecided", "kind: use"),
    ],
    ids=["a number by 1e-8", "a name of a column", "a decision"],
)
def test_sees_a_change_of(found: str, other: str) -> None:
    lines = (GOLDEN / "many_axes.txt").read_text().splitlines()
    assert not difference("many_axes", lines)
    changed = [line.replace(found, other) for line in lines]
    assert changed != lines
    assert difference("many_axes", changed)
