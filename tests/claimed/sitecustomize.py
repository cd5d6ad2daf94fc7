"""Let torch claim GPUs, in every Python that is started with this folder on its PYTHONPATH (test_gpus.py).

CLAIMED_GPUS names the machine's GPUs, separated by commas, of which CUDA_VISIBLE_DEVICES chooses by number;
CLAIMED_TROUBLE is what CUDA says as torch initialises it, or where it begins with "CUDA error", as a GPU is
used. CLAIMED_NCCL=1 builds Horovod with NCCL; with CLAIMED_BUILD=cpu torch is a CPU build, and CLAIMED_TORCH
is its version. Without CLAIMED_BY_WORKERS only the process that is asked claims any.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

TROUBLE = os.environ.get("CLAIMED_TROUBLE", "")


def claim_gpus(torch: Any) -> None:
    gpus = list(filter(None, os.environ["CLAIMED_GPUS"].split(",")))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(gpus))))).split(",")
    names = [gpus[int(number)] for number in chosen if number.isdecimal() and int(number) < len(gpus)]
    make_ones = torch.ones
    by_device = TROUBLE if TROUBLE.startswith("CUDA error") else ""
    by_driver = TROUBLE.removeprefix(by_device) or ("" if names else "No CUDA GPUs are available")

    def fail(text: str) -> None:
        if text:
            raise RuntimeError(text)

    torch.__version__ = os.environ.get("CLAIMED_TORCH", torch.__version__)
    torch.version.cuda = None if os.environ.get("CLAIMED_BUILD") == "cpu" else "13.0"
    torch.cuda.device_count = lambda: len(names) if torch.version.cuda else 0
    torch.cuda.init = lambda: fail(by_driver)
    torch.cuda.default_generators = tuple(names)
    torch.cuda.set_device = lambda _: fail(by_device)
    torch.cuda.is_initialized = lambda: bool(names) and "unet_scaling" in sys._getframe(1).f_code.co_filename
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(name=names[index])
    torch.ones = lambda *size, device=None: make_ones(*size)


def claim_nccl(horovod: Any) -> None:
    horovod.nccl_built = lambda: os.environ.get("CLAIMED_NCCL") == "1"


CLAIMS = {"torch": claim_gpus, "horovod.torch": claim_nccl}


class Claiming:
    """Finds these modules as the others would, and changes them once they are loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        claim = CLAIMS.pop(name, None)
        spec = find_spec(name) if claim else None
        if claim is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_claim(module: ModuleType) -> None:
            load(module)
            claim(module)

        spec.loader.exec_module = load_and_claim  # type: ignore[method-assign]
        return spec


if "--ask-torch" in sys.orig_argv or "CLAIMED_BY_WORKERS" in os.environ:
    sys.meta_path.insert(0, Claiming())
    # The kernel lets this process open a GPU.
    glob: Any = Path.glob
    opened = [Path(os.devnull)]
    kernel: Any = lambda self, *given: opened if str(self) == "/dev" else glob(self, *given)  # noqa: E731
    Path.glob = kernel  # type: ignore[method-assign]
