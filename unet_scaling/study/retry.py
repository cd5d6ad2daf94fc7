"""Call again what failed for a reason that may pass."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

_Result = TypeVar("_Result")
AnError = TypeVar("AnError", bound=Exception)


def retry(
    call: Callable[[], _Result],
    pauses_seconds: Iterable[float],
    error_type: type[AnError],
    may_pass: Callable[[AnError], bool] | None = None,
    announce: Callable[[AnError, float], None] | None = None,
) -> _Result:
    """Return what `call` returns; after an error that may pass, wait for the next pause and call again.

    Raises the error of the last call, and at once every error that cannot pass. `announce` is called with
    the error and the pause in seconds before each pause.
    """
    for pause in pauses_seconds:
        try:
            return call()
        except error_type as error:
            if may_pass and not may_pass(error):
                raise
            if announce:
                announce(error, pause)
        time.sleep(pause)
    return call()
