"""Errors that a user can mend, exit codes, and how programs and workers end with them."""

import errno
import faulthandler
import fcntl
import importlib
import os
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from typing import Any, NoReturn

from unet_scaling.base.texts import clean

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_BAD_DATA = 65
EXIT_DIVERGED = 70
EXIT_RESUME = 75
# The codes by which a shell reports that SIGINT or SIGPIPE ended a program.
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
# For every --help, in the order of the codes.
EXIT_MEANINGS = {
    EXIT_OK: "done",
    EXIT_BUG: "a run or a part of the installation failed, or a bug (with a traceback)",
    EXIT_USAGE: "wrong usage, or a study, cluster file or option that has to be changed",
    EXIT_BAD_DATA: "images or records that cannot be used",
    EXIT_DIVERGED: "a training diverged: its loss or weights were not finite",
    EXIT_RESUME: "stopped in order; the same command goes on",
}
AGREED = (EXIT_OK, EXIT_DIVERGED, EXIT_RESUME)
# Written by faulthandler where a page that is mapped into memory cannot be read.
BUS_ERROR = "Fatal Python error: Bus error"
# mpiexec needs so long to read the command to abort, by which it ends this process too.
ABORT_SECONDS = 1.0
# A launcher on a busy machine reads late; one that is stopped never.
LONGEST_READ_SECONDS = 5.0
READ_LOOK_SECONDS = 0.01
INT_BYTES = 4
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Errors of writing a file or standard output that are no bug of the program.
UNWRITABLE = (
    errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EBADF,
)  # fmt: skip
# Errors by what stands in place of a file or folder, which no program can foresee, with their cures.
_NOT_A_FILE = "put a file or folder of the kind that belongs there"
_ALLOW = "who owns it can allow it"
MISPLACED = {errno.EACCES: _ALLOW, errno.EPERM: _ALLOW, errno.ENAMETOOLONG: "give it a shorter name"}
MISPLACED |= dict.fromkeys(
    (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV), _NOT_A_FILE
)
# Optional parts are folders in them that may be taken away, imported only on request.
OWN_PACKAGES = ("unet_scaling", "slurm", "analysis")


class UserError(Exception):
    """Something the user can mend: the text names the file, the key, the value found and the cure.

    `exit_code` is what the program ends with: 2 for usage or configuration, 65 for data, 70 for a
    training that diverged.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def or_user_error(problem: str, cure: str = "", code: int = EXIT_USAGE) -> Iterator[None]:
    """Turn an OSError inside into a UserError that tells the problem, its reason and its cure."""
    try:
        yield
    except OSError as error:
        is_named = error.filename is None or str(error.filename) in problem
        at = "" if is_named else f" ({error.filename})"
        parts = [f"{problem}: {reason_of(error)}{at}", cure]
        raise UserError("; ".join(filter(None, parts)), code) from None


def reason_of(error: OSError | ValueError) -> str:
    """Return why a file cannot be used, for a sentence that names the file."""
    return getattr(error, "strerror", None) or str(error)


class StoppedError(UserError):
    """A run that was asked to stop has saved its state at this (epoch, steps done).

    `explained` are the steps of its saliency maps that are done, where it stopped among these.
    """

    def __init__(self, reason: str, position: tuple[int, int], explained: int | None = None) -> None:
        epoch, step = position
        where = f"in epoch {epoch + 1} after {step} steps" if step else f"after epoch {epoch}"
        if explained is not None:
            where = f"after the last epoch, at step {explained} of its saliency maps"
        super().__init__(f"{reason}; stopped {where}", EXIT_RESUME)
        self.position = position
        self.explained = explained


class WaitedTooLongError(Exception):
    """Another worker did not reach a collective in time."""


class NoSafePointError(Exception):
    """This worker was told to end, and the others did not reach a point where all can stop in order."""


def exit_codes_text() -> str:
    """Return the exit codes of every program, a line each, for its help."""
    return "\n".join(["exit codes", *(f"  {code:<2}  {text}" for code, text in EXIT_MEANINGS.items())])


def error_file_name(attempt: int | str, worker: int | str) -> str:
    """Return the name of the report of a worker that failed; "*" stands for any attempt or worker."""
    return f"error.attempt{attempt}.worker{worker}.json"


def run_program(main: Callable[[], int | None]) -> None:
    """Run `main` and leave with its exit code; a UserError becomes one line, all else a traceback.

    So does a file or folder without permission, or of another kind, which no program can foresee. Output that
    nobody reads any more, as of `... | head`, ends it without a word.
    """
    try:
        code = _exit_code(main, with_output=True)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None and error.errno in MISPLACED:
            print(f"error: {error.filename}: {error.strerror}; {MISPLACED[error.errno]}", file=sys.stderr)
            sys.exit(EXIT_USAGE)
        if error.errno not in UNWRITABLE:
            raise
        code = EXIT_PIPE_CLOSED
        if error.errno != errno.EPIPE:
            _print_unwritable(error)
            code = EXIT_BUG
        # The interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run_worker(main: Callable[[], int | None]) -> None:
    """Run `main` as `run_program` does, in a process of a group of workers, which leaves at once.

    The interpreter's own clean-up is left out on purpose. After a failure it would wait for workers
    that wait for this one; after success it can abort in the threads of the communication library
    ("terminate called without an active exception"), and a complete run would count as failed.
    A signal that the hardware raises, such as a bus error, leaves its name and the stack on standard error.
    """
    faulthandler.enable()
    try:
        code = _exit_code(main)
    except SystemExit as leaving:
        given = leaving.code or EXIT_OK
        code = given if isinstance(given, int) else EXIT_BUG
        if code is not given:  # as Python does, print what was given in place of a code
            print(given, file=sys.stderr)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            _print_unwritable(error)
        else:
            traceback.print_exc()
        code = EXIT_BUG
    leave(code)


def _print_unwritable(error: OSError) -> None:
    print(f"error: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)


def leave(code: int) -> NoReturn:
    """End this worker at once, and after a failure the others of its launch with it: they may wait for it.

    srun, Open MPI and torchrun see to that themselves. The mpiexec of MPICH and of Intel MPI does so only for
    workers that have initialised MPI: with native DDP none has, with Horovod not one that fails early.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kill_loader_processes()
    if code not in AGREED:
        with suppress(OSError, ValueError):
            _wait_until_read((sys.stdout.fileno(), sys.stderr.fileno()))
        with suppress(OSError, ValueError):
            _abort_launch(int(os.environ.get("PMI_FD", "-1")), code)
    os._exit(code)


def kill_loader_processes() -> None:
    """End the daemons of this process, those that load its batches: they would outlive a worker that leaves.

    multiprocessing would send SIGTERM, which they block, and wait for ever. With the worker's output open in
    them, its launcher would wait for ever, too.
    """
    for process in active_children():
        if process.daemon:
            process.kill()


def _wait_until_read(descriptors: Sequence[int]) -> None:
    """Wait until the launcher has read what was written to pipes: at an abort it drops what it has not."""
    give_up = time.monotonic() + LONGEST_READ_SECONDS
    for pipe in descriptors:
        while stat.S_ISFIFO(os.fstat(pipe).st_mode) and time.monotonic() < give_up:
            if not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(INT_BYTES))):  # nothing is unread
                break
            time.sleep(READ_LOOK_SECONDS)


def _abort_launch(descriptor: int, code: int) -> None:
    """Let mpiexec end all workers, as MPI_Abort does (PMI, version 1). Raises OSError."""
    # A program in between may have closed it, and its number may be that of a file by now.
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        os.write(descriptor, f"cmd=abort exitcode={code}\n".encode())
        time.sleep(ABORT_SECONDS)


def _exit_code(main: Callable[[], int | None], with_output: bool = False) -> int:
    # A umask that lets everybody write is nobody's intent.
    mask = os.umask(OTHERS_WRITE)
    os.umask(mask if mask & stat.S_IWOTH else mask | OTHERS_WRITE)
    try:
        if with_output:
            _require_output()
        return main() or EXIT_OK
    except UserError as error:
        text = "\n".join(map(clean, str(error).split("\n")))
        print(f"error: {text}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: stopped by the keyboard", file=sys.stderr, flush=True)
        # CPython ends by SIGINT, whatever the code, where the interrupt came while the text of a program was
        # executed, as of a dataclass, unless another text was executed since.
        exec("")  # noqa: S102
        return EXIT_INTERRUPTED


def _require_output() -> None:
    """Raise UserError where standard output is closed; one that is narrow escapes what it cannot show."""
    is_closed = sys.stdout is None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest number that is free: a file of this program, or of one it starts, would get it.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if is_closed:
        raise UserError("standard output is closed; send it to a file, or to /dev/null")


@contextmanager
def optional_part(asked_by: str, extra: str = "") -> Iterator[None]:
    """Let the import inside name what asked for it where that is missing; UserError.

    `extra` names the packages that this part needs, as environment/install.sh --with takes it.
    """
    try:
        yield
    except ImportError as error:
        name = error.name or ""
        if isinstance(error, ModuleNotFoundError) and name.partition(".")[0] in OWN_PACKAGES:
            raise UserError(f"{asked_by} needs {name.replace('.', '/')}, which this checkout lacks") from None
        if not extra:
            raise
        cure = f"run environment/install.sh --with {extra}"
        raise UserError(f"{asked_by} needs {extra}, which cannot be imported ({error}); {cure}") from None


def required_module(name: str, asked_by: str) -> Any:  # noqa: ANN401  (a module)
    """Return a module of a capability; UserError that names what asks for it where this checkout lacks it."""
    with optional_part(asked_by):
        return importlib.import_module(name)


def optional_module(name: str) -> Any:  # noqa: ANN401  (a module)
    """Return a module of a capability that may be taken away; None where this checkout lacks it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
    return None
