"""Show one table of all runs of a study, and why a run is not complete."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slurm.commands.options import add_submitted_study, find_submitted_study, new_console
from slurm.launch.estimate import images_per_second
from slurm.launch.study_folder import is_at_work
from slurm.scheduler.protocol import ELSEWHERE
from slurm.states import RunStatus, read_statuses
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import called, clean, count
from unet_scaling.format.known_studies import known_studies, studies_table, study_cells
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.run_state import ACTIVE, RecordedRun, State
from unet_scaling.study.near_paths import describe_no_study
from unet_scaling.study.study_file import (
    OUTPUT_NAME,
    config_path,
    list_run_folders,
    read_config,
    recorded_study,
)

REFRESH_SECONDS = 10
# In a narrower terminal a table of all columns would break the names of runs.
WIDE_CHARACTERS = 110
# rich takes milliseconds for a row of a table: longer lists are printed as plain lines.
MOST_TABLE_ROWS = 500
STATUS_COLUMNS = ["run", "state", "epochs", "images/s", "ends", "job", "attempt", "hosts", "why"]
SURPLUS = "not in the study any more"
STYLES: dict[State, str] = {
    "complete": "green", "running": "cyan", "queued": "blue", "waiting": "dim", "resumable": "yellow",
    "unknown": "yellow", "lost": "red", "failed": "red", "rejected": "red", "diverged": "magenta",
    "invalid": "red", "cancelled": "yellow",
}  # fmt: skip


def main() -> None:
    arguments = command_line().parse_args()
    if arguments.study is None:
        if arguments.json or arguments.watch:
            raise UserError("--json and --watch: name a study")
        show_studies(arguments.logs, new_console())
        return
    show_status(find_submitted_study(arguments), new_console(), arguments.json, arguments.watch)


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling status", __doc__)
    add_submitted_study(parser, optional=True)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    form.add_argument("--watch", action="store_true", help="refresh until no run is queued or running")
    return parser


@dataclass(frozen=True)
class StatusRow:
    """One run. `hosts`, `epochs_done`, `images_per_second` and `expected_end` are of its newest attempt.

    `images_per_second` is that of the epochs after the warm-up, or of the warm-up until there are others.
    `surplus`: the run is in the folder, but the study no longer asks for it. `elsewhere`: its job is one of
    another cluster; until the record is complete only that one tells of it.
    """

    run: str
    framework: str
    workers: int
    repeat: int
    state: State
    reason: str
    job: str | None
    attempt: int
    hosts: str
    epochs_done: int
    epochs: int
    images_per_second: float | None
    expected_end: str | None
    surplus: bool = False
    elsewhere: bool = False

    @property
    def why(self) -> str:
        return "; ".join(filter(None, [SURPLUS if self.surplus else "", self.reason]))


def study_rows(folder: Path) -> list[StatusRow]:
    """Return one row per run, by framework, workers and repeat. Raises UserError where there are none."""
    configs = {run_folder: read_config(config_path(run_folder)) for run_folder in list_run_folders(folder)}
    if not configs:
        if any(folder.glob(f"*/{RECORD_NAME}")):
            raise UserError(f"{folder} holds only runs of scripts; {called('report', folder)} reads them")
        raise UserError(describe_no_study(folder, folder.parent))
    study = recorded_study(folder)
    wanted = set(study.run_names()) if study else {config.run for config in configs.values()}
    statuses = read_statuses(configs)
    rows = [_row(run, surplus=run.folder.name not in wanted) for run in statuses]
    return sorted(rows, key=lambda row: (row.framework, row.workers, row.run))


def _row(status: RunStatus, surplus: bool) -> StatusRow:
    config = status.run.config
    record = status.run.record
    header = record.header if record else None
    return StatusRow(
        run=config.run,
        framework=config.framework,
        workers=config.workers,
        repeat=config.repeat,
        state=status.state.state,
        reason=status.state.reason,
        job=status.job_id,
        attempt=header.attempt if header else 0,
        hosts=" ".join(sorted({worker.host for worker in header.workers})) if header else "",
        epochs_done=len(record.epochs) if record else 0,
        epochs=config.training.epochs,
        images_per_second=images_per_second(record.epochs, also_warmup=True) if record else None,
        expected_end=_expected_end(status.run) if status.state.state == "running" else None,
        surplus=surplus,
        elsewhere=status.state.state == "unknown"
        and status.job is not None
        and status.job.state == ELSEWHERE,
    )


def _expected_end(run: RecordedRun) -> str | None:
    """Return the time of day at which the epochs still to do will be done, at the pace of those done."""
    if run.record is None or not run.record.epochs:
        return None
    done = len(run.record.epochs)
    pace = sum(epoch.seconds for epoch in run.record.epochs) / done
    left = timedelta(seconds=pace * (run.config.training.epochs - done))
    return (datetime.now() + left).strftime("%H:%M:%S")


def show_studies(logs: Path, console: Console) -> None:
    """Print the studies of a folder, that of the newest record first."""
    listed = [cells for _, cells in study_cells(known_studies(logs), time.time())]
    console.print(studies_table(listed), soft_wrap=False)
    print(f"one of them: {called('status')} STUDY; a page over all: {called('report', '--index')} {logs}")


def show_status(folder: Path, console: Console, as_json: bool, watch: bool) -> list[StatusRow]:
    """Print the state of all runs, with `watch` again and again until no run is active; return the last."""

    def view() -> Group:
        """Return the table, and below a narrow one why runs are in their states."""
        wide = console.width >= WIDE_CHARACTERS
        reasons = [] if wide else [Text(f"{row.run}: {row.why}") for row in rows if row.why]
        return Group(status_table(folder.name, rows, wide), *reasons)

    rows = study_rows(folder)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif watch:
        with Live(view(), console=console, auto_refresh=False) as live:
            # Between two runs of a study on this machine, none is running.
            while any(row.state in ACTIVE for row in rows) or is_at_work(folder):
                time.sleep(REFRESH_SECONDS)
                rows = study_rows(folder)
                live.update(view(), refresh=True)
    elif len(rows) > MOST_TABLE_ROWS:
        # The columns of the wide table, as plain lines.
        cells = [STATUS_COLUMNS, *([str(cell) for cell in _cells(row)] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        lines.append(": ".join(_summary(folder.name, rows)))
        print("\n".join(map(clean, lines)))
    else:
        console.print(view(), soft_wrap=False)
    if not as_json:
        print(f"what a run printed: {folder}/RUN/{OUTPUT_NAME}")
    return rows


def status_table(name: str, rows: Sequence[StatusRow], wide: bool = True) -> Table:
    """Return the rows as a table with the number of runs in each state below it.

    `wide`: with the job, the attempt, the hosts and why a run is in its state.
    """
    title, caption = _summary(name, rows)
    table = Table(title=title, caption=caption, box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for column in STATUS_COLUMNS[1:5]:
        table.add_column(column, no_wrap=True, justify="right" if column == "images/s" else "left")
    for column in STATUS_COLUMNS[5:] if wide else ():
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row)[: len(table.columns)])
    return table


def _summary(name: str, rows: Sequence[StatusRow]) -> tuple[str, str]:
    """Return a study with the number of its runs, and how many are in each state."""
    states = Counter(row.state for row in rows if not row.surplus)
    caption = ", ".join(f"{number} {state}" for state, number in states.most_common())
    if surplus := sum(row.surplus for row in rows):
        caption += f"; {surplus} more that the study no longer has"
    return f"{name}: {count(states.total(), 'run')}", caption


def _cells(row: StatusRow) -> list[str | Text]:
    """Return a cell for each of STATUS_COLUMNS."""
    return [
        Text(row.run),
        Text(row.state, style=STYLES[row.state]),
        f"{row.epochs_done}/{row.epochs}",
        "" if row.images_per_second is None else f"{row.images_per_second:.1f}",
        row.expected_end or "",
        row.job or "",
        str(row.attempt or ""),
        Text(row.hosts),
        Text(row.why),
    ]
