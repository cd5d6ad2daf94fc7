"""`unet-scaling new`: a study by its images, a cluster file by sinfo, neither ever overwritten."""

import itertools
import os
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.cluster import read_cluster
from slurm.commands import new
from slurm.commands.new import FEWEST_STEPS_PER_EPOCH, read_gpus, suggest_batch
from slurm.launch.local import require_ready
from slurm.launch.preflight import find_iou_warnings
from slurm.launch.study_folder import open_study_folder
from tests.data_folders import blob, make_folder, noise, save
from tests.disks import full, small_disk
from tests.studies import make_images
from unet_scaling.base.errors import UserError
from unet_scaling.base.validation import as_toml
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
debug|1|idle|8|1|(null)|5:00|1
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
        (folder / program).write_text(f"#!/bin/sh\n/bin/cat {file}\n")
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
    assert (config.training.epochs, config.training.evaluate_every) == (13, 2)
    assert not find_iou_warnings(study.configs())
    assert not (folder / "first.cluster.toml").exists()


def test_no_file_is_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_images(folder / "data", 8)
    (folder / "mine.cluster.toml").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.cluster\.toml exists, and is not overwritten"):
        call(monkeypatch, "mine", "--data", str(data))
    assert (folder / "mine.cluster.toml").read_text() == "mine"
    assert not (folder / "mine.toml").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("has_manifest", [True, False])
def test_on_a_full_disk_nothing_is_left_and_another_folder_is_the_cure(
    has_manifest: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unet_scaling.base.files.PAUSES_SECONDS", ())
    data = make_images(folder / "data", 12)
    if not has_manifest:
        (data / "manifest.json").unlink()
    (folder / "disk").mkdir()
    for program in ("mount", "umount"):
        (folder / program).symlink_to(shutil.which(program, path=os.defpath) or "")
    with small_disk(folder / "disk", 1) as disk:
        with full(disk), pytest.raises(UserError, match="; --into names another folder"):
            call(monkeypatch, "mine", "--data", str(data), "--into", "disk")
        assert not list(disk.iterdir())
    call(monkeypatch, "mine", "--data", str(data), "--into", ".")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["../mine"], "NAME: found '../mine'"),
        (["mine"], "--data FOLDER: name the folder"),
        (["mine", "--data", "nosuch"], "nosuch does not exist; a data folder holds"),
        (["mine", "--data", "data", "--task", "t.py"], "--task: its data are its own"),
        (["mine", "--data", "data", "--option", "width=2"], "--option: only with --task"),
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


def test_a_study_that_cannot_judge_says_so_as_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "few", "--data", str(make_images(folder / "data", 20)), "--workers", "1")
    assert "IoU will not be judged: 4 test samples, at least 5 are needed" in capsys.readouterr().out
    (folder / "my_task.py").touch()
    call(monkeypatch, "own", "--task", "my_task.py", "--workers", "1,2")
    written = (folder / "own.toml").read_text()
    assert "# a speed study; check says how many epochs" in written
    assert "also where the task's optimizer function sets another\nlearning_rate = 0.001\n" in written


@pytest.mark.parametrize("workers", [1, 2, 14, 64])
def test_the_batch_leaves_enough_steps_to_the_largest_worker_count(workers: int) -> None:
    batch = suggest_batch(896, workers)
    assert 896 // (workers * batch) >= FEWEST_STEPS_PER_EPOCH
    assert batch == 16 or 896 // (workers * 2 * batch) < FEWEST_STEPS_PER_EPOCH


def test_both_files_fit_together(on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition with most GPUs in service is taken; nodes out of service and other GPUs are left out."""
    call(monkeypatch, "both", "--data", str(on_site))
    cluster = read_cluster(folder / "both.cluster.toml")
    study = read_study(folder / "both.toml")
    assert study.workers == [1, 2, 4, 8]
    assert max(study.workers) == cluster.largest
    assert (cluster.partition, cluster.limit_seconds, cluster.options) == ("gpu", 3600, ["--exclusive"])
    assert (cluster.gres, cluster.gpus_per_node, cluster.cores_per_worker) == ("gpu:a100", 4, 16)
    assert cluster.max_nodes == 2  # of the node of 8 GPUs there is one
    assert not cluster.pin_cores
    with pytest.raises(UserError, match=r"--workers: found 9; allowed: up to the 8 for which gpu has room"):
        call(monkeypatch, "more", "--data", str(on_site), "--workers", "1,9")


SLICES = """\
mig|2|idle|64|2|gpu:a100_1g.5gb:28(S:0-1)|1:00:00|1-2
gpu|10|mixed|64|2|gpu:a100:4(S:0-1)|1:00:00|1-infinite
both|1|idle|64|2|gpu:nvidia_a100_1g.10gb:70,gpu:a100:2|1:00:00|1
small|1|idle|64|2|gpu:1g.10gb+me:7|1:00:00|1
"""


def test_whole_gpus_come_before_slices_of_them(
    on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resource(name: str, *words: str) -> tuple[str | None, str, int]:
        call(monkeypatch, name, "--data", str(on_site), *words)
        cluster = read_cluster(folder / f"{name}.cluster.toml")
        return cluster.partition, cluster.gres, cluster.gpus_per_node

    (folder / "answer").write_text(SLICES)
    assert resource("any") == ("gpu", "gpu:a100", 4)
    assert "MIG slices are left out (gpu:a100_1g.5gb of mig" in (folder / "any.cluster.toml").read_text()
    assert resource("mixed", "--partition", "both") == ("both", "gpu:a100", 2)
    assert resource("slices", "--partition", "mig") == ("mig", "gpu:a100_1g.5gb", 28)
    assert "MIG slices, not whole GPUs" in (folder / "slices.cluster.toml").read_text()
    assert resource("small", "--partition", "small") == ("small", "gpu:1g.10gb+me", 7)
    (folder / "answer").write_text("".join(SLICES.splitlines(keepends=True)[::3]))
    with pytest.raises(UserError, match="only MIG slices are in service, no whole GPU"):
        resource("none")


def test_without_gpus_each_processor_of_a_node_is_a_worker(
    on_site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config").write_text("TaskPlugin              = task/none\n")
    call(monkeypatch, "cpus", "--data", str(on_site), "--partition", "cpu")
    cluster = read_cluster(folder / "cpus.cluster.toml")
    assert (cluster.gres, cluster.gpus_per_node, cluster.cores_per_worker) == ("", 2, 48)
    assert (cluster.max_nodes, cluster.ping_pong, cluster.options) == (1, False, ["--exclusive"])
    assert (cluster.limit_seconds, cluster.pin_cores) == (7200, True)
    call(monkeypatch, "short", "--data", str(on_site), "--partition", "debug")
    short = read_cluster(folder / "short.cluster.toml")
    assert (short.limit_seconds, short.stop_seconds) == (300, 75)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--partition", "nosuch"), "no node of nosuch is in service; sinfo has cpu, gpu, old"),
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
        ("(null)", ("", 0)),
        ("gpu", ("gpu", 1)),
        ("gpu:4", ("gpu", 4)),
        ("nvme:1,gpu:a100:4(S:0,1)", ("gpu:a100", 4)),
        ("gpu:a100:no_consume:4,gpu:no_consume:2", ("gpu:a100", 4)),
        ("gpu:1g.20gb:2(S:0),gpu:a100:1(S:1)", ("gpu:a100", 1)),
        ("gpu:nvidia_a100_1g.10gb:7(S:0),shard:a100:8", ("gpu:nvidia_a100_1g.10gb", 7)),
        ("gres/gpu:1g.5gb+me:2", ("gpu:1g.5gb+me", 2)),
        ("gpu:h100-mig:14,gpu:a100:0", ("gpu:h100-mig", 14)),
        ("shard:8,gpu:h100:0", ("", 0)),
    ],
)
def test_gres_lists_of_all_shapes_are_read(gres: str, gpus: tuple[str, int]) -> None:
    assert read_gpus(gres) == gpus


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["per%cent", "back\\slash", "q'uo\"te", "a b", "é", "x~", "~x", "two\nlines", "x\x7f", "#x", "{x}"],
)
def test_what_is_written_is_read_back_as_given(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder lies below the project, and is written without its beginning."""
    monkeypatch.setattr(new, "PROJECT", folder)
    monkeypatch.setattr("unet_scaling.study.study_file.PROJECT", folder)
    (make_images(folder / name, 12) / "manifest.json").unlink()
    (folder / "own").mkdir()
    call(monkeypatch, "mine", "--data", name, "--into", "own")
    data = read_study(folder / "own" / "mine.toml").data
    assert Path(data["folder"]) == folder / name
    assert Path(data["manifest"]) == folder / "own" / "mine.manifest.json"


@pytest.mark.parametrize("name", ["dollar $HOME", "${X}", "5$", os.fsdecode(b"x\xff")])
@pytest.mark.parametrize("option", ["--data", "--into"])
def test_what_a_study_would_read_as_something_else_is_refused_before_anything_is_written(
    option: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("X", "y")
    data = make_images(folder / (name if option == "--data" else "data"), 12)
    (data / "manifest.json").unlink(missing_ok=True)
    own = folder / (name if option == "--into" else "own")
    own.mkdir()
    with pytest.raises(UserError, match=f"{option}: found .*ln -s FOLDER LINK"):
        call(monkeypatch, "mine", "--data", str(data), "--into", str(own))
    assert not list(own.iterdir())
    (folder / "link").symlink_to(data if option == "--data" else own)  # the cure that is given
    words = {"--data": str(data), "--into": str(own)} | {option: "link"}
    call(monkeypatch, "mine", *itertools.chain.from_iterable(words.items()))
    assert read_study(own / "mine.toml").data["folder"] in (str(data), str(folder / "link"))


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])) | st.integers(0, 9) | st.booleans(),
        lambda each: st.lists(each) | st.dictionaries(st.text('ab -."é', min_size=1), each),
        max_leaves=5,
    )
)
def test_a_value_is_written_as_toml_reads_it(value: object) -> None:
    assert tomllib.loads(f"key = {as_toml(value)}") == {"key": value}


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
    assert "20 runs: at least " in printed
    assert shlex.split(printed.splitlines()[-1])[-1] == str(tmp_path / "mine.toml")
    study = read_study(tmp_path / "mine.toml")
    assert study.configs()[0].data.manifest_path == tmp_path / "mine.manifest.json"
    require_ready(open_study_folder(tmp_path / "logs", study), study.configs())
