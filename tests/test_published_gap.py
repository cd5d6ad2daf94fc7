"""The committed records of docs/published_gap.md: what the report names in them, and what it does not."""

import pytest

from analysis.budget.diagnosis import Diagnosis, diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.tables import budget_table
from analysis.loading.load import load_study
from tests.evidence import evidence


def contended(name: str, runs: int = 60) -> list[Diagnosis]:
    study = load_study(evidence(f"published_gap_{name}"))
    assert (len(study.runs), len(study.left_out)) == (runs, 0)
    found = diagnose(study, budget_table(study), network_table(study))
    return [each for each in found if each.rule == "core contention"]


@pytest.mark.parametrize("mpi", ["openmpi", "intel"])
def test_a_waiting_mpi_that_keeps_its_core_is_named_with_both_loadings(mpi: str) -> None:
    found = contended(mpi)
    assert {(each.framework, each.knobs) for each in found} == {("horovod", "yield_when_idle=False")}
    assert {each.options for each in found} == {"loading=cache", "loading=decode"}
    assert all("communication threads use" in each.evidence for each in found)


def test_mpich_leaves_the_core_and_is_not_accused() -> None:
    assert contended("mpich") == []


def test_with_gloo_as_controller_nothing_polls() -> None:
    (found,) = contended("controller", runs=30)
    assert (found.framework, found.knobs) == ("horovod", "controller=mpi")
