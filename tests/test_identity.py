"""Who a process is, by the variables of each launcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet_scaling.group.identity import Identity, first_host, identify, rendezvous_address
from unet_scaling.study.errors import UserError

PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


def test_reads_each_launcher() -> None:
    assert identify(PMI) == Identity(3, 4, 1, "PMI")
    assert identify(OPEN_MPI) == Identity(2, 8, 0, "Open MPI")
    assert identify(SLURM) == Identity(5, 6, 1, "Slurm")
    assert identify(TORCHRUN) == Identity(1, 2, 1, "torchrun")
    assert identify({}) == Identity(0, 1, 0, "none")


def test_mpiexec_inside_a_slurm_job_goes_before_slurm() -> None:
    assert identify(SLURM | PMI | TORCHRUN).launcher == "PMI"
    assert identify(SLURM | OPEN_MPI | TORCHRUN).launcher == "Open MPI"
    assert identify(SLURM | TORCHRUN).launcher == "Slurm"


def test_srun_with_pmi2_takes_the_local_rank_from_slurm() -> None:
    assert identify({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_LOCALID": "1"}).local_rank == 1


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (PMI | {"PMI_RANK": "4"}, "PMI_RANK=4"),
        (PMI | {"PMI_SIZE": "four"}, "PMI_SIZE='four'"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI_LOCALRANKID"),
    ],
)
def test_refuses_what_cannot_be(environment: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        identify(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[03-05,9],login1", "node03"),
        ("a1,b[1-2]", "a1"),
        ("r[1,3]n-ib", "r1n-ib"),
        ("gpu-2-[10-12]", "gpu-2-10"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_meets_at_the_first_host_of_the_step_before_that_of_the_job() -> None:
    job = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-7]"}
    assert rendezvous_address(job)[0] == "n1"
    assert rendezvous_address(job | {"SLURM_STEP_NODELIST": "n[3-4]"})[0] == "n3"


def test_under_open_mpi_meets_where_its_daemons_have_no_step() -> None:
    """As on the virtual cluster: mpiexec starts rank 0 beside itself, and all others by a step of its own."""
    job = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-3]", "OMPI_COMM_WORLD_RANK": "0"}
    assert rendezvous_address(job)[0] == "n1"
    assert rendezvous_address(job | {"OMPI_COMM_WORLD_RANK": "4", "SLURM_STEP_NODELIST": "n[2-3]"})[0] == "n1"


def test_the_launchers_own_choice_goes_first() -> None:
    chosen = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "n1",
    }
    assert rendezvous_address(chosen) == ("10.0.0.1", 1234)


def test_outside_a_job_says_what_to_set() -> None:
    with pytest.raises(UserError, match="MASTER_ADDR"):
        rendezvous_address({})


@given(st.integers(1, 10**9))
def test_ports_follow_from_the_job_and_stay_below_the_ephemeral_range(job: int) -> None:
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "n1"}
    port = rendezvous_address(environment)[1]
    assert 15000 <= port < 25000
    assert port == rendezvous_address(environment)[1]
    assert port != rendezvous_address(environment | {"SLURM_JOB_ID": str(job + 1)})[1]
