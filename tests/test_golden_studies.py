"""The numbers of committed and generated studies are those of tests/golden/studies."""

from pathlib import Path

import pytest

from tests.golden_studies import NAMES, difference, numbers_of

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
