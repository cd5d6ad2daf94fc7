"""A twin as on a slow host, where forward passes of the training sleep: slow_host.py TRAIN_PY FOLDER."""

import os
import runpy
import sys
from pathlib import Path

import torch

from tests.injected import sleeping
from unet_scaling.model import UNet

SECONDS = 0.2

if __name__ == "__main__":
    with Path(os.devnull).open("w") as unread:
        UNet.forward = sleeping(UNet.forward, torch.is_grad_enabled, SECONDS, unread)  # type: ignore[method-assign]
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
