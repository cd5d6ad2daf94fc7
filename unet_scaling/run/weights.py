"""Weights on disk and their checksum: tensors only, written whole or not at all, verified when read."""

import hashlib
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.files import read_verified, write_verified

WEIGHTS_NAME = "weights.pt"
# What torch.load raises for files of other content, by what it takes them for.
NO_TENSORS = (
    RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, struct.error,
)  # fmt: skip
# torch's own message may list every layer.
MOST_MESSAGE_CHARACTERS = 200


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 over names, types, shapes and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
        state = unpack_state(content)
        other_types = [type(value).__name__ for value in state.values() if not isinstance(value, Tensor)]
        if other_types:
            raise ValueError(f"it holds a {other_types[0]} beside tensors: a checkpoint?")
    except ValueError as error:
        raise UserError(f"{path} holds no weights: {error}", EXIT_BAD_DATA) from None
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{path} holds weights of another model: {one_line(error)}", EXIT_BAD_DATA) from None


def unpack_state(content: bytes) -> dict[str, Any]:
    """Return the dictionary that `torch.save` packed; ValueError, in one line, for any other content."""
    if not content:
        raise ValueError("it is empty")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:
        # Its message advises to unpack the file in a way that runs code.
        raise ValueError("it cannot be unpacked (not tensors alone)") from None
    except NO_TENSORS as error:
        raise ValueError(f"it cannot be unpacked ({one_line(error)})") from None
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a dictionary of tensors")
    return state


def one_line(error: Exception) -> str:
    """Return the beginning of what a library said, or the name of its error where it said nothing."""
    text = " ".join(str(error).split())
    return text[:MOST_MESSAGE_CHARACTERS] if text else type(error).__name__
