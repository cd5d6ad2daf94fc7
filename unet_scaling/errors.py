"""The one error a user can cause, and the exit codes by which programs tell how they ended."""

import os
import sys
import traceback
from collections.abc import Callable

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_BAD_DATA = 65
EXIT_DIVERGED = 70
EXIT_RESUME = 75


class UserError(Exception):
    """Something the user can mend: the text names the file, the key, the value found and the cure.

    `exit_code` is what the program ends with: 2 for usage or configuration, 65 for data, 70 for a
    training that diverged.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_program(main: Callable[[], int | None]) -> None:
    """Run `main` and leave with its exit code; a UserError becomes one line, all else a traceback."""
    sys.exit(_exit_code(main))


def run_worker(main: Callable[[], int | None]) -> None:
    """As `run_program`, for a process that belongs to a group of workers: it leaves at once.

    The interpreter's own clean-up is left out on purpose. After a failure it would wait for workers
    that wait for this one; after success it can abort in the threads of the communication library
    ("terminate called without an active exception"), and a complete run would count as failed.
    """
    try:
        code = _exit_code(main)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_OK
    except BaseException:
        traceback.print_exc()
        code = EXIT_BUG
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(main: Callable[[], int | None]) -> int:
    try:
        return main() or EXIT_OK
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: stopped by the keyboard", file=sys.stderr, flush=True)
        return 130
