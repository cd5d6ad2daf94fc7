"""The one error a user can cause, and the exit codes by which programs tell how they ended."""

import sys
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
    try:
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except KeyboardInterrupt:
        print("error: stopped by the keyboard", file=sys.stderr, flush=True)
        code = 130
    sys.exit(code or EXIT_OK)
