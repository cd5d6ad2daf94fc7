"""Import the file of a task: exactly the one whose SHA-256 the configuration has."""

import hashlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from unet_scaling.data.verification import SHOWN_DIGEST_CHARACTERS
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.faults import did_you_mean

# The functions that a file has to define (docs/your_model.md).
REQUIRED = ("build_model", "datasets", "loss", "count", "score")


def import_task_file(path: Path, sha256: str | None) -> ModuleType:
    """Return the module of a task's file.

    Raises UserError: 65 where the file is not the one with this SHA-256, 2 where it cannot be imported or
    lacks a function.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"task.file: {path} cannot be read ({error.strerror})") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        digests = [f"{digest[:SHOWN_DIGEST_CHARACTERS]}..." for digest in (found, str(sha256))]
        changed = f"has changed since the study was launched (SHA-256 {digests[0]}, expected {digests[1]})"
        cure = "bring the file back, or give the study another name"
        raise UserError(f"task.file: {path} {changed}: {cure}", EXIT_BAD_DATA)
    module = _module(path, content, found)
    _require_functions(path, module)
    return module


def _module(path: Path, content: bytes, sha256: str) -> ModuleType:
    name = f"task_{sha256[:SHOWN_DIGEST_CHARACTERS]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # Where dataclasses and pickle look a class up.
    sys.modules[name] = module
    try:
        exec(compile(content, path, "exec"), vars(module))  # noqa: S102  (it is the user's own)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else last_line(path, error)
        where = f"{path}:{line}" if line else str(path)
        what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise UserError(f"task.file: {where} cannot be imported: {what}") from error
    return module


def last_line(path: Path, error: Exception) -> int | None:
    """Return the line of this file in which an exception was raised, or what raised it was called."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def _require_functions(path: Path, module: ModuleType) -> None:
    for name in REQUIRED:
        if not callable(getattr(module, name, None)):
            hint = did_you_mean(name, [known for known in vars(module) if known not in REQUIRED])
            raise UserError(
                f"task.file: {path} defines no function {name}; {hint}a task defines {', '.join(REQUIRED)}"
            )
