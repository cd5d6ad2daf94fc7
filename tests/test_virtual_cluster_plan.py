"""The parts of the virtual cluster that need neither root nor Slurm: files, options, refusals."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from slurm.virtual import cluster, hosts
from slurm.virtual.plan import Plan, command_line, load, plan_file, plan_of, save, slurm_conf, task_prolog
from tests.cluster import PROGRAM
from unet_scaling.base.errors import UserError
from unet_scaling.emulation import processor_quota

STATE = Path("/run/somewhere")


def test_tasks_of_a_slowed_cluster_are_told_so_by_slurm_itself() -> None:
    plan = Plan(STATE, dilation=14, link_rate="10gbit")
    assert "TaskProlog=/run/somewhere/task_prolog\n" in slurm_conf(plan)
    assert "KillWait=420\n" in slurm_conf(plan)
    text = task_prolog({"UNET_SCALING_DILATION": "14", "OTHER": "a b"})
    told = subprocess.run(["sh", "-c", text], capture_output=True, text=True).stdout
    assert told == "export UNET_SCALING_DILATION=14\nexport OTHER=a b\n"


def test_a_slowed_cluster_leaves_no_group_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hierarchy = processor_quota.ProcessorHierarchy(1, tmp_path)
    monkeypatch.setattr(processor_quota, "processor_hierarchy", lambda: hierarchy)
    folder = cluster.quota_folder(Plan(STATE), hierarchy)
    (folder / "worker0.1").mkdir(parents=True)
    cluster.remove_groups(STATE)
    assert not folder.exists()
    cluster.remove_groups(STATE)


def test_ctrl_c_waits_until_a_daemon_is_inside_its_host_where_it_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = Plan(tmp_path)
    for folder in (plan.log("node1"), plan.process_file("node1")):
        folder.parent.mkdir()
    looks = iter([False, True])

    def is_inside(*_: object) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return next(looks)

    monkeypatch.setattr(hosts, "enter", lambda *_: [])
    monkeypatch.setattr(hosts, "_is_inside", is_inside)
    # Started in the background of a shell, these tests would ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            hosts.start_daemon(plan, "node1", ["sleep", "60"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(looks) == []
    daemon = psutil.Process(int(plan.process_file("node1").read_text()))
    daemon.kill()
    daemon.wait(10)


def test_a_cluster_of_another_version_is_named(tmp_path: Path) -> None:
    plan_file(tmp_path).write_text('{"hosts": 2, "accounting": false}')
    with pytest.raises(UserError, match="another version of this program made it"):
        load(tmp_path)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    given = ["up", "--state-dir", str(tmp_path), "--hosts", "3", "--partition", "a", "--set", "MinJobAge=10"]
    given += ["--dilate", "14"]
    plan = plan_of(command_line().parse_args(given))
    assert plan == Plan(tmp_path, hosts=3, partitions=["a"], settings=[["MinJobAge", "10"]], dilation=14)
    save(plan)
    assert load(tmp_path) == plan
    with pytest.raises(FileExistsError):
        save(plan)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--hosts", "0"],
        ["--hosts", "201"],
        ["--link-rate", "1gbit; reboot"],
        ["--dilate", "0.5"],
        ["--dilate", "1001"],
        ["--partition", "a Nodes=ALL"],
        ["--set", "MailProg=/bin/true\nEpilog=/bin/false"],
        ["--state-dir", "/run/a folder"],
        ["--state-dir", "/run/" + "a" * 100],
    ],
)
def test_values_that_slurm_conf_cannot_hold_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line().parse_args(["up", *wrong])
    assert ended.value.code == 2


@pytest.mark.parametrize("words", [["status"], ["exec", "node1", "--", "true"]])
def test_commands_name_the_folder_without_a_cluster(words: list[str], tmp_path: Path) -> None:
    verb, *rest = words
    command = [str(PROGRAM), verb, "--state-dir", str(tmp_path), *rest]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}: no virtual cluster is up here; start one with:")


def test_taking_down_nothing_is_fine_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    done = subprocess.run(
        [str(PROGRAM), "down", "--state-dir", str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}: nothing is up here\n")
    assert (tmp_path / "precious").read_text() == "keep"


def test_a_process_id_given_to_another_process_does_not_count(tmp_path: Path) -> None:
    plan = Plan(tmp_path)
    note = plan.process_file("node1")
    own = hosts.pin(plan, "node1")
    for path in (note, own):
        path.parent.mkdir(parents=True)
    assert hosts.running(plan, "node1") is None
    note.write_text(str(os.getpid()))
    own.symlink_to("/proc/self/ns/net")
    assert hosts.running(plan, "node1") == os.getpid()
    own.unlink()
    own.symlink_to("/proc/self/ns/mnt")  # of another host
    assert hosts.running(plan, "node1") is None


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts, "SYSTEM_FOLDERS", "/nowhere")
    reason = str(cluster.missing_prerequisite())
    assert "iproute2 mount munge slurm-wlm util-linux" in reason
    assert "`slurm/virtual_cluster up --install`" in reason
