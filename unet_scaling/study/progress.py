"""Show a progress bar on a terminal; nothing elsewhere, where finished epochs are lines of their own."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], total: int, label: str, shown: bool = True) -> Iterator[_Item]:
    """Yield the items, with a bar on standard error where that is a terminal."""
    hidden = not (shown and sys.stderr.isatty())
    yield from tqdm(items, total=total, desc=label, disable=hidden, leave=False, unit="step")
