"""GPUs without one: torch claims them (claimed_site/sitecustomize.py), the commands decide."""

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from slurm.commands import doctor, new, run
from tests.claimed_site.sitecustomize import claim
from tests.studies import make_point, make_run, tiny_study
from unet_scaling.base.errors import UserError
from unet_scaling.group.gpus import gpus_of_torch
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework
from unet_scaling.study.study_file import read_study

pytestmark = pytest.mark.slow
# A program: mypy is to know it by one name.
installation = importlib.import_module("environment.installation")
H100 = "NVIDIA H100 80GB HBM3"
MIG = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
NO_KERNELS = "CUDA error: no kernel image is available for execution on the device\nSearch for `cudaError"
NO_FABRIC = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
)

HELD = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
NO_LIBRARY = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed"


@dataclass
class Machine:
    """A machine with a driver, on which commands run in a folder of their own."""

    folder: Path
    images: Path
    patch: pytest.MonkeyPatch
    told: Callable[[str], None]

    def claim(self, *gpus: str, **variables: str) -> None:
        """Let torch see GPUs of these names, in the processes that are asked."""
        claimed = {"CLAIMED_GPUS": ",".join(gpus), "CLAIMED_NCCL": "1"}
        for name, value in (claimed | variables).items():
            self.patch.setenv(name, value)

    def claim_here(self, *gpus: str, **variables: str) -> None:
        """Let this process answer in their place, since each takes seconds to start."""
        self.claim(*gpus, **variables)
        claim(self.patch.setattr)
        for command in (doctor, installation, new, run):
            self.patch.setattr(command, "visible_gpus", gpus_of_torch)

    def call(self, command: ModuleType, *words: str | Path) -> None:
        self.patch.setattr(sys, "argv", ["", *map(str, words)])
        command.main()

    def study(self, training: str = "") -> list[str | Path]:
        return [tiny_study(self.folder, self.images, more=training), "--logs", self.folder / "logs"]

    def refuses(self, command: ModuleType, *words: str | Path) -> None:
        """Expect one line, and nothing written."""
        with pytest.raises(UserError) as refused:
            self.call(command, *words)
        assert refused.value.exit_code == 2
        assert not (self.folder / "logs").exists()
        self.tell(str(refused.value))

    def tell(self, line: str) -> None:
        assert "\n" not in line
        self.told(line.replace(f" {socket.gethostname()}", " HOST"))


@pytest.fixture
def machine(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[str], None]
) -> Machine:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'tests' / 'claimed_site'}:{PROJECT}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Machine(tmp_path, images, monkeypatch, told)


TWO: Sequence[str] = [H100] * 2


@pytest.mark.parametrize(
    ("gpus", "variables", "training"),
    [
        pytest.param([H100], {}, "", id="one GPU"),
        pytest.param([H100] * 8, {"CUDA_VISIBLE_DEVICES": "1"}, "", id="one of eight is visible"),
        pytest.param([MIG], {}, "", id="MIG"),
        pytest.param([H100], {}, "shared_devices = true", id="shared devices"),
        pytest.param(TWO, {"CLAIMED_NCCL": "0"}, "", id="Horovod without NCCL"),
        pytest.param(TWO, {"CC": "nosuch-cc"}, "compile = true", id="no C compiler"),
        pytest.param(TWO, {"CUDA_VISIBLE_DEVICES": "7"}, "", id="none is visible"),
        pytest.param([], {"CLAIMED_TROUBLE": NO_LIBRARY}, "", id="a container without the driver"),
        pytest.param(TWO, {"CLAIMED_TROUBLE": NO_KERNELS}, "", id="no kernels"),
        pytest.param(TWO, {"CLAIMED_TROUBLE": NO_FABRIC}, "", id="no fabric"),
        pytest.param(TWO, {"CLAIMED_TROUBLE": HELD}, "", id="held"),
        pytest.param(TWO, {"CLAIMED_TROUBLE": "unknown\nreason"}, "", id="unknown"),
    ],
)
def test_what_gpus_cannot_do_is_refused_before_a_worker_starts(
    gpus: Sequence[str], variables: dict[str, str], training: str, machine: Machine
) -> None:
    machine.claim_here(*gpus, **variables)
    machine.refuses(run, *machine.study(training))


def test_what_is_refused_in_the_process_that_is_asked_is_told_as_it_is(machine: Machine) -> None:
    machine.claim(H100, CLAIMED_TROUBLE=TOO_OLD)
    machine.refuses(run, *machine.study())


@pytest.mark.parametrize(
    ("gpus", "variables", "said"),
    [
        pytest.param(2, {}, f"2 GPUs ({H100}), one for each worker", id="two"),
        pytest.param(1, {"CUDA_VISIBLE_DEVICES": ""}, "", id="hidden"),
        pytest.param(1, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "", id="hidden by Slurm"),
        pytest.param(1, {"CLAIMED_BUILD": "cpu"}, "CPU build: workers are CPU workers", id="CPU build"),
    ],
)
def test_a_study_that_fits_is_not_refused(
    gpus: int, variables: dict[str, str], said: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.claim(*[H100] * gpus, **variables)
    machine.call(run, *machine.study(), "--dry-run")
    printed = capsys.readouterr().out
    assert said in printed
    assert ("GPU" in printed) == ("GPU" in said)
    assert "tiny: 4 runs, 4 would start" in printed


@pytest.mark.parametrize("workers", [[1], [1, 2]])
def test_new_writes_no_more_workers_than_gpus(workers: list[int], machine: Machine) -> None:
    machine.claim_here(*[H100] * len(workers))
    machine.patch.setenv("PATH", "")  # without sinfo
    machine.call(new, "mine", "--data", machine.images, "--into", machine.folder, "--no-probe")
    assert read_study(machine.folder / "mine.toml").workers == workers


def test_the_doctor_launches_no_more_workers_than_gpus(machine: Machine) -> None:
    machine.claim_here(H100)
    machine.refuses(doctor, "--local", "--workers", "2")


def test_on_one_gpu_check_tries_one_worker(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.claim_here(H100)
    machine.patch.setattr(installation, "WRAPPERS", ())
    machine.call(installation)
    printed = capsys.readouterr().out
    expected = [f"GPUs  1 GPU ({H100})", *(f"{name}  works: 1 worker, " for name in FRAMEWORKS)]
    assert [part for part in expected if part not in printed] == [], printed


def test_on_one_gpu_the_demo_compares_at_one_worker(machine: Machine) -> None:
    machine.claim(H100, DEMO_LOGS=str(machine.folder / "logs"))
    command = [str(PROJECT / "slurm/demo.sh"), str(machine.images), "--dry-run", "--set", "repeats=1"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "pytorch_native-w01-r1: 1 worker, " in printed
    assert "2 runs, 2 would start" in printed


@pytest.mark.parametrize(
    ("framework", "gpus", "variables"),
    [
        pytest.param("pytorch_native", [H100], {"CLAIMED_TROUBLE": TOO_OLD}, id="driver too old"),
        pytest.param("pytorch_native", [H100], {"CLAIMED_TORCH": "2.10.0"}, id="torch too old"),
        pytest.param("pytorch_native", [], {}, id="none to be used"),
        pytest.param("horovod", [H100], {"CLAIMED_NCCL": "0"}, id="Horovod without NCCL"),
    ],
)
def test_a_worker_whose_gpu_cannot_be_used_does_not_train_on_the_cpu(
    framework: Framework, gpus: Sequence[str], variables: dict[str, str], machine: Machine
) -> None:
    machine.claim(*gpus, CLAIMED_BY_WORKERS="1", **variables)
    folder = make_run(machine.folder / "run", make_point(machine.images, framework, workers=1))
    program = [sys.executable, str(PROJECT / framework / "train.py"), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    machine.tell(line)


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0a0", "2.11.0a0+nv25.12"])
def test_another_torch_is_refused_by_its_release(version: str, machine: Machine) -> None:
    machine.patch.setattr(metadata, "version", lambda _: version)
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    expect = machine.call if version.startswith("2.11") else machine.refuses
    expect(run, *machine.study(), "--dry-run")
