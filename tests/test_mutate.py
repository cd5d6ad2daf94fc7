"""The mutants of tests/mutants apply to the code of today; `python -m tests.mutate` runs their tests."""

import pytest

from tests.mutate import PROJECT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.applied_to(PROJECT) != (PROJECT / mutant.file).read_text()
    for test in mutant.tests:
        path, *name = test.partition("[")[0].split("::")
        assert not name or f"def {name[-1]}(" in (PROJECT / path).read_text(), test


def test_mutants_have_different_names() -> None:
    names = [mutant.name for mutant in mutants()]
    assert len(names) == len(set(names))
