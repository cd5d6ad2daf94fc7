"""Launch a study on this machine with mpiexec: every worker on its own cores, for all frameworks alike.

Refused where jobs of Slurm run or images are not checked.
"""

import argparse
import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slurm.after_run import RepeatedLaunches, explain_disturbance, is_to_be_repeated, set_disturbed_aside
from slurm.launch.added_repeats import add_next_repeat, add_repeats, note_changed_request
from slurm.launch.estimate import KnownSeconds, images_per_second
from slurm.launch.preflight import check_inputs, require_images
from slurm.launch.processes import WORKER_SIGNAL, StopRequest, launch, say_whether_quiet, stop_requests
from slurm.launch.study_folder import StudyFolder, in_launch_order, locked
from slurm.states import KnownJobs, find_states
from slurm.submissions import read_submissions, set_submissions_aside
from unet_scaling.base.errors import EXIT_BUG, EXIT_DIVERGED, EXIT_RESUME, UserError
from unet_scaling.base.texts import CALLED, called, count, duration, score_title
from unet_scaling.format.record import set_launch_aside
from unet_scaling.format.run_state import ACTIVE, RecordedRun
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.frameworks import training_script
from unet_scaling.study.study_file import JOB_NAME, OUTPUT_NAME

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=None),
    TextColumn("{task.fields[facts]}", markup=False),
)
# Three integers: the epoch, its steps done, and all its steps (unet_scaling/base/progress.py).
STEPS_BYTES = 3 * 8
# Set by a script that runs a study: the command of the user that goes on with it.
GO_ON_VARIABLE = "UNET_SCALING_GO_ON"
# How often the progress of a launch is written into a log: one that is shorter has one line there.
PIPE_SECONDS = 600.0


class StudyProgress(ExitStack):
    """Show on a console how the runs of a study go, one after the other; a context manager."""

    def __init__(self, console: Console, known: KnownSeconds) -> None:
        super().__init__()
        self._console = console
        self._known = known
        self._bar = Progress(*COLUMNS, console=console, auto_refresh=False, transient=True, expand=True)
        self._task = self._bar.add_task("", facts="", visible=False)
        self._is_stopping = False
        self.steps_file = Path(self.enter_context(TemporaryDirectory())) / "steps"
        if console.is_terminal:
            self._bar.start()
            self.callback(self._bar.stop)

    def begin(
        self, config: RunConfig, counted: Sequence[RunConfig], later: Sequence[RunConfig], again: bool = False
    ) -> None:
        """Show that a run of `counted` begins, perhaps `again`, and that the runs in `later` follow it."""
        self._config = config
        self._later = later
        self._before, self._all = counted.index(config), len(counted)
        self._label = f"[{self._before + 1}/{self._all}] {config.run}{' again' if again else ''}"
        self._began = self._shown = time.monotonic()
        # The number of steps and the time when steps were first and last seen to be done.
        self._seen: list[tuple[int, float]] = []
        self.steps_file.write_bytes(bytes(STEPS_BYTES))
        self._line_is_open = not self._console.is_terminal
        if self._line_is_open:
            self._console.print(f"{self._label} ...", end=" ")
        else:
            self.show()

    def show(self) -> None:
        """Show the progress; called about once a second, as drawing takes time from the workers."""
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

    def say_that_it_stops(self) -> None:
        """Print once that the user's request to stop is known."""
        if not self._is_stopping:
            self._is_stopping = True
            self._print_line("stopping: the workers save their state; Ctrl-C again ends them at once")

    def _print_line(self, text: str) -> None:
        self._console.print(f"\n{text}" if self._line_is_open else text)
        self._line_is_open = False

    def end(self, outcome: str) -> None:
        """Print how the run ended, and how long the others will take."""
        goes_on = self._later and not self._is_stopping
        left = self._known.estimate(self._later, self._elapsed()) if goes_on else None
        text = f"{outcome}; about {duration(left)} left" if left else outcome
        prefix = "" if self._line_is_open else f"{self._label} ... "
        self._console.print(prefix + text)

    def _facts(self, epoch: int, done: int, steps: int, steps_left: int) -> str:
        """Return epoch, step, speed, and the time that has passed and is left, as text."""
        passed = duration(self._elapsed())
        if not steps:
            return f"starting for {passed}"
        training = self._config.training
        parts = [f"epoch {epoch + 1}/{training.epochs}, step {done}/{steps}"]
        seconds = None
        if len(self._seen) > 1:
            (first, since), (last, until) = self._seen
            seconds = (until - since) / (last - first)
            images = self._config.images_per_step
            parts.append(f"{images / seconds:.1f} images/s")
        # The duration of steps does not tell that of saliency maps, which follow them.
        own = None if self._config.is_explained or seconds is None else steps_left * seconds
        if own is None:
            whole = self._known.estimate([self._config])
            own = max(0.0, whole - self._elapsed()) if whole is not None else None
        parts.append(f"{passed} so far")
        if own is not None:
            later = self._known.estimate(self._later, otherwise=self._elapsed() + own) or 0.0
            parts.append(f"about {duration(own + later)} left")
        return ", ".join(parts)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


class StudyStoppedError(UserError):
    """The user asked to stop, and the workers have saved."""


def run_study(
    folder: StudyFolder,
    console: Console,
    repeat_disturbed: bool = False,
    force: Collection[str] = (),
    repeats_to_add: int = 0,
    keep_disturbed: bool = False,
) -> None:
    """Run what is not complete, one run after the other; raise UserError at the end where runs failed.

    Disturbed runs of a repeat are launched once more after it, within the limits of RepeatedLaunches, unless
    `keep_disturbed`; with `repeat_disturbed` also all those that were complete before. A study with `until`
    gets one more repeat of each point until its intervals are narrow. Raises StudyStoppedError where the user
    stopped it.
    """
    cores = len(os.sched_getaffinity(0))
    share = cores_per_worker(folder.study, cores)
    with locked(folder.path), stop_requests() as request:
        asked = note_changed_request(folder, console)
        block: StudyFolder | None = add_repeats(asked, repeats_to_add, console) if repeats_to_add else asked
        owns = f"each worker owns {share} of {cores} cores, at every worker count"
        console.print(f"{owns}; output in {folder.path}/*/{OUTPUT_NAME}")
        of_a_repeat = len(folder.study.configs()) // folder.study.repeats
        repeated = None if keep_disturbed else RepeatedLaunches(of_a_repeat, _measure_again())
        while block:
            LocalRuns(block, console, share, request, repeated).run_missing(repeat_disturbed, force)
            # Only with the first block, or these runs would be launched again with every further one.
            repeat_disturbed = False
            force = ()
            block = add_next_repeat(block, console)
    console.print(f"next: {called('report', os.path.relpath(folder.path))}")


def _measure_again() -> str:
    """Return the command that launches disturbed runs again: this one, without what is to be done once."""
    once = argparse.ArgumentParser(add_help=False)
    once.add_argument("--more-repeats")
    once.add_argument("--force", action="append")
    _, others = once.parse_known_args()
    return called("run", *others, "--repeat-disturbed")


@dataclass(frozen=True)
class LocalRuns:
    """Runs of a study that are launched one after the other, until the user asks to stop."""

    folder: StudyFolder
    console: Console
    cores_each: int
    request: StopRequest
    repeated: RepeatedLaunches | None
    known: KnownSeconds = field(default_factory=KnownSeconds)

    def run_missing(self, repeat_disturbed: bool, force: Collection[str]) -> None:
        """Launch what is missing, then what was disturbed. Raises UserError where runs failed."""
        # Nothing is written for a study that cannot start: every later report would show its runs as waiting.
        require_ready(self.folder, in_launch_order(self.folder.study))
        configs = self.folder.prepare(self.console)
        missing = take_over(self.folder, configs, force)
        complete = [config for config in configs if config not in missing]
        name = self.folder.study.name
        self.console.print(f"{name}: {count(len(configs), 'run')}, {len(complete)} complete already")
        if missing or repeat_disturbed:
            say_whether_quiet(self.console)
        for config in complete:
            self.known.learn(self.folder.read_run(config))
        # Disturbed runs follow before the next repeat begins: runs that are compared stay close in time.
        later = missing
        for _, repeat in groupby(missing, key=lambda config: config.repeat):
            block = list(repeat)
            later = later[len(block) :]
            self._run_all(block, missing, later)
            if self.repeated:
                runs = [self.folder.read_run(config) for config in block]
                again = [run.config for run in self.repeated.choose(runs, self.console)]
                self._run_all(again, missing, later, again=True)
        if repeat_disturbed:
            runs = [self.folder.read_run(config) for config in complete]
            again = [run.config for run in runs if is_to_be_repeated(run, self.console)]
            self._run_all(again, complete, (), again=True)
        self._require_all_complete(configs)

    def _run_all(
        self,
        configs: Sequence[RunConfig],
        counted: Sequence[RunConfig],
        later: Sequence[RunConfig],
        again: bool = False,
    ) -> None:
        """Launch these runs, which are among `counted`; those in `later` will follow them.

        `again`: they are complete, and their records are set aside first.
        Raises StudyStoppedError as soon as the workers have saved, where the user asked to stop.
        """
        with StudyProgress(self.console, self.known) as progress:
            for index, config in enumerate(configs):
                self._require_no_request()
                progress.begin(config, counted, [*configs[index + 1 :], *later], again)
                self._run(config, progress, again)
        self._require_no_request()

    def _run(self, config: RunConfig, progress: StudyProgress, again: bool) -> None:
        run_folder = self.folder.run_folder(config)
        begin = time.monotonic()
        # Set aside only now: if the study is ended before, the complete record stays.
        if again:
            set_disturbed_aside(run_folder)
        elif self.folder.read_run(config).state.is_complete:  # forced
            set_launch_aside(run_folder)
        program = [str(training_script(config.framework)), str(run_folder)]
        look = partial(self._look, progress)
        launch(program, config.workers, run_folder / OUTPUT_NAME, self.cores_each, look, progress.steps_file)
        run = self.folder.read_run(config)
        self.known.learn(run)
        outcome = _outcome(run, time.monotonic() - begin)
        # The record names the signal that passed the request on to the workers.
        progress.end(outcome.replace(f"asked to stop by {WORKER_SIGNAL.name}", "you asked to stop"))

    def _look(self, progress: StudyProgress, mpiexec: int, worker: Sequence[str]) -> None:
        """Show the progress; where the user asked to stop, tell the workers."""
        if not self.request.received:
            progress.show()
            return
        self.request.pass_on(mpiexec, worker)
        with suppress(OSError):  # the terminal may be gone; the workers save all the same
            progress.say_that_it_stops()

    def _require_no_request(self) -> None:
        if self.request.received:
            again = os.environ.get(GO_ON_VARIABLE) or called("run", *sys.argv[1:])
            raise StudyStoppedError(f"stopped; run the same command to go on: {again}", EXIT_RESUME)

    def _require_all_complete(self, configs: Sequence[RunConfig]) -> None:
        states = {config.run: self.folder.read_run(config).state for config in configs}
        incomplete = {run: state for run, state in states.items() if not state.is_complete}
        if incomplete:
            lines = [f"{run}: {state.state}: {state.reason}" for run, state in incomplete.items()]
            diverged = all(state.state == "diverged" for state in incomplete.values())
            cure = "mend what is said of them, and run the same command again"
            if diverged:  # the same seed gives the same steps
                cure = (
                    "they would diverge again: lower training.learning_rate, or raise training.warmup_epochs"
                )
            raise UserError(
                f"{len(incomplete)} of {len(configs)} runs did not complete; {cure}\n  " + "\n  ".join(lines),
                EXIT_DIVERGED if diverged else EXIT_BUG,
            )


def _outcome(run: RecordedRun, seconds: float) -> str:
    """Return how a launch ended: its speed and IoU where it is complete, or else why it is not."""
    if run.record is None or not run.state.is_complete:
        return f"{run.state.state} after {seconds:.0f} s: {run.state.reason or 'see ' + OUTPUT_NAME}"
    result = run.record.results[-1] if run.record.results else None
    disturbed = explain_disturbance(run)
    images = images_per_second(run.record.epochs)
    speed = f"{images:.1f} images/s" if images is not None else ""
    parts = [
        f"complete in {seconds:.0f} s",
        f"as {run.config.played_workers} workers" if run.config.is_played else speed,
        "emulated" if run.config.is_emulated else "",
        f"{score_title(result.score_name)} {score:.3f}"
        if result and (score := result.score) is not None
        else "",
        f"disturbed: {disturbed}" if disturbed else "",
    ]
    return ", ".join(filter(None, parts))


def plan_local_runs(
    folder: StudyFolder,
    console: Console,
    repeat_disturbed: bool = False,
    force: Collection[str] = (),
    gres: str | None = None,
) -> tuple[list[RunConfig], KnownSeconds]:
    """Return the runs that run_study would launch, and the seconds of complete ones; write nothing.

    `gres`: see `KnownSeconds`. Each record is read once, and none is kept. Raises UserError where the study
    could not start either.
    """
    configs = folder.require_same()
    require_ready(folder, configs)
    wanted = {config.run: config for config in configs}
    known = KnownSeconds(gres)
    for run in folder.read_runs(configs):
        known.learn(run)
        is_kept = run.state.is_complete and run.config.run not in force
        if is_kept and not (repeat_disturbed and is_to_be_repeated(run, console)):
            wanted.pop(run.config.run, None)
    return list(wanted.values()), known


def cores_per_worker(study: StudyConfig, cores: int) -> int:
    """Return the cores of a worker, equal at every worker count: the largest one decides. Raises UserError.

    A played run has as many as each of the workers that it plays would have, so that threads add sums in the
    same order, unless the study sets training.cores_per_worker.
    """
    largest = max(study.workers)
    if largest > cores:
        raise UserError(
            f"study {study.name}: workers = {largest} need {largest} cores, this machine gives {cores}; "
            f"the largest worker count here is {cores}"
        )
    own = study.training.get("cores_per_worker")
    if own is not None:
        most: int = max(own) if isinstance(own, list) else own
        if most * largest > cores:
            allowed = f"training.cores_per_worker of at most {cores // largest}"
            raise UserError(
                f"study {study.name}: workers = {largest} with training.cores_per_worker = {most} need "
                f"{most * largest} cores, this machine gives {cores}; {allowed}"
            )
    plays = study.training.get("plays")
    if plays is None or own is not None:
        return cores // largest
    played: list[int] = plays if isinstance(plays, list) else [plays]
    return max(1, cores // max(largest, *played))


def require_ready(folder: StudyFolder, configs: Sequence[RunConfig]) -> None:
    """Raise UserError where jobs of this study may be queued or running, or where every run would fail."""
    study = folder.path
    submissions = read_submissions(study)
    jobs = set()
    doubt = ""
    known = KnownJobs(submissions)
    concerned = {path: each for path, each in submissions.items() if each or known.find(path, None)}
    for run_folder, state, found in find_states(concerned, known=known):
        submission = submissions[run_folder]
        if found and state.state in ACTIVE:
            noted = [submission.job or submission.token] if submission else []
            jobs |= {job.job for job in found if job.job} or set(noted)
            # The queue lists a job that only may hold the run, so that it can be cancelled.
            if state.state == "unknown" and (submission or not found[0].job):
                doubt = state.reason
    named = ", ".join(sorted(jobs))
    if doubt:
        raise UserError(
            f"{study.name}: jobs {named} may be queued or running, and cannot be asked for: "
            f"{doubt}. Where they are over, rename {study}/*/{JOB_NAME}"
        )
    if jobs:
        raise UserError(
            f"{study.name}: jobs {named} of this study are queued or running (squeue --me); wait for "
            f"their end, or cancel them: {CALLED} cancel {study}"
        )
    check_inputs(configs)
    require_images(configs)


def take_over(
    folder: StudyFolder, configs: Sequence[RunConfig], force: Collection[str] = ()
) -> list[RunConfig]:
    """Return the runs to launch here: those that are incomplete or in `force`.

    Their former jobs, which have ended, are set aside: else they would decide the states of the runs.
    """
    missing = []
    for config in configs:
        if config.run not in force and folder.read_run(config).state.is_complete:
            continue
        missing.append(config)
        run_folder = folder.run_folder(config)
        set_submissions_aside(run_folder)
    return missing
