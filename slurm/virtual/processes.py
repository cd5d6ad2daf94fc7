"""Run programs and daemons; a daemon is found again by the process id and start time that it recorded."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unet_scaling.study.errors import EXIT_BUG, UserError

SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": SYSTEM_FOLDERS, "LC_ALL": "C", "HOME": "/root"}
# exec keeps the process id and the start time, so the line stays true for the daemon. The record appears
# whole or not at all: a daemon whose record is still empty would be taken for one that has ended.
RECORD_AND_BECOME = 'read -r line < "/proc/$$/stat"; echo "$line" > "$0.new"; mv "$0.new" "$0"; exec "$@"'
# Letters of /proc: a zombie, and a process that is being removed.
ENDED_LETTERS = "ZX"
# Daemons are ready within tenths of a second.
PAUSE_SECONDS = 0.1
# SIGKILL acts at once, but a process in a call of the kernel ends only when the call returns.
KILL_SECONDS = 10.0


def run(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a system program and return its standard output; raise UserError with its message if it fails.

    `text` is its standard input; `environment` is added to a minimal one.
    """
    done = attempt(arguments, text, environment)
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip()
        raise UserError(f"`{' '.join(arguments)}` failed with code {done.returncode}: {message}", EXIT_BUG)
    return done.stdout


def attempt(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a system program like `run`, but return its exit code as well instead of raising."""
    variables = {**ENVIRONMENT, **(environment or {})}
    return subprocess.run(arguments, input=text, env=variables, capture_output=True, text=True)


def start_daemon(arguments: Sequence[str], record: Path, log: Path, inside: Sequence[str] = ()) -> None:
    """Start a daemon that records itself in `record`; `inside` is the command that enters its host."""
    record.unlink(missing_ok=True)
    with log.open("a") as output:
        subprocess.Popen(
            [*inside, "sh", "-euc", RECORD_AND_BECOME, str(record), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            start_new_session=True,
        )


def running(record: Path) -> int | None:
    """Return the id of the recorded process, or None if it ended or its id is another process's by now."""
    recorded = record.read_text() if record.exists() else ""
    if not recorded.strip():
        return None
    process_id = int(recorded.split()[0])
    current = _status_line(process_id)
    if current is None:
        return None
    state, start = _state_and_start(current)
    same_process = start == _state_and_start(recorded)[1]
    return process_id if same_process and state not in ENDED_LETTERS else None


def members(namespace: Path) -> list[int]:
    """Return the ids of all processes inside a network namespace."""
    wanted = namespace.stat()
    process_ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is a zombie
            if os.path.samestat((folder / "ns/net").stat(), wanted):
                process_ids.append(int(folder.name))
    return process_ids


def kill(process_ids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


def kill_all(list_processes: Callable[[], Sequence[int]], origin: Path) -> None:
    """Kill what `list_processes` returns until it returns nothing, also processes started while this runs.

    Raise UserError, naming `origin`, if some are still alive after KILL_SECONDS.
    """

    def none_left() -> bool:
        process_ids = list_processes()
        kill(process_ids)
        return not process_ids

    if not wait_until(none_left, KILL_SECONDS):
        raise UserError(f"{origin}: processes {list_processes()} survive SIGKILL", EXIT_BUG)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until `condition` holds; return False if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def tail(log: Path, lines: int = 12) -> str:
    """Return the end of a log, indented, for an error message."""
    if not log.exists():
        return f"{log}: nothing was written"
    last = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n  ".join([f"{log}:", *last])


def _status_line(process_id: int) -> str | None:
    try:
        return Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _state_and_start(line: str) -> tuple[str, str]:
    """Return state letter and start time in ticks since boot; the name before them may hold blanks."""
    fields = line[line.rindex(")") + 1 :].split()
    return fields[0], fields[19]
