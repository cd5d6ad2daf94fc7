"""GPUs without one: the environment's torch claims them (claimed/sitecustomize.py), real commands decide."""

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.studies import make_images, make_point, make_run, tiny_study
from unet_scaling.group.gpus import use_gpu
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study

pytestmark = pytest.mark.slow
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
HOST = socket.gethostname()


@dataclass
class Machine:
    """A machine with a driver, on which commands run in a folder of their own."""

    folder: Path
    images: Path
    patch: pytest.MonkeyPatch

    def claim(self, *gpus: str, **variables: str) -> None:
        """Let torch see GPUs of these names."""
        claimed = {"CLAIMED_GPUS": ",".join(gpus), "CLAIMED_NCCL": "1"}
        for name, value in (claimed | variables).items():
            self.patch.setenv(name, value)

    def study(self, training: str = "") -> str:
        return str(tiny_study(self.folder, self.images, more=training))

    def call(self, command: str, *words: str | Path) -> None:
        self.patch.setattr(sys, "argv", [f"unet-scaling {command}", *map(str, words)])
        importlib.import_module(f"slurm.commands.{command}").main()

    def refusal(self, command: str, *words: str | Path) -> str:
        """Return with which line it is refused, and that nothing was written."""
        with pytest.raises(UserError) as refused:
            self.call(command, *words)
        assert refused.value.exit_code == 2
        assert not (self.folder / "logs").exists()
        return one_line(str(refused.value))


def one_line(text: str) -> str:
    assert "\n" not in text
    return text.replace(f" {HOST}", " HOST")


@pytest.fixture(scope="module")
def some_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), 24)


@pytest.fixture
def machine(some_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'tests' / 'claimed'}:{PROJECT}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Machine(tmp_path, some_images, monkeypatch)


@pytest.mark.parametrize(
    ("gpus", "variables", "training"),
    [
        pytest.param([H100], {}, "", id="one GPU"),
        pytest.param([H100] * 8, {"CUDA_VISIBLE_DEVICES": "1"}, "", id="one of eight is visible"),
        pytest.param([MIG], {}, "", id="MIG"),
        pytest.param([H100], {}, "shared_devices = true", id="shared devices"),
        pytest.param([H100] * 2, {"CLAIMED_NCCL": "0"}, "", id="Horovod without NCCL"),
        pytest.param([H100] * 2, {"CC": "nosuch-cc"}, "compile = true", id="no C compiler"),
        pytest.param([H100] * 2, {"CUDA_VISIBLE_DEVICES": "7"}, "", id="none is visible"),
        pytest.param([H100], {"CLAIMED_TROUBLE": TOO_OLD}, "", id="driver too old"),
        pytest.param([H100], {"CLAIMED_TROUBLE": NO_KERNELS}, "", id="no kernels"),
        pytest.param([], {"CLAIMED_TROUBLE": NO_LIBRARY}, "", id="a container without the driver"),
    ],
)
def test_what_gpus_cannot_do_is_refused_before_a_worker_starts(
    gpus: Sequence[str],
    variables: dict[str, str],
    training: str,
    machine: Machine,
    told: Callable[..., None],
) -> None:
    machine.claim(*gpus, **variables)
    told(machine.refusal("run", machine.study(training), "--logs", machine.folder / "logs"))


@pytest.mark.parametrize("text", [NO_FABRIC, HELD, "unknown\nreason"], ids=["no fabric", "held", "unknown"])
def test_what_cuda_says_is_told_in_one_line_with_its_cure(
    text: str, monkeypatch: pytest.MonkeyPatch, told: Callable[..., None]
) -> None:
    def fail(_: int) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "set_device", fail)
    with pytest.raises(UserError) as refused:
        use_gpu(1)
    told(one_line(str(refused.value)))


@pytest.mark.parametrize(
    ("gpus", "variables", "said"),
    [
        pytest.param(2, {}, f"2 GPUs ({H100}), one for each worker", id="two"),
        pytest.param(8, {}, f"8 GPUs ({H100}), one for each worker", id="eight"),
        pytest.param(1, {"CUDA_VISIBLE_DEVICES": ""}, "", id="hidden"),
        pytest.param(1, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "", id="hidden by Slurm"),
        pytest.param(1, {"CLAIMED_BUILD": "cpu"}, "CPU build: workers are CPU workers", id="CPU build"),
    ],
)
def test_a_study_that_fits_is_not_refused(
    gpus: int, variables: dict[str, str], said: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.claim(*[H100] * gpus, **variables)
    machine.call("run", machine.study(), "--logs", machine.folder / "logs", "--dry-run")
    printed = capsys.readouterr().out
    assert said in printed
    assert ("GPU" in printed) == ("GPU" in said)
    assert "tiny: 4 runs, 4 would start" in printed


@pytest.mark.parametrize("workers", [[1], [1, 2]])
def test_new_writes_no_more_workers_than_gpus(workers: list[int], machine: Machine) -> None:
    machine.claim(*[H100] * len(workers))
    machine.patch.setenv("PATH", str(machine.folder / "bin"))  # without sinfo
    machine.call("new", "mine", "--data", machine.images, "--into", machine.folder, "--no-probe")
    assert read_study(machine.folder / "mine.toml").workers == workers


def test_the_doctor_launches_no_more_workers_than_gpus(machine: Machine, told: Callable[..., None]) -> None:
    machine.claim(H100)
    told(machine.refusal("doctor", "--local", "--workers", "2"))


def test_on_one_gpu_the_demo_compares_at_one_worker_and_check_tries_one(machine: Machine) -> None:
    machine.claim(H100, DEMO_LOGS=str(machine.folder / "logs"))
    demo = [str(PROJECT / "slurm/demo.sh"), str(machine.images), "--dry-run", "--set", "repeats=1"]
    check = [sys.executable, "-m", "unet_scaling", "check"]
    tried = [f"{name} works: 1 worker, " for name in FRAMEWORKS]
    for command, parts in (
        (demo, ["pytorch_native-w01-r1: 1 worker, ", "2 runs, 2 would start"]),
        (check, [f"GPUs  1 GPU ({H100})", *tried]),
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [part for part in parts if part not in done.stdout] == [], done.stdout


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
    framework: Framework,
    gpus: Sequence[str],
    variables: dict[str, str],
    machine: Machine,
    told: Callable[..., None],
) -> None:
    machine.claim(*gpus, CLAIMED_BY_WORKERS="1", **variables)
    folder = make_run(machine.folder / "run", make_point(machine.images, framework, workers=1))
    program = [sys.executable, str(PROJECT / framework / "train.py"), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    told(one_line(line))


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0a0", "2.11.0a0+nv25.12"])
def test_another_torch_is_refused_by_its_release(
    version: str, machine: Machine, told: Callable[..., None]
) -> None:
    metadata = machine.folder / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    machine.patch.syspath_prepend(machine.folder)
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["run", machine.study(), "--logs", str(machine.folder / "logs"), "--dry-run"]
    if version.startswith("2.11"):
        machine.call(*words)
    else:
        told(machine.refusal(*words))
