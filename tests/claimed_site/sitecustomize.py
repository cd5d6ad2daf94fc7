"""Let torch claim GPUs, in every Python that is started with this folder on its PYTHONPATH (test_gpus.py).

CLAIMED_GPUS names the machine's GPUs, separated by commas, of which CUDA_VISIBLE_DEVICES chooses by number;
CLAIMED_TROUBLE is what CUDA says as torch initialises it, or where it begins with "CUDA error", as a GPU is
used. CLAIMED_NCCL=1 builds Horovod with NCCL; with CLAIMED_BUILD=cpu torch is a CPU build, and CLAIMED_TORCH
is its version. Without CLAIMED_BY_WORKERS only the process that is asked claims any.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def claim(put: Callable[[Any, str, Any], None]) -> None:
    """Put the claims of these variables in the place of what torch and Horovod say, by setattr or alike."""
    import horovod.torch
    import torch

    gpus = list(filter(None, os.environ["CLAIMED_GPUS"].split(",")))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(gpus))))).split(",")
    names = [gpus[int(number)] for number in chosen if number.isdecimal() and int(number) < len(gpus)]
    trouble = os.environ.get("CLAIMED_TROUBLE", "")
    by_device = trouble if trouble.startswith("CUDA error") else ""
    by_driver = trouble.removeprefix(by_device) or ("" if names else "No CUDA GPUs are available")
    make_ones = torch.ones

    def fail(text: str) -> None:
        if text:
            raise RuntimeError(text)

    put(torch, "__version__", os.environ.get("CLAIMED_TORCH", torch.__version__))
    put(torch.version, "cuda", None if os.environ.get("CLAIMED_BUILD") == "cpu" else "13.0")
    put(torch.cuda, "device_count", lambda: len(names) if torch.version.cuda else 0)
    put(torch.cuda, "init", lambda: fail(by_driver))
    put(torch.cuda, "default_generators", tuple(names))
    put(torch.cuda, "set_device", lambda _: fail(by_device))
    put(torch.cuda, "is_initialized", lambda: bool(names))
    put(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=names[index]))
    put(torch, "ones", lambda *size, device=None: make_ones(*size))
    put(horovod.torch, "nccl_built", lambda: os.environ["CLAIMED_NCCL"] == "1")
    # The kernel lets this process open a GPU.
    glob: Any = Path.glob
    opened = [Path(os.devnull)]
    put(Path, "glob", lambda self, *given: opened if str(self) == "/dev" else glob(self, *given))


if "--ask-torch" in sys.orig_argv or "CLAIMED_BY_WORKERS" in os.environ:
    claim(setattr)
