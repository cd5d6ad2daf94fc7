"""Files that `unet-scaling new` makes by asking a real Slurm: submitted unchanged, their runs complete."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.cluster import read_cluster
from tests.cluster import Done, VirtualCluster, bring_up
from tests.studies import make_images
from unet_scaling.study.study_file import read_study

pytestmark = [pytest.mark.slow, pytest.mark.verify]
RUN_SECONDS = 600


def command(cluster: VirtualCluster, *words: str) -> Done:
    """Run unet-scaling where the cluster's Slurm answers."""
    program = [sys.executable, "-m", "unet_scaling", *words]
    return subprocess.run(
        program, env=cluster.environment, capture_output=True, text=True, timeout=RUN_SECONDS
    )


def test_files_made_by_asking_slurm_submit_unchanged_and_their_runs_complete(tmp_path: Path) -> None:
    data = make_images(tmp_path / "data", 24)
    study, site = tmp_path / "asked.toml", tmp_path / "asked.cluster.toml"
    with bring_up("new", "--hosts", "2", "--gpus-per-host", "2", "--cores-per-host", "2") as cluster:
        sizes = ("--repeats", "1", "--epochs", "2")
        made = command(
            cluster, "new", "asked", "--data", str(data), "--into", str(tmp_path), "--cluster", *sizes
        )
        assert made.returncode == 0, made.stdout + made.stderr
        facts = read_cluster(site)
        assert (facts.partition, facts.gpus_per_node, facts.max_nodes) == ("virtual", 2, 2)
        assert (facts.cores_per_worker, facts.pin_cores, facts.launcher) == (1, True, "srun")
        assert read_study(study).workers == [1, 2, 4]
        submit = ("submit", str(study), "--cluster", str(site), "--logs", str(tmp_path / "logs"))
        shown = command(cluster, *submit, "--dry-run")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert not (tmp_path / "logs").exists()
        done = command(cluster, *submit, "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        status = command(cluster, "status", "asked", "--json", "--logs", str(tmp_path / "logs"))
    rows = json.loads(status.stdout)
    assert [row["state"] for row in rows] == ["complete"] * 6
    assert {row["workers"] for row in rows} == {1, 2, 4}
