"""Programs and daemons: a daemon writes down who it is before it starts, and is known by that only."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from unet_scaling.study.errors import EXIT_BUG, UserError

SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": SYSTEM_FOLDERS, "LC_ALL": "C", "HOME": "/root"}
# exec keeps the process id and the start time, so the line stays true for the daemon. The record appears
# whole or not at all: a daemon whose record is still empty would be taken for one that has ended.
RECORD_AND_BECOME = 'read -r line < "/proc/$$/stat"; echo "$line" > "$0.new"; mv "$0.new" "$0"; exec "$@"'
POLL_SECONDS = 0.1
# SIGKILL acts at once, but a process in a call of the kernel ends only when the call returns.
KILL_SECONDS = 10.0


def run(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a system program to its end and return what it printed; UserError with its message if it fails.

    `text` is its standard input; `environment` comes on top of a bare one.
    """
    done = attempt(arguments, text, environment)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise UserError(f"`{' '.join(arguments)}` failed with code {done.returncode}: {said}", EXIT_BUG)
    return done.stdout


def attempt(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Like `run`, but leaves it to the caller to look at the code."""
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
    """The id of the recorded process, or None if it ended; an id given to another process does not count."""
    recorded = record.read_text() if record.exists() else ""
    if not recorded.strip():
        return None
    process_id = int(recorded.split()[0])
    now = _status_line(process_id)
    if now is None or _state_and_start(now)[1] != _state_and_start(recorded)[1]:
        return None
    return None if _state_and_start(now)[0] in "ZX" else process_id


def members(namespace: Path) -> list[int]:
    """The ids of all processes inside a network namespace."""
    wanted = namespace.stat()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            namespace_of_process = (folder / "ns/net").stat()
        except OSError:  # it ended meanwhile, or is a zombie
            continue
        if (namespace_of_process.st_dev, namespace_of_process.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.append(int(folder.name))
    return found


def kill(process_ids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    for process_id in process_ids:
        try:
            os.kill(process_id, how)
        except ProcessLookupError:
            continue


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
    """Ask until `condition` holds; False if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def tail(log: Path, lines: int = 12) -> str:
    """The end of a log, indented, for an error message."""
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
    """State letter and start time in ticks since boot; the program's name before them may hold spaces."""
    fields = line[line.rindex(")") + 1 :].split()
    return fields[0], fields[19]
