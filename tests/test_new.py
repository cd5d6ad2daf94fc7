"""`unet-scaling new`: a study by its images, a cluster file by sinfo, neither ever overwritten."""

import shlex
import sys
from pathlib import Path

import pytest

from slurm.cluster import read_cluster
from slurm.commands import new
from slurm.commands.new import FEWEST_STEPS_PER_EPOCH, choose_partition, read_gpus, suggested_batch
from slurm.local import require_ready
from slurm.study_folder import open_study_folder
from tests.data_folders import blob, make_folder, noise, save
from tests.studies import make_images
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study

# A site with a default partition of processors, one of mixed GPUs, and one that is closed.
SITE = """\
cpu*|1|allocated|96|2|(null)|7-00:00:00|1-infinite
cpu*|1|drained|96|2|(null)|7-00:00:00|1-infinite
gpu|1|mixed|64|2|gpu:a100:4(S:0-1),nvme:1|1:00:00|1-2
gpu|1|idle|64|2|gpu:a100:4(S:0,1)|1:00:00|1-2
gpu|1|down*|64|2|gpu:a100:4(S:0-1)|1:00:00|1-2
gpu|1|idle*|64|2|gpu:a100:4(S:0-1)|1:00:00|1-2
gpu|1|idle~|128+|2|gpu:a100:8(S:0-1)|1:00:00|1-2
gpu|1|reserved|48|2|gpu:v100:2|1:00:00|1-2
old|1|down|24|2|gpu:k80:4|infinite|1
"""
# Where a cluster is named, the real commands put its name first, or refuse one that they do not know.
ONE_CLUSTER = """case "$1" in
--clusters=cm4) echo "CLUSTER: cm4" ;;
--clusters=*) echo "sinfo: error: No cluster 'x' known by database." >&2; exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep all files in a folder of the test, and hide the Slurm of this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let sinfo answer as that of a site does; return a folder of images."""
    answer = folder / "answer"
    answer.write_text(SITE)
    (folder / "config").write_text("TaskPlugin              = task/affinity,task/cgroup\n")
    for program, file in (("sinfo", answer), ("scontrol", folder / "config")):
        (folder / program).write_text(f"#!/bin/sh\n{ONE_CLUSTER}/bin/cat {file}\n")
        (folder / program).chmod(0o755)
    return make_images(folder / "data", 40)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["unet-scaling new", *words, "--no-probe"])
    new.main()


def test_a_folder_of_images_gives_a_study_that_runs_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_images(folder / "data", 40, 64, 48)
    call(monkeypatch, "first", "--data", str(data), "--workers", "1,2")
    study = read_study(folder / "first.toml")
    config = study.configs()[-1]
    assert study.workers == [1, 2]
    assert (config.data.image_height, config.data.image_width) == (64, 48)
    assert config.training.batch_per_worker == 2  # 32 training images, 2 workers, 8 steps
    assert not (folder / "first.cluster.toml").exists()


def test_no_file_is_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_images(folder / "data", 8)
    (folder / "mine.cluster.toml").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.cluster\.toml exists, and is not overwritten"):
        call(monkeypatch, "mine", "--data", str(data))
    assert (folder / "mine.cluster.toml").read_text() == "mine"
    assert not (folder / "mine.toml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["../mine"], "NAME: found '../mine'"),
        (["mine"], "--data FOLDER: name the folder"),
        (["mine", "--data", "nosuch"], "nosuch/images: cannot be listed"),
        (["mine", "--data", "data", "--epochs", "1"], "--epochs: found 1"),
        (["mine", "--data", "data", "--task", "t.py"], "--task: its data are its own"),
        (["mine", "--data", "data", "--option", "width=2"], "--option: only with --task"),
        (["mine", "--data", "data", "--time", "soon"], "--time: found soon; allowed: what Slurm takes"),
        (["mine", "--data", "data", "--partition", "gpu"], "--partition gpu: there is no sinfo"),
    ],
)
def test_what_cannot_be_a_study_is_refused(
    words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(folder / "data", 8)
    with pytest.raises(UserError, match=message):
        call(monkeypatch, *words)
    assert not list(folder.glob("*.toml"))


def test_masks_of_several_classes_name_them_as_foreground(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_folder(folder / "data", count=3)
    save(data / "images" / "q.png", noise())
    save(data / "masks" / "q.png", blob(value=7))
    call(monkeypatch, "classes", "--data", str(data), "--workers", "1")
    assert read_study(folder / "classes.toml").data["foreground"] == "7,255"


@pytest.mark.parametrize("workers", [1, 2, 14, 64])
def test_the_batch_leaves_enough_steps_to_the_largest_worker_count(workers: int) -> None:
    batch = suggested_batch(896, workers)
    assert 896 // (workers * batch) >= FEWEST_STEPS_PER_EPOCH
    assert batch == 16 or 896 // (workers * 2 * batch) < FEWEST_STEPS_PER_EPOCH


def test_both_files_fit_together(on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition with most GPUs in service is taken; nodes out of service and other GPUs are left out."""
    call(monkeypatch, "both", "--data", str(on_site), "--time", "30", "--share-nodes", "--account", "mine")
    cluster = read_cluster(folder / "both.cluster.toml")
    study = read_study(folder / "both.toml")
    assert study.workers == [1, 2, 4, 8]
    assert max(study.workers) == cluster.largest
    assert (cluster.account, cluster.limit_seconds, cluster.options) == ("mine", 1800, [])
    assert (cluster.gres, cluster.gpus_per_node, cluster.cores_per_worker) == ("gpu:a100", 4, 16)
    assert cluster.max_nodes == 2  # of 3 nodes; the partition allows 2
    assert not cluster.pin_cores


def test_of_several_clusters_the_named_one_is_asked_and_stands_in_the_file(
    on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(monkeypatch, "one", "--data", str(on_site), "--cluster-name", "cm4")
    assert read_cluster(folder / "one.cluster.toml").cluster_name == "cm4"
    with pytest.raises(UserError, match="No cluster 'x' known"):
        call(monkeypatch, "other", "--data", str(on_site), "--cluster-name", "x")


def test_without_gpus_each_processor_of_a_node_is_a_worker(
    on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config").write_text("TaskPlugin              = task/none\n")
    call(monkeypatch, "cpus", "--data", str(on_site), "--partition", "cpu", "--time", "5")
    cluster = read_cluster(folder / "cpus.cluster.toml")
    assert (cluster.gres, cluster.gpus_per_node, cluster.cores_per_worker) == ("", 2, 48)
    assert (cluster.max_nodes, cluster.ping_pong, cluster.options) == (1, False, ["--exclusive"])
    assert cluster.stop_seconds == 75, "a short limit leaves time to stop"
    assert cluster.pin_cores


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "1,16"), "--workers: found 16; allowed: up to the 8 that 2 nodes of gpu"),
        (("--time", "02:00:00"), "--time: found 7200 s; partition gpu allows 01:00:00"),
        (("--partition", "nosuch"), "--partition nosuch: no such partition; Slurm has cpu, gpu, old"),
        (("--partition", "old"), "no node of old is in service"),
    ],
)
def test_what_does_not_fit_the_cluster_is_refused_and_nothing_is_written(
    words: tuple[str, ...], message: str, on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=message):
        call(monkeypatch, "none", "--data", str(on_site), *words)
    assert not list(folder.glob("*.toml"))


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu", {"": 1}),
        ("gpu:a100:4(S:0,1),nvme:1", {"a100": 4}),
        ("gpu:a100_3g.20gb:2(S:0),gpu:a100:1(S:1)", {"a100_3g.20gb": 2, "a100": 1}),
        ("shard:8,gpu:h100:0", {}),
    ],
)
def test_gres_lists_of_all_shapes_are_read(gres: str, gpus: dict[str, int]) -> None:
    assert read_gpus(gres) == gpus


def test_an_answer_of_another_shape_is_an_error_with_the_answer() -> None:
    with pytest.raises(UserError, match="sinfo answered 'gpu g001'"):
        choose_partition("gpu g001\n", None)


@pytest.mark.slow
def test_new_writes_nothing_into_the_folder_of_the_images_and_tells_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are often somebody else's: the manifest goes beside the study, which runs with it."""
    tmp_path = tmp_path / "a study"
    folder = make_folder(tmp_path / "data", count=6, height=32, width=32)
    before = sorted(path.name for path in folder.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["unet-scaling new", "mine", "--data", str(folder), "--into", str(tmp_path)]
    )
    new.main()
    assert sorted(path.name for path in folder.rglob("*")) == before
    printed = capsys.readouterr().out
    assert "20 runs: about " in printed
    assert shlex.split(printed.splitlines()[-1])[-1] == str(tmp_path / "mine.toml")
    study = read_study(tmp_path / "mine.toml")
    assert study.configs()[0].data.manifest_path == tmp_path / "mine.manifest.json"
    require_ready(open_study_folder(tmp_path / "logs", study), study.configs())
