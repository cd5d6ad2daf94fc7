"""What a record says about where it ran: versions, allocator, variables that decide speed but no secrets."""

import os
import subprocess
import sys

import pytest

from slurm.launch.processes import launch
from unet_scaling import commit
from unet_scaling.group.identity import KEEP_MEMORY
from unet_scaling.group.worker import GLIBC_PREFIX, PRELOAD, speed_variables
from unet_scaling.study.config import PROJECT

FASTER = {
    "NCCL_ALGO": "Ring",
    "HOROVOD_CYCLE_TIME": "0",
    "UCX_TLS": "tcp",
    "OMP_NUM_THREADS": "2",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "ACCELERATE_USE_CPU": "1",
}
OF_THIS_JOB = (
    "PMI_RANK",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_COMM_ID",
    "OMPI_MCA_orte_hnp_uri",
    "I_MPI_PIN_MAPPING",
    "PATH",
)
SECRET = (
    "HOROVOD_SECRET_KEY", "NCCL_AUTH", "TORCH_HUB_TOKEN", "UCX_PASSWORD", "MKL_Credential_File",
    "FI_PASSPHRASE", "OMPI_MCA_btl_x_pass", "PMIX_MCA_cookie",
)  # fmt: skip
ADDRESSES = {"TORCH_MIRROR": "https://me:hush@host/", "TORCH_OTHER": "https://host/file?signature=hush"}


def test_the_commit_is_that_of_the_code_whatever_a_hook_of_git_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    before = commit(PROJECT)
    assert before[0]
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert commit(PROJECT) == before


@pytest.mark.parametrize("name", [*FASTER, *OF_THIS_JOB, *SECRET, *ADDRESSES])
def test_names_the_variables_that_decide_speed_and_none_of_one_job_or_with_a_secret(name: str) -> None:
    value = (FASTER | ADDRESSES).get(name, "1")
    assert speed_variables({name: value}) == ({name: value} if name in FASTER else {})


def test_names_the_mpi_library_without_loading_what_would_start_it() -> None:
    program = "import sys; from unet_scaling.group.worker import versions; print(versions()['mpi']); "
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print('mpi4py.MPI' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    own = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    own += "print(MPI.Get_library_version())"
    named = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [named.stdout.splitlines()[0], "False"]


def test_paths_that_hold_the_id_of_the_job_are_equal_in_equal_jobs() -> None:
    pipes = "CUDA_MPS_PIPE_DIRECTORY"
    threads = "OMP_NUM_THREADS"
    jobs = [{"SLURM_JOB_ID": job, pipes: f"/tmp/mps-{job}/17", threads: "7"} for job in ("7", "8")]
    expected = {pipes: "/tmp/mps-JOB/17", threads: "7"}
    assert [speed_variables(job) for job in jobs] == [expected, expected]


def test_long_and_unprintable_values_stay_short_printable_and_distinct() -> None:
    values = ["a" * 5000 + last for last in "xy"]
    found = [speed_variables({"NCCL_X": value})["NCCL_X"] for value in values]
    assert found[0] != found[1]
    assert max(map(len, found)) <= 250
    assert speed_variables({"NCCL_X": "a\nb\x1b[31m"})["NCCL_X"].isprintable()


def without_settings() -> dict[str, str]:
    """This environment as if nobody had set anything of the allocator."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEEP_MEMORY and not name.startswith(GLIBC_PREFIX)
    }


def test_the_local_launcher_sets_them_for_its_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("launch") / "output.log"
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    assert launch(["-c", program], 1, output, cores_each=None) == 0
    for name, value in KEEP_MEMORY.items():
        assert f'"{name}": "{value}"' in output.read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_the_record_gets_the_settings_and_what_was_preloaded_indeed() -> None:
    program = "from unet_scaling.group.worker import allocator_settings; print(allocator_settings())"
    plain = {name: value for name, value in without_settings().items() if name != PRELOAD}
    chosen = {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "/no/such/liballocator.so:libutil.so.1"}
    for environment, expected in (
        ({}, {}),
        (chosen, {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "libutil.so.1"}),
    ):
        command = [sys.executable, "-c", program]
        told = subprocess.run(
            command, cwd=PROJECT, env=plain | environment, capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == str(expected)
