"""Weights on disk and their checksum: tensors only, written whole or not at all, verified when read."""

import hashlib
import io
import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from unet_scaling.errors import EXIT_BAD_DATA, UserError
from unet_scaling.files import read_verified, write_verified

WEIGHTS_NAME = "weights.pt"


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and values of all parameters and buffers."""
    return _digest(model.state_dict())


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the state of `model` as `path`, with its SHA-256 beside it."""
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_verified(path, buffer.getvalue())


def load_weights(model: nn.Module, path: Path) -> None:
    """Read weights that `save_weights` wrote; raises UserError (65) for any other file or another model."""
    try:
        content = read_verified(path)
    except (OSError, ValueError) as error:
        raise UserError(f"weights cannot be read: {error}", EXIT_BAD_DATA) from None
    try:
        model.load_state_dict(torch.load(io.BytesIO(content), weights_only=True, map_location="cpu"))
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} holds weights of another model: {error}", EXIT_BAD_DATA) from None


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
