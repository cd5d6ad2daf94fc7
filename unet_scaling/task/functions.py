"""The functions of a task's file: how they are called, and how errors name them, with file and line."""

import hashlib
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError, or_user_error
from unet_scaling.base.files import read_regular
from unet_scaling.base.texts import did_you_mean
from unet_scaling.data.batches import Batch
from unet_scaling.data.images import SHOWN_DIGEST_CHARACTERS
from unet_scaling.run.run_folder import is_out_of_memory
from unet_scaling.run.training_state import one_line
from unet_scaling.study.config import RunConfig
from unet_scaling.task.task import finite_counts

# What helps, by what torch says, which names no cure or one that is wrong here.
CURE_OF_MESSAGE = {
    "modified by an inplace operation": "take the operation that is not in place, such as relu for relu_",
    "backward through the graph a second time": "detach() what the model keeps from one pass for the next",
}
# These functions may seed any generator, as what they make is compared between workers.
MAY_SEED = ("build_model", "datasets")
# The functions that a file has to define (docs/your_model.md).
REQUIRED = ("build_model", "datasets", "loss", "count", "score")


class TaskFunctions:
    """The functions of a file; what they do wrong is a UserError that names them."""

    def __init__(self, config: RunConfig) -> None:
        """Import the file; UserError where that is not the one of the configuration, or lacks a function."""
        self.config = config
        self.path = Path(cast(str, config.task.file))
        self.functions: Mapping[str, Any] = vars(import_task_file(self.path, config.task.sha256))
        self.watches_generators = True
        self._outputs: list[Tensor] = []
        self._counts = 0

    def place(self, name: str, error: Exception | None = None) -> str:
        """Return file and line of a function, or the line in which it failed, and its name."""
        line = last_line(self.path, error) if error else None
        defined = getattr(unwrap(self.functions[name]), "__code__", None)
        if line is None and defined:
            return f"{defined.co_filename}:{defined.co_firstlineno}: {name}"
        return f"{self.path}:{line}: {name}"

    def mistake(self, name: str, text: str, code: int = EXIT_USAGE) -> UserError:
        """Return the error that names a function of the file."""
        return UserError(f"{self.place(name)}: {text}", code)

    @contextmanager
    def inside(self, name: str, watched: bool = True) -> Iterator[None]:
        """Name this function in the error of an exception inside, or of random numbers without a seed."""
        before = _generators(name) if watched and self.watches_generators else {}
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            said = f"{type(error).__name__}{failing_layer(error)}: {one_line(error)}{cure_of(error)}"
            raise UserError(f"{self.place(name, error)}: {said}") from error
        after = _generators(name) if before else {}
        moved = ", ".join(generator for generator in before if after[generator] != before[generator])
        if moved:
            cure = "draw in transform, from its seeds, or seed a generator of your own by the sample's index"
            code = EXIT_BAD_DATA if name == "datasets" else EXIT_USAGE
            raise self.mistake(name, f"draws from the generator of {moved}; {cure}", code)

    def called(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function of the file. Raises UserError as `inside`."""
        with self.inside(name, watched=name not in MAY_SEED):
            return self.functions[name](*arguments)

    def note_outputs(self, model: nn.Module, _inputs: object, outputs: object) -> None:
        """Note what the model gives in evaluation: a forward hook."""
        if not model.training:
            tensors = (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
            self._outputs += filter(torch.is_floating_point, tensors)

    def count(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the counts of a batch; UserError where they are not int64 [k], with k as in every call."""
        self._outputs.clear()
        counts = self.called("count", model, batch)
        if not isinstance(counts, Tensor) or counts.dtype != torch.int64 or counts.dim() != 1:
            found = getattr(counts, "dtype", type(counts).__name__)
            raise self.mistake("count", f"gives {found}; a tensor of int64 [k] is needed")
        self._counts = self._counts or len(counts)
        if len(counts) != self._counts:
            found = f"{self._counts} numbers for one batch, {len(counts)} for another"
            raise self.mistake("count", f"gives {found}; give as many for any samples")
        counts = finite_counts(counts, self._outputs)
        self._outputs.clear()
        return counts

    def score(self, counts: Tensor) -> dict[str, float | None]:
        """Return the scores that follow from int64 counts [k] of the whole test set.

        Of the first, more is better: where the file says that less is, it is 1 less that score.
        """
        with self.inside("score"):
            found = self.functions["score"](counts.tolist())
            scores = {name: None if value is None else float(value) for name, value in found.items()}
        if scores and self.functions.get("HIGHER_IS_BETTER") is False:
            name, value = next(iter(scores.items()))
            return {f"one_minus_{name}": None if value is None else 1 - value, **scores}
        return scores


def _generators(name: str) -> dict[str, object]:
    """Return the state of each generator from which a function is not to draw; a loss may from torch's."""
    _, words, *rest = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    states: dict[str, object] = {"Python's random": random.getstate(), "numpy.random": (bytes(words), rest)}
    if name == "loss":
        return states
    if torch.cuda.is_available():
        states["torch.cuda"] = bytes(torch.cuda.get_rng_state().numpy())
    return states | {"torch": bytes(torch.get_rng_state().numpy())}


def import_task_file(path: Path, sha256: str | None) -> ModuleType:
    """Return the module of a task's file.

    Raises UserError: 65 where the file is not the one with this SHA-256, 2 where it cannot be imported or
    lacks a function.
    """
    with or_user_error(f"task.file: {path} cannot be read"):
        content = read_regular(path)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        digests = [f"{digest[:SHOWN_DIGEST_CHARACTERS]}..." for digest in (found, str(sha256))]
        changed = f"has changed since the study was launched (SHA-256 {digests[0]}, expected {digests[1]})"
        cure = "bring the file back, or give the study another name"
        raise UserError(f"task.file: {path} {changed}: {cure}", EXIT_BAD_DATA)
    module = _module(path, content, found)
    for name in REQUIRED:
        if not callable(getattr(module, name, None)):
            hint = did_you_mean(name, [known for known in vars(module) if known not in REQUIRED])
            lacking = f"{path} defines no function {name}; {hint}a task defines {', '.join(REQUIRED)}"
            raise UserError(f"task.file: {lacking}")
    return module


def _module(path: Path, content: bytes, sha256: str) -> ModuleType:
    name = f"task_{sha256[:SHOWN_DIGEST_CHARACTERS]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and pickle look a class up there.
    sys.modules[name] = module
    try:
        exec(compile(content, path, "exec"), vars(module))  # noqa: S102  (it is the user's own)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else last_line(path, error)
        where = f"{path}:{line}" if line else str(path)
        said = error.msg if isinstance(error, SyntaxError) else error
        what = f"{type(error).__name__}: {said}{cure_of(error)}"
        raise UserError(f"task.file: {where} cannot be imported: {what}") from error
    return module


def last_line(path: Path, error: Exception) -> int | None:
    """Return the line of this file in which an exception was raised, or what raised it was called."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def cure_of(error: Exception) -> str:
    """Return "; " and what helps against an exception of a task; empty where that is not known."""
    name = getattr(error, "filename", None)
    if isinstance(error, FileNotFoundError) and name and not Path(str(name)).is_absolute():
        return f"; workers start in another folder: use Path(__file__).parent / {name!r}"
    return "".join(f"; {cure}" for words, cure in CURE_OF_MESSAGE.items() if words in str(error))


def failing_layer(error: Exception) -> str:
    """Return " in NAME, LAYER" for the layer whose forward pass raised an exception; empty where none did."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [frame.f_locals.get("self") for frame in frames if frame.f_code.co_name == "forward"]
    layers = [layer for layer in found if isinstance(layer, nn.Module)]
    names = [name for name, layer in layers[0].named_modules() if layer is layers[-1]] if layers else []
    if not any(names):
        return ""
    has_parts = any(layers[-1].children())
    return f" in {names[0]}, {type(layers[-1]).__name__ if has_parts else layers[-1]}"
