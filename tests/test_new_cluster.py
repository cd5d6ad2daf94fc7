"""Clusters as Slurm describes them, and the cluster files that are made of it."""

import sys
from pathlib import Path

import pytest

from slurm.cluster import read_cluster
from slurm.cluster_facts import (
    PartitionFacts,
    SlurmFacts,
    read_accounts,
    read_gpus,
    read_mpi_kinds,
    read_nodes,
    read_partitions,
)
from slurm.commands import new
from slurm.new_cluster import (
    accounts_for,
    cluster_choices,
    default_partition,
    find_partition,
    most_nodes,
    node_shape,
    usual_limit,
)
from slurm.reference import file_kinds
from slurm.written_file import Choice, file_text
from tests.studies import make_images
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study

_, CLUSTER_KIND = file_kinds()
# Of a Slurm 22.05.8 with two nodes.
VIRTUAL_NODES = "virtual|node1|idle|24|64000|1|gpu:2\nvirtual|node2|idle|24|64000|1|gpu:2\n"
VIRTUAL_PARTITION = (
    "PartitionName=virtual AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES "
    "QoS=N/A DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=node[1-2] PriorityJobFactor=1 "
    "PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP "
    "TotalCPUs=48 TotalNodes=2 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED "
    "MaxMemPerNode=UNLIMITED TRES=cpu=48,mem=125G,node=2,billing=48\n"
)
MPI_LIST = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\n"
    "specific pmix plugin versions available: pmix_v4\n"
)
# A site with a default partition of processors, one of mixed GPUs, and one that is closed.
SITE_NODES = """\
cpu|c001|allocated|96|384000|2|(null)
cpu|c002|drained|96|384000|2|(null)
gpu|g001|mixed|64|512000|2|gpu:a100:4(S:0-1),nvme:1
gpu|g002|idle|64|512000|2|gpu:a100:4(S:0,1)
gpu|g003|down*|64|512000|2|gpu:a100:4(S:0-1)
gpu|g004|idle*|64|512000|2|gpu:a100:4(S:0-1)
gpu|g005|idle~|128|1024000|2|gpu:a100:8(S:0-1)
gpu|g006|reserved|48|256000|2|gpu:v100:2
gpu|g007|draining@|64|512000|2|gpu:a100:4
old|o001|down|24|64000|2|gpu:k80:4
"""
SITE_PARTITIONS = """\
PartitionName=cpu AllowAccounts=ALL Default=YES MaxNodes=UNLIMITED MaxTime=7-00:00:00 MaxCPUsPerNode=UNLIMITED State=UP
PartitionName=gpu AllowAccounts=vision,physics Default=NO MaxNodes=2 MaxTime=01:00:00 MaxCPUsPerNode=48 State=UP
PartitionName=old AllowAccounts=ALL Default=NO MaxNodes=1 MaxTime=UNLIMITED State=DOWN
"""  # noqa: E501  (as Slurm writes them)


def virtual() -> SlurmFacts:
    return SlurmFacts(
        read_partitions(VIRTUAL_PARTITION, VIRTUAL_NODES),
        binds_cores=False,
        mpi_kinds=read_mpi_kinds(MPI_LIST),
    )


def site() -> SlurmFacts:
    accounts = read_accounts("Hello\nme|other\nme|physics\nyou|x\nme|vision\n", "me|other\n", "me")
    return SlurmFacts(read_partitions(SITE_PARTITIONS, SITE_NODES), accounts, True, ("pmi2", "pmix"))


def written(facts: SlurmFacts, partition: PartitionFacts, folder: Path, account: str | None = None) -> Path:
    """Write the cluster file of this partition with the limit that is suggested."""
    limit = {"02:00:00": 7200, "01:00:00": 3600}[usual_limit(partition)]
    choices = cluster_choices(facts, partition, account, limit, exclusive=True)
    path = folder / "made.cluster.toml"
    path.write_text(file_text(CLUSTER_KIND, "a test", choices, folder))
    return path


def test_a_small_slurm_without_limits_gives_a_valid_file(tmp_path: Path) -> None:
    partition = default_partition(virtual())
    path = written(virtual(), partition, tmp_path)
    cluster = read_cluster(path)
    assert (cluster.partition, cluster.gpus_per_node, cluster.cores_per_worker) == ("virtual", 2, 12)
    assert (cluster.max_nodes, cluster.time, cluster.gres) == (2, "02:00:00", "gpu")
    assert cluster.pin_cores
    assert cluster.account is None
    assert cluster.options == ["--exclusive"]


def test_nodes_out_of_service_and_other_gpus_are_left_out(tmp_path: Path) -> None:
    partition = find_partition(site(), "gpu")
    shape = node_shape(partition)
    assert (shape.gpu_type, shape.workers) == ("a100", 4)
    assert [node.name for node in shape.nodes] == ["g001", "g002", "g005"]
    cluster = read_cluster(written(site(), partition, tmp_path, "vision"))
    assert (cluster.gres, cluster.gpus_per_node, cluster.account) == ("gpu:a100", 4, "vision")
    assert cluster.cores_per_worker == 12  # 64 cores, of which a job may have 48
    assert cluster.max_nodes == most_nodes(partition, shape) == 2  # 3 nodes, and the partition allows 2
    assert cluster.time == "01:00:00"


def test_without_gpus_each_processor_of_a_node_is_a_worker(tmp_path: Path) -> None:
    cluster = read_cluster(written(site(), find_partition(site(), "cpu"), tmp_path))
    assert (cluster.gres, cluster.gpus_per_node, cluster.cores_per_worker) == ("", 2, 48)
    assert cluster.max_nodes == 1
    assert not cluster.ping_pong


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:a100:4(S:0,1),nvme:1", {"a100": 4}),
        ("gpu:a100_3g.20gb:2(S:0),gpu:a100:1(S:1)", {"a100_3g.20gb": 2, "a100": 1}),
        ("shard:8,gpu:h100:0", {}),
    ],
)
def test_gres_lists_of_all_shapes_are_read(gres: str, gpus: dict[str, int]) -> None:
    assert read_gpus(gres) == gpus


def test_accounts_are_those_that_the_partition_allows_the_default_first() -> None:
    assert site().accounts == ("other", "physics", "vision")
    assert accounts_for(site(), find_partition(site(), "gpu")) == ("physics", "vision")
    assert accounts_for(site(), find_partition(site(), "cpu")) == ("other", "physics", "vision")


def test_a_short_limit_leaves_time_to_stop(tmp_path: Path) -> None:
    choices = cluster_choices(virtual(), default_partition(virtual()), None, 300, exclusive=False)
    path = tmp_path / "short.toml"
    path.write_text(file_text(CLUSTER_KIND, "a test", choices, tmp_path))
    assert read_cluster(path).stop_seconds == 75


def test_a_line_of_another_shape_is_an_error_with_the_line() -> None:
    with pytest.raises(UserError, match="sinfo answered 'gpu g001'"):
        read_nodes("gpu g001\n")


def test_srun_needs_a_kind_of_mpi_that_the_installed_one_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm.new_cluster.installed_mpi", lambda: "openmpi")
    choices = {choice.key: choice.value for choice in _choices(("pmi2",))}
    assert choices["launcher"] == "mpiexec"
    assert {choice.key: choice.value for choice in _choices(("pmix",))}["launcher_arguments"] == [
        "--mpi=pmix"
    ]


def _choices(mpi_kinds: tuple[str, ...]) -> list[Choice]:
    facts = SlurmFacts(virtual().partitions, mpi_kinds=mpi_kinds)
    return cluster_choices(facts, facts.partitions[0], None, 7200, exclusive=False)


@pytest.fixture
def on_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let `unet-scaling new` hear what a site's Slurm says, in a folder with images."""
    monkeypatch.setattr(new, "ask_cluster", site)
    monkeypatch.chdir(tmp_path)
    return make_images(tmp_path / "data", 40)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["unet-scaling new", *words])
    new.main()


def test_both_files_fit_together(on_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition with most GPUs in service is taken."""
    call(monkeypatch, "both", "--data", str(on_site), "--time", "30", "--share-nodes")
    cluster = read_cluster(tmp_path / "both.cluster.toml")
    study = read_study(tmp_path / "both.toml")
    assert study.workers == [1, 2, 4, 8]
    assert max(study.workers) == cluster.largest
    assert (cluster.account, cluster.limit_seconds, cluster.options) == ("physics", 1800, [])


def test_partition_limit_and_account_are_asked_for_on_a_terminal(
    on_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"Partition (cpu, gpu, old)": "cpu", "Account (other, physics, vision)": "vision"}
    monkeypatch.setattr(new, "_ask_terminal", lambda question, default: answers.get(question, default))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    call(monkeypatch, "asked", "--data", str(on_site))
    cluster = read_cluster(tmp_path / "asked.cluster.toml")
    assert (cluster.partition, cluster.account, cluster.time) == ("cpu", "vision", "02:00:00")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "1,16"), "--workers: found 16; allowed: up to the 8 that 2 nodes of gpu hold"),
        (("--workers", "1;2"), "--workers: found '1;2'"),
        (("--time", "soon"), "--time soon: allowed is what Slurm takes"),
        (("--time", "02:00:00"), "--time 02:00:00: partition gpu allows 01:00:00"),
        (("--partition", "nosuch"), "--partition nosuch: no such partition; Slurm has cpu, gpu, old"),
        (("--partition", "old"), "old: none of its nodes is in service"),
    ],
)
def test_what_does_not_fit_the_cluster_is_refused_and_nothing_is_written(
    words: tuple[str, ...], message: str, on_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=message):
        call(monkeypatch, "none", "--data", str(on_site), *words)
    assert not list(tmp_path.glob("*.toml"))
