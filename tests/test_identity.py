"""Who a process is, by the variables of each launcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet_scaling.base.errors import UserError
from unet_scaling.group.identity import Identity, first_host, identify, rendezvous_address

PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


MVAPICH = {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        (PMI, Identity(3, 4, 1, "PMI")),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_LOCALID": "1"}, Identity(3, 4, 1, "PMI")),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"}, Identity(3, 4, 1, "PMI")),
        (PMI | {"PMIX_RANK": "3", "PALS_RANKID": "3"}, Identity(3, 4, 1, "PMI")),
        (OPEN_MPI, Identity(2, 8, 0, "Open MPI")),
        (MVAPICH, Identity(3, 4, 1, "MVAPICH")),
        (SLURM, Identity(5, 6, 1, "Slurm")),
        ({"SLURM_PROCID": "5", "SLURM_NPROCS": "6", "SLURM_LOCALID": "1"}, Identity(5, 6, 1, "Slurm")),
        (TORCHRUN, Identity(1, 2, 1, "torchrun")),
        (SLURM | PMI | TORCHRUN, Identity(3, 4, 1, "PMI")),
        (SLURM | TORCHRUN, Identity(5, 6, 1, "Slurm")),
        ({}, Identity(0, 1, 0, "none")),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, Identity(0, 1, 0, "none")),
    ],
)
def test_reads_each_launcher(environment: dict[str, str], identity: Identity) -> None:
    assert identify(environment) == identity


@pytest.mark.parametrize(
    "rank",
    ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "RANK", "PALS_RANKID",
     "PMIX_RANK", "ALPS_APP_PE", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK"],
)  # fmt: skip
def test_a_rank_of_nobody_knows_how_many_is_refused_by_name(rank: str) -> None:
    """Else each of the workers would train alone."""
    with pytest.raises(UserError, match=f"^{rank}=3, and no variable says of how many workers"):
        identify({rank: "3", "SLURM_NTASKS": "4"} if rank != "SLURM_PROCID" else {rank: "3"})


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


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]([a-z-]*[a-z])?", fullmatch=True), st.integers(1, 4), st.integers(0, 99),
            st.sampled_from(("", "-{}", ",{}", "-{},500")),
        ),
        min_size=1, max_size=3,
    ),
    st.sampled_from(("", "-ib", ".site")),
    st.sampled_from(("", ",x1", ",x[1-2]y[3]")),
)  # fmt: skip
def test_the_first_host_of_any_product_of_ranges(
    parts: list[tuple[str, int, int, str]], end: str, more: str
) -> None:
    assert first_host("node[03-05,9],login1") == "node03"
    assert first_host("bgp[000x133]") == "bgp000"
    written = "".join(
        f"{name}[{number:0{width}}{further.format(f'{number + 1:0{width}}')}]"
        for name, width, number, further in parts
    )
    first = "".join(f"{name}{number:0{width}}" for name, width, number, _ in parts)
    assert first_host(written + end + more) == first + end


@pytest.mark.parametrize("nodes", ["node[", "[]", "n[]", ",n1", "n[1-2", "n1]", "n [1]", "None assigned"])
def test_what_is_no_node_list_is_refused_as_it_is(nodes: str) -> None:
    with pytest.raises(UserError, match="is no list of hosts as Slurm writes it"):
        first_host(nodes)


JOB = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-7]"}
STEP = JOB | {"SLURM_STEP_NODELIST": "n[3-4]"}


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        (JOB, "n1"),
        (STEP, "n3"),
        # Its mpiexec starts rank 0 beside itself, and the daemons of all others by a step of its own.
        (STEP | {"OMPI_COMM_WORLD_RANK": "4"}, "n1"),
        (STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}, "10.0.0.1"),
        (STEP | {"MASTER_ADDR": "n3i"}, "n3i"),
        (STEP | {"MASTER_ADDR": "{host}i.site"}, "n3i.site"),
        (JOB | {"MASTER_ADDR": "ib-{host}", "MASTER_PORT": "1234"}, "ib-n1"),
        (STEP | {"MASTER_ADDR": "", "MASTER_PORT": "1234"}, "n3"),
    ],
)
def test_meets_where_the_launcher_says_or_at_the_first_host(environment: dict[str, str], host: str) -> None:
    assert rendezvous_address(environment)[0] == host
    with pytest.raises(UserError, match="MASTER_ADDR"):
        rendezvous_address({})


SEVERAL_HOSTS = [
    PMI | {"MPI_LOCALNRANKS": "2"},
    {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "2"},
    OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    SLURM | {"SLURM_STEP_NUM_NODES": "3"},
    {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
]
ONE_HOST = [
    PMI | {"MPI_LOCALNRANKS": "4"},
    OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "SLURM_JOB_NUM_NODES": "2"},
    SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NUM_NODES": "2"},
    TORCHRUN,
]


@pytest.mark.parametrize("address", ["localhost.localdomain", "127.0.1.1", "::1"])
def test_a_loopback_address_is_for_workers_of_one_host(address: str) -> None:
    chosen = {"MASTER_ADDR": address, "MASTER_PORT": "1234"}
    for environment in ONE_HOST:
        assert rendezvous_address(environment | chosen) == (address, 1234)
    for environment in SEVERAL_HOSTS:
        with pytest.raises(UserError, match=f"^MASTER_ADDR={address}: each host has its own"):
            rendezvous_address(environment | chosen)
        assert rendezvous_address(environment | chosen | {"MASTER_ADDR": "n1"}) == ("n1", 1234)


@given(st.integers(1, 10**9))
def test_ports_follow_from_the_job_and_stay_below_the_ephemeral_range(job: int) -> None:
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "n1"}
    port = rendezvous_address(environment)[1]
    assert 15000 <= port < 25000
    assert port == rendezvous_address(environment)[1]
    assert port != rendezvous_address(environment | {"SLURM_JOB_ID": str(job + 1)})[1]
