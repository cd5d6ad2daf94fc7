"""All that a step can read or change in this process, to be restored or compared by digest.

A worker that trains as several has buffers and generators of its own for each worker that it plays. The
gradients of their passes add up to those that as many real workers would average. What a real worker has for
itself besides are the buffers of its network, such as the running statistics of batch norm, and the
generators that its passes draw from, as dropout does.

Weights on disk are tensors only, written whole or not at all, and verified when read.
"""

import hashlib
import io
import os
import pickle
import random
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_BUG, UserError, reason_of
from unet_scaling.base.files import read_verified, write_verified
from unet_scaling.data.batches import sample_sha256
from unet_scaling.group.group import Group, wait_for_device
from unet_scaling.group.worker import FLOAT32_BACK_ENDS, float32_precision
from unet_scaling.study.options import WORKER_STREAM

# The state of each generator by its name: tensors, numbers and tuples of them.
Generators = dict[str, Any]
# So many characters of a digest tell two states apart.
COMPARED_CHARACTERS = 16
MOST_SHOWN_NAMES = 5
PLAYED_STATISTICS = "played_statistics"
# Settings of the whole process that a framework may change, and with them result or speed of a step.
PROCESS_SETTINGS: Mapping[str, Callable[[], object]] = {
    "threads": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "cudnn": lambda: [
        getattr(torch.backends.cudnn, key) for key in ("enabled", "benchmark", "deterministic")
    ],
    "float32 precision": float32_precision,
    "autocast": lambda: [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
}
# cuBLAS and cuDNN obey it, whatever torch asks for.
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
# Compute capability: Ampere.
FIRST_WITH_TF32 = 8
WEIGHTS_NAME = "weights.pt"
# Errors of torch.load for files of other content; which one depends on what it takes them for.
NO_TENSORS = (
    RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, struct.error,
)  # fmt: skip
# torch's own message may list every layer.
MOST_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class Trained:
    """The state that training changes: network, optimizer, and the generators of each played worker.

    `own_state` returns what each worker has for itself beside them, `set_own_state` takes it back; with
    `is_shared`, weights and optimizer are equal on all workers.
    """

    model: nn.Module
    optimizer: Optimizer
    played_generators: list[Generators] = field(default_factory=list)
    own_state: Callable[[], list[dict[str, Any]]] = list
    set_own_state: Callable[[list[dict[str, Any]]], None] = lambda _: None
    is_shared: bool = True


def set_float32_precision(asked: str) -> None:
    """Let float32 mean what training.precision asks for, in all back ends, and read it back.

    torch would else allow TF32 in the convolutions of a GPU. Each back end is set by its name: in torch 2.11
    the one setting for all leaves out convolutions. The former settings are set alike, since what reads them
    (torch.compile) is refused where the two differ. Raises UserError where a back end does not follow.
    """
    precision = "tf32" if asked == "tf32" else "ieee"
    torch.set_float32_matmul_precision("high" if asked == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = asked == "tf32"
    torch.backends.fp32_precision = precision  # type: ignore[attr-defined]
    for name in FLOAT32_BACK_ENDS:
        attrgetter(name)(torch.backends).fp32_precision = precision
    differing = {name: found for name, found in float32_precision().items() if found != precision}
    if asked == "tf32" and torch.cuda.is_available():
        if os.environ.get(TF32_VARIABLE) == "0":
            differing[f"{TF32_VARIABLE}=0"] = "ieee"
        if torch.cuda.get_device_capability()[0] < FIRST_WITH_TF32:
            differing[torch.cuda.get_device_name()] = "ieee"
    if differing:
        found = ", ".join(f"{name} gives {value!r}" for name, value in differing.items())
        raise UserError(
            f"training.precision = {asked!r} needs {precision!r} of every back end, but on "
            f"{socket.gethostname()} {found}; ask for another precision, or unset {TF32_VARIABLE}"
        )


def generators() -> Generators:
    """Return the state of every generator that a step may draw from: torch's, Python's and numpy's."""
    _, key, *rest = np.random.get_state()
    state = {
        "cpu": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(key, dtype=np.int64)), *rest),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_generators(state: Generators) -> None:
    """Set the generators to a state that `generators` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    key, *rest = state["numpy"]
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), *rest))


def seed_generators(seed: int, rank: int) -> None:
    """Seed all generators for one worker: a function of the seed of the run and the rank."""
    numbers = np.random.SeedSequence((seed, rank, WORKER_STREAM)).generate_state(3, np.uint64).tolist()
    torch.manual_seed(numbers[0])
    random.seed(numbers[1])
    np.random.seed(numbers[2] % 2**32)


def buffer_places(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return the name of each buffer, the module that has it, and under which key.

    A forward pass may put another tensor there, and so may a framework.
    """
    paths = ((name, *name.rpartition(".")[::2]) for name, _ in model.named_buffers())
    return [(name, model.get_submodule(parent), key) for name, parent, key in paths]


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of the model and all generators at the end."""
    drawn = generators()
    try:
        with unchanged_buffers(model):
            yield
    finally:
        set_generators(drawn)


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of the model at the end, also where a pass puts another tensor in their place."""
    kept = [(module, key, module.get_buffer(key)) for _, module, key in buffer_places(model)]
    contents = [buffer.clone() for _, _, buffer in kept]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, key, buffer), content in zip(kept, contents, strict=True):
                module._buffers[key] = buffer.copy_(content)


def state_digests(trained: Trained) -> dict[str, str]:
    """Return a digest of every part of the state of training, by a name that tells a reader what it is."""
    model = trained.model
    digests = {}
    for name, weight in model.named_parameters():
        digests[f"weight {name}"] = sample_sha256((weight, weight.requires_grad, weight.grad is None))
    for name, buffer in model.named_buffers():
        digests[f"buffer {name}"] = sample_sha256(buffer)
    names = {id(weight): name for name, weight in model.named_parameters()}
    optimizer = trained.optimizer
    state = optimizer.state_dict()
    for number, group in enumerate(state["param_groups"]):
        weights = [names.get(id(weight), "?") for weight in optimizer.param_groups[number]["params"]]
        options = {key: group[key] for key in sorted(group) if key != "params"}
        digests[f"optimizer group {number}"] = sample_sha256((weights, options))
        for name, index in zip(weights, group["params"], strict=True):
            if index in state["state"]:
                digests[f"optimizer state of {name}"] = sample_sha256(state["state"][index])
    raw: Any = getattr(optimizer, "optimizer", optimizer)
    hooks = len(raw._optimizer_step_pre_hooks), len(raw._optimizer_step_post_hooks)
    digests["optimizer hooks"] = sample_sha256(hooks)
    for place, states in enumerate([generators(), *trained.played_generators]):
        whose = f" of played worker {place - 1}" if place else ""
        digests |= {f"generator {name}{whose}": sample_sha256(each) for name, each in states.items()}
    digests |= {f"setting {name}": sample_sha256(value()) for name, value in PROCESS_SETTINGS.items()}
    return digests


def require_unchanged(before: Mapping[str, str], trained: Trained, group: Group, by: str) -> None:
    """Raise UserError on every worker alike where the state on any of them is not what it was `before`.

    `by` tells what was done in between. So do weights or optimizer that differ between workers after it.
    """
    wait_for_device(group.device)
    after = state_digests(trained)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    shared = {name: {after[name]} for name in sorted(after) if name.startswith(("weight ", "optimizer "))}
    texts = group.gather_strings(some_of(changed))
    if (
        trained.is_shared
        and not any(texts)
        and len(set(group.gather_strings(sample_sha256(list(shared.values()))))) > 1
    ):
        texts = [f"{some_of(names_that_differ(shared, group))} (workers differ)"]
    if any(texts):
        found = next(filter(None, texts))
        raise UserError(f"{by} has changed {found}: frameworks would not train the same", EXIT_BUG)


def names_that_differ(own: Mapping[str, Collection[str]], group: Group) -> list[str]:
    """Return the names with more than one digest over all workers, who have the same names in one order."""
    short = [",".join(digest[:COMPARED_CHARACTERS] for digest in digests) for digests in own.values()]
    of_workers = [text.split() for text in group.gather_strings(" ".join(short))]
    of_names = zip(own, *of_workers, strict=True)
    return [name for name, *found in of_names if len(set(",".join(found).split(","))) > 1]


def some_of(names: Collection[str]) -> str:
    """Return the first of these names as text, and how many more there are."""
    more = f" and {len(names) - MOST_SHOWN_NAMES} more" if len(names) > MOST_SHOWN_NAMES else ""
    return f"{', '.join(list(names)[:MOST_SHOWN_NAMES])}{more}"


class PlayedStatistics(nn.Module):
    """The buffers of a network for each played worker, [players, ...] each; no part of its state_dict."""

    def __init__(self, model: nn.Module, players: int) -> None:
        super().__init__()
        self.generators = [generators() for _ in range(players)]
        self.places = buffer_places(model)
        for number, buffer in enumerate(list(model.buffers())):
            copies = buffer.expand(players, *buffer.shape).clone()
            self.register_buffer(f"of_buffer{number}", copies, persistent=False)

    @contextmanager
    def acting(self, player: int) -> Iterator[None]:
        """Let the network have the buffers and generators of this player; keep what becomes of them."""
        for (_, module, key), copies in zip(self.places, self.buffers(), strict=True):
            module.get_buffer(key).copy_(copies[player])
        set_generators(self.generators[player])
        yield
        self.generators[player] = generators()
        for (_, module, key), copies in zip(self.places, self.buffers(), strict=True):
            copies[player].copy_(module.get_buffer(key))


def played_statistics(model: nn.Module) -> PlayedStatistics | None:
    """Return the statistics of the workers that a network or its replica plays; None where it is one."""
    return next((part for part in model.modules() if isinstance(part, PlayedStatistics)), None)


def seed_workers(model: nn.Module, seed: int, rank: int) -> list[Generators]:
    """Seed the generators of this worker, and return those of each that it plays: by seed and rank alone."""
    played = played_statistics(model)
    of_players = played.generators if played else []
    for player in range(len(of_players)):
        seed_generators(seed, rank * len(of_players) + player)
        of_players[player] = generators()
    if not of_players:
        seed_generators(seed, rank)
    return of_players


def copies_of_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return each buffer by its name, [players, ...]: as every worker has it that is played here, or one."""
    played = played_statistics(model)
    if played is None:
        return {name: buffer[None] for name, buffer in model.named_buffers()}
    return {name: copies for (name, *_), copies in zip(played.places, played.buffers(), strict=True)}


def buffers_that_differ(model: nn.Module, group: Group) -> list[str]:
    """Return the names of buffers that are not equal on all workers, real and played: they can be averaged.

    Raises UserError, on every worker alike, where one of them holds no floats, or is not part of the weights.
    """
    copies = copies_of_buffers(model)
    digests = {name: {sample_sha256(each) for each in of_workers} for name, of_workers in copies.items()}
    differing = names_that_differ(digests, group)
    played = played_statistics(model)
    places = played.places if played else buffer_places(model)
    unsaved = {name for name, module, key in places if key in module._non_persistent_buffers_set}
    others = [name for name in differing if name in unsaved or not copies[name].is_floating_point()]
    if others:
        raise UserError(
            f"buffer {some_of(others)}: workers differ in it, and only persistent floats are averaged; "
            "make it one, or let it depend on no sample"
        )
    return differing


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
    write_verified(path, pack_state(state))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read weights that `save_weights` wrote; raises UserError (65) for any other file or another model."""
    try:
        content = read_verified(path)
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or path
        cure = "bring back the file and the .sha256 beside it"
        raise UserError(
            f"weights {place} cannot be read: {reason_of(error)}; {cure}", EXIT_BAD_DATA
        ) from None
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


def pack_state(state: dict[str, Any]) -> bytes:
    """Return a dictionary of tensors as `torch.save` packs it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """Return the dictionary that `pack_state` packed; ValueError, in one line, for any other content."""
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
