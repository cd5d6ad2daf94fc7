"""Show how far a study on this machine is: a bar on a terminal, now and then a line in a pipe."""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slurm.estimate import KnownSeconds
from unet_scaling.study.config import RunConfig
from unet_scaling.study.texts import duration

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=None),
    TextColumn("{task.fields[facts]}", markup=False),
)
# Epoch, steps done of it, and all its steps (unet_scaling/study/progress.py).
STEPS_BYTES = 3 * 8
# A log has a line of a run that lasts longer, and again after as long.
PIPE_SECONDS = 10.0


class StudyProgress:
    """The runs of a study as they are launched one after the other."""

    def __init__(self, console: Console, known: KnownSeconds) -> None:
        self._console = console
        self._known = known
        self._bar = Progress(*COLUMNS, console=console, auto_refresh=False, transient=True, expand=True)
        self._task = self._bar.add_task("", facts="", visible=False)
        self._said: set[str] = set()
        self._folder = TemporaryDirectory()
        self.steps_file = Path(self._folder.name) / "steps"

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:  # else rich prints an empty line
            self._bar.stop()
        self._folder.cleanup()

    def begin(self, configs: Sequence[RunConfig], number: int) -> None:
        """Show that the run of this index begins."""
        self._config = configs[number]
        self._later = configs[number + 1 :]
        self._label = f"[{number + 1}/{len(configs)}] {self._config.run}"
        self._before, self._all = number, len(configs)
        self._began = self._shown = time.monotonic()
        # When a step was first seen to be done, and the last: the number of steps, and the time.
        self._seen: list[tuple[int, float]] = []
        self.steps_file.write_bytes(bytes(STEPS_BYTES))
        self._line_is_open = not self._console.is_terminal
        if self._line_is_open:
            self._console.print(f"{self._label} ...", end=" ", markup=False)
        else:
            self.show()

    def show(self) -> None:
        """Show the state anew; called about once a second, as each drawing takes time from the workers."""
        epoch, done, steps = memoryview(self.steps_file.read_bytes()).cast("q")
        now = time.monotonic()
        taken = epoch * steps + done
        if taken and (not self._seen or taken > self._seen[-1][0]):
            self._seen = [*self._seen[:1], (taken, now)]
        whole = steps * self._config.training.epochs
        facts = self._facts(epoch, done, steps, whole - taken)
        if self._console.is_terminal:
            share = (self._before + (taken / whole if whole else 0.0)) / self._all
            self._bar.update(
                self._task, description=self._label, facts=facts, completed=100 * share, visible=True
            )
            self._bar.refresh()
        elif now - self._shown > PIPE_SECONDS:
            self._shown = now
            self._print_line(f"  {facts}")

    def say_once(self, text: str) -> None:
        """Print a line the first time that it is asked for."""
        if text not in self._said:
            self._said.add(text)
            self._print_line(text)

    def _print_line(self, text: str) -> None:
        self._console.print(f"\n{text}" if self._line_is_open else text, markup=False)
        self._line_is_open = False

    def end(self, outcome: str) -> None:
        """Print how the run ended, and how long the others will take."""
        goes_on = self._later and not self._said  # what it said once is that it stops
        left = self._known.foreseen(self._later, self._elapsed()) if goes_on else None
        text = f"{outcome}; about {duration(left)} left" if left else outcome
        prefix = "" if self._line_is_open else f"{self._label} ... "
        self._console.print(prefix + text, markup=False)

    def _facts(self, epoch: int, done: int, steps: int, steps_left: int) -> str:
        """Return epoch, step, speed, the time that has passed and that is left as text."""
        passed = duration(self._elapsed())
        if not steps:
            return f"starting for {passed}"
        training = self._config.training
        parts = [f"epoch {epoch + 1}/{training.epochs}, step {done}/{steps}"]
        seconds = None
        if len(self._seen) > 1:
            (first, since), (last, until) = self._seen
            seconds = (until - since) / (last - first)
            images = self._config.played_workers * training.batch_per_worker * training.accumulate
            parts.append(f"{images / seconds:.1f} images/s")
        # Steps do not tell how long the maps take that follow them.
        own = None if self._config.is_explained or seconds is None else steps_left * seconds
        if own is None:
            foreseen = self._known.foreseen([self._config])
            own = max(0.0, foreseen - self._elapsed()) if foreseen is not None else None
        parts.append(f"{passed} so far")
        if own is not None:
            later = self._known.foreseen(self._later, otherwise=self._elapsed() + own) or 0.0
            parts.append(f"about {duration(own + later)} left")
        return ", ".join(parts)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
