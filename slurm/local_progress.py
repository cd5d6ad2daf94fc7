"""Show how far a study on this machine is: a bar on a terminal, a line per run in a pipe."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slurm.estimate import KnownSeconds
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.texts import duration

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=None),
    TextColumn("{task.fields[facts]}", markup=False),
)


class RecordTail:
    """The epochs of a record that is being written; only what is new is read each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._offset = 0
        self.epochs = 0
        self.seconds = 0.0
        self.images = 0

    def read(self) -> None:
        """Add the epochs that were written since; another file of this name begins anew."""
        with suppress(OSError), self._path.open("rb") as record:
            facts = os.fstat(record.fileno())
            if (facts.st_dev, facts.st_ino) != self._file:
                self._file = facts.st_dev, facts.st_ino
                self._begin_anew()
            record.seek(self._offset)
            for line in record:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._add(line)

    def _add(self, line: bytes) -> None:
        with suppress(ValueError, KeyError, TypeError):  # a damaged line is judged when the run is over
            content = json.loads(line)
            if content["kind"] == "epoch":
                self.epochs += 1
                self.seconds += content["seconds"]
                self.images += content["images"]

    def seconds_left(self, epochs: int) -> float | None:
        """Return how long the rest of so many epochs takes at the pace so far; None before the first."""
        return self.seconds / self.epochs * (epochs - self.epochs) if self.epochs else None


class StudyProgress:
    """The runs of a study as they are launched one after the other."""

    def __init__(self, console: Console, known: KnownSeconds) -> None:
        self._console = console
        self._known = known
        self._bar = Progress(*COLUMNS, console=console, auto_refresh=False, transient=True, expand=True)
        self._task = self._bar.add_task("", facts="", visible=False)
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:  # else rich prints an empty line
            self._bar.stop()

    def begin(self, configs: Sequence[RunConfig], number: int, run_folder: Path) -> None:
        """Show that the run of this index begins."""
        self._config = configs[number]
        self._later = configs[number + 1 :]
        self._label = f"[{number + 1}/{len(configs)}] {self._config.run}"
        self._before = number / len(configs)
        self._share = 1 / len(configs)
        self._began = time.monotonic()
        self._tail = RecordTail(run_folder / RECORD_NAME)
        if self._console.is_terminal:
            self.show()
        else:
            self._console.print(f"{self._label} ...", end=" ", markup=False)

    def show(self) -> None:
        """Draw the bar again; called about once a second, as each drawing takes time from the workers."""
        if not self._console.is_terminal:
            return
        self._tail.read()
        epochs = self._config.training.epochs
        done = self._before + self._share * self._tail.epochs / max(epochs, 1)
        self._bar.update(
            self._task, description=self._label, facts=self._facts(), completed=100 * done, visible=True
        )
        self._bar.refresh()

    def say_once(self, text: str) -> None:
        """Print a line the first time that it is asked for."""
        if text not in self._said:
            self._said.add(text)
            self._console.print(text if self._console.is_terminal else f"\n{text}", markup=False)

    def end(self, outcome: str) -> None:
        """Print how the run ended, and how long the others will take."""
        goes_on = self._later and not self._said  # what it said once is that it stops
        left = self._known.foreseen(self._later, self._elapsed()) if goes_on else None
        text = f"{outcome}; about {duration(left)} left" if left else outcome
        prefix = f"{self._label} ... " if self._console.is_terminal else ""
        self._console.print(prefix + text, markup=False)

    def _facts(self) -> str:
        """Return epoch, speed and remaining time as text."""
        parts = [f"epoch {self._tail.epochs}/{self._config.training.epochs}"]
        if self._tail.seconds:
            parts.append(f"{self._tail.images / self._tail.seconds:.1f} images/s")
        left = self._seconds_left()
        parts.append(f"about {duration(left)} left" if left is not None else "time left not known yet")
        return ", ".join(parts)

    def _seconds_left(self) -> float | None:
        # Epochs do not tell how long the maps take that follow them.
        own = None if self._config.is_explained else self._tail.seconds_left(self._config.training.epochs)
        if own is None:
            whole = self._known.foreseen([self._config])
            own = max(0.0, whole - self._elapsed()) if whole is not None else None
        if own is None:
            return None
        return own + (self._known.foreseen(self._later, otherwise=self._elapsed() + own) or 0.0)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
