"""Job scripts, compared whole; geometry for any count; and values that try to break out."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm.cluster import Cluster, geometry, limit_seconds, read_cluster
from slurm.render import Places, allocation_script, job_script
from tests.studies import make_point
from unet_scaling.config import FRAMEWORKS, PROJECT
from unet_scaling.errors import UserError

GOLDEN = Path(__file__).with_name("golden")
PLACES = Places(Path("/project"), Path("/project/.venv/bin/python"))
SRUN = Cluster(
    launcher="srun", launcher_arguments=["--mpi=pmi2"], gpus_per_node=2, cores_per_worker=12, time="02:00:00",
    partition="gpu", account="project0000", options=["--exclusive"],
)  # fmt: skip
MPIEXEC = Cluster(
    launcher="mpiexec", launcher_command=["$MPIEXEC"], gpus_per_node=2, cores_per_worker=12, time="02:00:00",
    pin_cores=True, gres="gpu:volta", ping_pong=True,
)  # fmt: skip
SITES = {"srun": SRUN, "mpiexec": MPIEXEC}


def script(
    cluster: Cluster, framework: str, workers: int = 3, folder: str = "/project/logs/study/run"
) -> str:
    return job_script(
        cluster, make_point(Path("/data"), framework, workers), Path(folder), f"{framework}.1", PLACES
    )


def both(cluster: Cluster) -> str:
    runs = [
        (make_point(Path("/data"), framework, workers), Path(f"/project/logs/study/{framework}-{workers}"))
        for framework in FRAMEWORKS
        for workers in (1, 3)
    ]
    place = Path("/project/logs/study/allocation-1")
    return allocation_script(cluster, runs, place, "study.allocation.1", PLACES)


def rendered() -> dict[str, str]:
    jobs = {
        f"{framework}.{site}.sbatch": script(SITES[site], framework)
        for site in SITES
        for framework in FRAMEWORKS
    }
    return jobs | {f"allocation.{site}.sbatch": both(SITES[site]) for site in SITES}


@pytest.mark.parametrize("name", sorted(rendered()))
def test_is_the_golden_file(name: str) -> None:
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/test_render.py, and read the diff."""
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(rendered()[name])
    assert rendered()[name] == (GOLDEN / name).read_text()


@pytest.mark.parametrize("name", sorted(rendered()))
def test_is_sound_shell(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)
    subprocess.run([Path(sys.executable).with_name("shellcheck"), GOLDEN / name], check=True)


@pytest.mark.parametrize("site", SITES)
def test_the_frameworks_differ_in_name_and_script_only(site: str) -> None:
    one, other = (script(SITES[site], framework).splitlines() for framework in FRAMEWORKS)
    changed = [line[1:] for line in difflib.unified_diff(one, other, n=0) if re.match(r"[+-][^+-]", line)]
    assert len(changed) == 4
    assert {re.sub("pytorch_native|horovod", "X", line) for line in changed} == {
        "#SBATCH --job-name=X.1",
        next(re.sub("pytorch_native|horovod", "X", line) for line in one if "train.py" in line),
    }


@pytest.mark.parametrize("gpus", range(1, 9))
@pytest.mark.parametrize("workers", range(1, 17))
def test_geometry_is_exact_for_every_count(workers: int, gpus: int) -> None:
    shape = geometry(SRUN.model_copy(update={"gpus_per_node": gpus}), workers)
    assert shape.workers == workers
    assert shape.nodes * shape.workers_per_node >= workers
    assert (shape.nodes - 1) * shape.workers_per_node < workers
    assert shape.workers_per_node <= gpus


def test_an_impossible_count_is_refused_with_the_nearest() -> None:
    seven = SRUN.model_copy(update={"max_nodes": 7})
    assert geometry(seven, 14).nodes == 7
    with pytest.raises(UserError, match=r"15 workers need 8 nodes.*nearest possible worker count is 14"):
        geometry(seven, 15)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("2:30", 150), ("02:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("0-0:0:5", 5)],
)
def test_reads_time_limits_as_slurm_does(time: str, seconds: int) -> None:
    assert limit_seconds(time) == seconds


HOSTILE = ["gpu\ntouch /tmp/x", "gpu; x", "$(x)", "`x`", "a b", "a|b", "a&b", "'", '"', "", "ü", "gpu\n"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", ["partition", "account", "time", "gres", "options"])
def test_a_cluster_file_cannot_leave_its_line(key: str, value: str, tmp_path: Path) -> None:
    lines = {
        "launcher": '"srun"', "gpus_per_node": "2", "cores_per_worker": "1", "time": '"10"',
        key: _toml(["--x=" + value] if key == "options" else value),
    }  # fmt: skip
    path = tmp_path / "site.toml"
    path.write_text("\n".join(f"{name} = {text}" for name, text in lines.items()))
    if key == "gres" and value == "":
        assert not read_cluster(path).gres
        return
    if key == "options" and value == "":
        return
    with pytest.raises(UserError, match=rf"site\.toml: {key}"):
        read_cluster(path)


def _toml(value: object) -> str:
    import json

    return json.dumps(value)


@pytest.mark.parametrize(
    "option", ["--nodes=3", "-N3", "--job-name=x", "--wrap=x", "exclusive", "--gres=gpu:1"]
)
def test_options_of_the_geometry_cannot_be_set_aside(option: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'launcher="srun"\ngpus_per_node=2\ncores_per_worker=1\ntime="10"\noptions=["{option}"]')
    with pytest.raises(UserError, match="options"):
        read_cluster(path)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=30))
@example("$(touch hacked)")
@example("`touch hacked`")
@example("a b'c\"d")
@example("x; touch hacked #")
@example("${HOME}&|<>*?")
@example("two\nlines")
@example("-n")
def test_any_path_reaches_the_program_as_it_is_or_is_refused(name: str) -> None:
    """The script is run by a real bash; an srun that prints its arguments stands for Slurm's."""
    folder = f"/logs/{name}"
    try:
        text = script(SRUN, "horovod", folder=folder)
    except UserError:
        assert not folder.isprintable()
        return
    stand_ins = "srun() { printf '%s\\0' \"$@\"; }\nexec() { printf '%s\\0' \"$@\"; }\ncd() { :; }\n"
    done = subprocess.run(["bash", "-c", stand_ins + text], capture_output=True, check=True, timeout=20)
    words = [word.decode() for word in done.stdout.split(b"\0")]
    train, after = words.index("/project/horovod/train.py"), words.index("slurm.after_run")
    assert words[train + 1] == words[after + 1] == folder
    assert done.stderr == b""


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "slurm" / "clusters").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_shipped_cluster_files_are_valid(path: Path) -> None:
    cluster = read_cluster(path)
    assert script(cluster, "horovod", workers=1)
