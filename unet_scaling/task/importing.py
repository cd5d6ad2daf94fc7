"""Import the file of a task: exactly the one whose SHA-256 the configuration has."""

import hashlib
import sys
import traceback
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from unet_scaling.data.verification import SHOWN_DIGEST_CHARACTERS
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.faults import did_you_mean
from unet_scaling.task.contract import REQUIRED


class _Content(SourceLoader):
    """Loads a module from bytes that were read before, without cached byte-code of perhaps another file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return str(self._path)

    def get_data(self, path: str) -> bytes:  # noqa: ARG002
        return self._content


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
        raise UserError(
            f"task.file: {path} has changed since the study was launched (SHA-256 {_short(found)}, expected "
            f"{_short(str(sha256))}): its runs would not train the same; bring the file back, or give the "
            "study another name",
            EXIT_BAD_DATA,
        )
    module = _module(path, content, found)
    _require_functions(path, module)
    return module


def _short(sha256: str) -> str:
    return f"{sha256[:SHOWN_DIGEST_CHARACTERS]}..."


def _module(path: Path, content: bytes, sha256: str) -> ModuleType:
    name = f"task_{sha256[:SHOWN_DIGEST_CHARACTERS]}"
    spec = spec_from_loader(name, _Content(path, content), origin=str(path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Where dataclasses and pickle look a class up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"task.file: {_where(path, error)} cannot be imported: {_what(error)}") from error
    return module


def _where(path: Path, error: Exception) -> str:
    """Return the file with the line at which its import failed."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    return f"{path}:{line}" if line else str(path)


def _what(error: Exception) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _require_functions(path: Path, module: ModuleType) -> None:
    for name in REQUIRED:
        if not callable(getattr(module, name, None)):
            hint = did_you_mean(name, [known for known in vars(module) if known not in REQUIRED])
            raise UserError(
                f"task.file: {path} defines no function {name}; {hint}a task defines {', '.join(REQUIRED)}"
            )
