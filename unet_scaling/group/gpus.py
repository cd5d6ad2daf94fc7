"""The torch of this environment, and the GPUs that it gives to the workers of this machine.

Torch itself is asked what workers get, in a process of its own that uses each GPU once: a
driver that is too old, or a GPU that another process holds, is one sentence before anything is launched.
Imported on login nodes: needs no torch. `python -m unet_scaling.group.gpus` prints the number of GPUs.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from unet_scaling import CODE_FOLDER, IS_CLONE, PROJECT
from unet_scaling.base.errors import EXIT_USAGE, UserError, run_program
from unet_scaling.base.texts import HIDE, count

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# The Windows Subsystem for Linux has this file instead of that one and of those of the devices.
WSL_DEVICE = Path("/dev/dxg")
VISIBLE = "CUDA_VISIBLE_DEVICES"
# The variable begins with one of these where GPUs are hidden; Slurm writes the last.
HIDING = ("", "-1", "NoDevFiles")
ANOTHER_TORCH = "TORCH_SPEC of environment/install.sh"
LEAVE_OUT = f"leave this GPU out of {VISIBLE}"
# What helps, by the error that torch gives.
CUDA_CURES = {
    "driver .* too old": f"install a newer driver, or a torch for an older CUDA ({ANOTHER_TORCH})",
    "no kernel image": f"{LEAVE_OUT}, install a torch that has kernels for it ({ANOTHER_TORCH})",
    "no NVIDIA driver": "libcuda is missing: a container needs --gpus all, --nv or alike",
    "not yet initialized": "start nvidia-fabricmanager on this machine",
    "busy or unavailable|out of memory": f"wait for the process that holds it (nvidia-smi), {LEAVE_OUT}",
    "No CUDA GPUs": f"{VISIBLE} has to name GPUs as nvidia-smi -L lists them",
    "": "see whether nvidia-smi works here",
}
# Torch is imported and the driver started in some; a fabric that is broken may take for ever.
ANSWER_SECONDS = 120


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a process of this machine sees: their names, or a remark on why there are none.

    `horovod` says what Horovod is built with; empty where there are no GPUs, or no Horovod.
    """

    names: tuple[str, ...] = ()
    horovod: str = ""
    remark: str = ""

    def __str__(self) -> str:
        if not self.names:
            return self.remark
        kinds = ", ".join(dict.fromkeys(self.names))
        return f"{count(len(self.names), 'GPU')} ({kinds}), one for each worker"

    def most(self, workers: int) -> int:
        """Return how many of so many workers have a GPU each; all where there are no GPUs."""
        return min(workers, len(self.names)) if self.names else workers

    def require_one_each(self, asking: str, workers: int, shared_devices: bool = False) -> None:
        """Raise UserError where workers would share a GPU, which NCCL refuses for every framework."""
        if workers <= self.most(workers):
            return
        shown = f"this machine shows {len(self.names)}"
        if any("MIG" in name for name in self.names):
            shown += " (MIG: NCCL takes one instance on a machine)"
        if shared_devices:
            shown += ", and NCCL takes no two workers on one, whatever training.shared_devices says"
        most = f"the largest worker count here is {len(self.names)}"
        raise UserError(f"{asking}: workers = {workers} need {workers} GPUs, {shown}; {most}, or {HIDE}")


def visible_gpus(workers: int) -> Gpus:
    """Return the GPUs that workers on this machine will see. Raises UserError where torch cannot use theirs.

    Each of so many workers takes one. A machine without an NVIDIA driver is not asked.
    """
    has_driver = NVIDIA_DRIVER.exists() or WSL_DEVICE.exists() or shutil.which("nvidia-smi")
    if _are_hidden() or not has_driver:
        return Gpus()
    command = [sys.executable, "-m", "unet_scaling.group.gpus", "--ask-torch", str(workers)]
    try:
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"torch has not said in {ANSWER_SECONDS} s which GPUs there are"
        raise UserError(f"{problem}; {CUDA_CURES['']}, or {HIDE}") from None
    if done.returncode:
        said = (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1].removeprefix("error: ")
        is_told = done.returncode == EXIT_USAGE
        raise UserError(said if is_told else f"torch cannot say which GPUs there are ({said}); {HIDE}")
    # Libraries may print before.
    found = json.loads(done.stdout.splitlines()[-1])
    return Gpus(tuple(found["names"]), found["horovod"], found["remark"])


def gpus_of_torch(workers: int) -> Gpus:
    """Return the GPUs that torch sees in this process, and use one for each worker. Raises UserError."""
    import torch

    from unet_scaling.group.rendezvous import built_with, twin_functions

    cpu_workers = "workers are CPU workers, though there is an NVIDIA driver"
    if torch.version.cuda is None:
        cure = f"{ANOTHER_TORCH} names a CUDA build"
        return Gpus(remark=f"torch {torch.__version__} is a CPU build: {cpu_workers}; {cure}")
    visible = gpu_count()
    for index in range(min(workers, visible)):
        use_gpu(index)
    names = tuple(torch.cuda.get_device_properties(index).name for index in range(visible))
    if not names:
        cure = "a container needs --gpus all or alike, a job --gres=gpu:N"
        return Gpus(remark=f"this process has no GPU: {cpu_workers}; {cure}")
    horovod = ""
    with suppress(ImportError):  # a study of native DDP needs none
        horovod = built_with(twin_functions("horovod")["hvd"])
    return Gpus(names, horovod)


def gpu_count() -> int:
    """Return how many GPUs this process sees.

    Raises UserError where there are GPUs, not hidden from it, and torch cannot use them: to go on would be
    to train on the CPU in silence.
    """
    import torch

    is_given = torch.version.cuda is not None and not _are_hidden() and _opens_a_gpu()
    if not torch.cuda.device_count() and not is_given:
        return 0
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UserError(_cuda_trouble("the GPUs", str(error))) from None
    # NVML, by which device_count may count, sees all MIG instances; CUDA gives a process only one.
    return len(torch.cuda.default_generators)


def use_gpu(index: int) -> None:
    """Make a GPU that of this process, and compute a sum on it. Raises UserError."""
    import torch

    try:
        torch.cuda.set_device(index)
        total = torch.ones(2, device=torch.device("cuda", index)).sum().item()
    except RuntimeError as error:
        raise UserError(_cuda_trouble(f"GPU {index}", str(error))) from None
    assert total == 2, f"GPU {index}: 1 + 1 = {total}"


def _cuda_trouble(which: str, text: str) -> str:
    """Return in one line which GPUs cannot be used, the error of torch, and the cure."""
    numbered = re.search(r"Error \d+: .*", text)
    said = numbered.group() if numbered else text.splitlines()[0].partition(". ")[0]
    cure = next(cure for pattern, cure in CUDA_CURES.items() if re.search(pattern, said))
    return f"{which} of {socket.gethostname()} cannot be used: {said}; {cure}, or {HIDE}"


def _are_hidden() -> bool:
    return os.environ.get(VISIBLE, "any").partition(",")[0].strip() in HIDING


def _opens_a_gpu() -> bool:
    """Return whether the kernel lets this process use a GPU, as it does not in a container or job without."""
    for path in (*Path("/dev").glob("nvidia[0-9]*"), WSL_DEVICE):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR))
            return True
    return False


def cure_of_sharing(on_gpus: bool) -> str:
    """Return what to do where workers share a device."""
    if on_gpus:
        return f"NCCL takes each GPU once: start fewer workers on a node, or {HIDE}"
    return "give each worker its own, or set training.shared_devices = true"


def require_torch(version: str) -> None:
    """Raise UserError for a torch whose release is none that the project's dependencies allow.

    Of pre-releases too, as in NVIDIA's containers (2.11.0a0+nv25.12), the release counts.
    """
    if IS_CLONE:
        project = tomllib.loads((CODE_FOLDER / "pyproject.toml").read_text())["project"]
        requirements = project["dependencies"]
    else:
        requirements = metadata.requires("unet-scaling") or []
    allowed = next(each for each in requirements if re.match("torch[<>]", each))
    bounds = dict(re.findall(r"(>=|<)2\.(\d+)", allowed))
    oldest, beyond = int(bounds[">="]), int(bounds["<"])
    release = re.match(r"2\.(\d+)", version)
    if release is None or not oldest <= int(release[1]) < beyond:
        cure = "run environment/install.sh, without TORCH_SPEC or with one of these"
        raise UserError(f"torch: found {version}; allowed: 2.{oldest} to 2.{beyond - 1}; {cure}")


def require_compiler(on_gpus: bool) -> None:
    """Raise UserError where the compiler is missing that training.compile needs: for Triton, or on CPUs.

    To go on without would compare a worker that is compiled with one that is not.
    """
    variable, language, usual = ("CC", "C", ["gcc", "clang"]) if on_gpus else ("CXX", "C++", ["g++"])
    named = os.environ.get(variable)
    compilers = [named] if named else usual
    if not any(map(shutil.which, compilers)):
        found = f"{socket.gethostname()} has no {' or '.join(map(repr, compilers))}"
        raise UserError(
            f"training.compile = true needs a {language} compiler on every node, but {found}; load one, name "
            f"it in {variable}, or set training.compile = false"
        )


def main() -> None:
    if sys.argv[1:2] == ["--ask-torch"]:
        print(json.dumps(asdict(gpus_of_torch(int(sys.argv[2])))))
    else:
        print(len(visible_gpus(0).names))


if __name__ == "__main__":
    run_program(main)
