"""One attempt at a time in a run folder, whatever started it: worker 0 owns `owner.json` while it lives.

Locks of shared file systems may do nothing in silence, so the claim is a file, made exclusively, that says
which process made it. On the same machine that process is looked up; elsewhere the file's time tells, which
its owner renews every few seconds. Clocks of hosts are not compared: both times are the file system's.
"""

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from unet_scaling.base.errors import UserError
from unet_scaling.base.files import PRIVATE, read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.validation import StrictModel
from unet_scaling.group.identity import job_id
from unet_scaling.group.watchdog import PROCESSES, START_FIELD, stat_fields
from unet_scaling.study.study_file import OUTPUT_NAME

OWNER_NAME = "owner.json"
BEAT_SECONDS = 10.0
# Several beats: a file server may be slow, and answer from a memory of some seconds.
STALE_SECONDS = 60.0
# mpiexec or Slurm ends the other workers of an attempt that failed in this time.
ENDING_SECONDS = 10.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
ENDED_STATES = ("Z", "X")


class Owner(StrictModel):
    """The process that trains in a run folder."""

    attempt: int
    host: str
    machine: str
    process: int
    begun_ticks: int
    job: str
    restarts: int
    utc: str

    def __str__(self) -> str:
        job = f" of job {self.job}" if self.job else ""
        return f"attempt {self.attempt}, process {self.process} on {self.host}{job}, since {self.utc}"


class RunClaim:
    """The claim of this process on a run folder."""

    def __init__(self, folder: Path, attempt: int, abort: Callable[[Exception], None]) -> None:
        """`abort` is called in a thread of its own where somebody else has taken the folder over."""
        self._path = folder / OWNER_NAME
        self._own = this_process(attempt)
        self._abort = abort
        self._released = threading.Event()
        self._first_try: tuple[float, float] | None = None

    def try_to_take(self) -> str:
        """Return "" where the folder is this process's now, else the owner whose end is waited for.

        Raises UserError where another attempt is alive, and OSError where the folder cannot be written.
        """
        if self._take_over() if self._path.exists() else self._create():
            threading.Thread(target=self._keep, daemon=True).start()
            return ""
        owner = _read_owner(self._path)
        return str(owner) if owner else f"whoever wrote {self._path}"

    def release(self) -> None:
        """Leave the folder to the next attempt, if it is still this process's."""
        self._released.set()
        with suppress(OSError):
            if _read_owner(self._path) == self._own:
                self._path.unlink()

    def _take_over(self) -> bool:
        """Replace a claim that is abandoned; False where it is not, or where another process replaces it.

        Only whoever made the file below removes a claim, and not one that it has not judged.
        """
        judged = _read_owner(self._path), _modified(self._path)
        taking = self._path.with_name(f".{OWNER_NAME}.taking")
        if not self._is_abandoned(*judged):
            return False
        try:
            os.close(os.open(taking, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        except FileExistsError:
            # Where this file is old, its maker was killed.
            if self._age(_modified(taking)) > STALE_SECONDS:
                taking.unlink(missing_ok=True)
            return False
        try:
            if (_read_owner(self._path), _modified(self._path)) != judged:
                return False
            self._path.unlink(missing_ok=True)
            return self._create()
        finally:
            taking.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Write the claim; False where another process was faster."""
        try:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        except FileExistsError:
            return False
        try:
            write_json_with_checksum(self._path, self._own.model_dump(mode="json"))
        except OSError:
            self._path.unlink()
            raise
        return True

    def _is_abandoned(self, owner: Owner | None, beat: float) -> bool:
        """Return whether the attempt before is over; False where that is not known yet.

        Raises UserError where it is not over.
        """
        if self._first_try is None:
            self._first_try = time.monotonic(), beat
        first_moment, first_beat = self._first_try
        waited_seconds = time.monotonic() - first_moment
        if owner is not None and owner.machine and owner.machine == self._own.machine:
            alive = is_alive(owner)
            if alive and waited_seconds >= ENDING_SECONDS:
                raise self._occupied(owner)
            return not alive
        # Slurm starts a job again when its processes have ended, or their node is lost.
        if owner is not None and owner.job == self._own.job != "" and owner.restarts < self._own.restarts:
            return True
        if owner is not None and beat != first_beat:
            raise self._occupied(owner)
        return max(waited_seconds, self._age(beat)) > STALE_SECONDS

    def _age(self, beat: float) -> float:
        """Return seconds since then by the clock of the file system; 0 where it takes no new file."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=f".{OWNER_NAME}.") as probe:
                return os.fstat(probe.fileno()).st_mtime - beat
        except OSError:
            return 0.0

    def _occupied(self, owner: Owner) -> UserError:
        end = f"scancel {owner.job}" if owner.job else f"kill {owner.process} on {owner.host}"
        return UserError(
            f"{self._path.parent} is being trained by {owner}: two attempts of one run cannot train at once; "
            f"wait for it to end, or end it: {end}"
        )

    def _keep(self) -> None:
        """Renew the claim until it is released; a folder that is gone belongs to nobody."""
        while not self._released.wait(BEAT_SECONDS):
            owner = _read_owner(self._path)
            if owner is not None and owner != self._own and not self._released.is_set():
                self._abort(UserError(f"{self._path.parent} was taken over by {owner}"))
                return
            with suppress(OSError):
                os.utime(self._path)


def this_process(attempt: int) -> Owner:
    """Return who this process is, as another one will know it."""
    return Owner(
        attempt=attempt,
        host=socket.gethostname(),
        machine=machine_id(),
        process=os.getpid(),
        begun_ticks=_begun_ticks(os.getpid()) or 0,
        job=job_id(os.environ),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def is_alive(owner: Owner) -> bool:
    """Return whether this very process, on the machine of the caller, has not ended."""
    return _begun_ticks(owner.process) == owner.begun_ticks


def work_on_this_machine(folder: Path) -> str | None:
    """Return "" where a live process of this machine trains in the run folder, "starting" where its workers
    are being started, and None where there is neither."""
    owner = _read_owner(folder / OWNER_NAME)
    if owner is not None and owner.machine == machine_id() != "" and is_alive(owner):
        return ""
    output = folder / OUTPUT_NAME
    return "starting" if output.exists() and holders(output, writing=True) else None


def holders(file: Path, writing: bool = False) -> dict[int, str]:
    """Return the other processes of this machine that have the file open, the oldest first, with their names.

    `writing` leaves out those that only read it.
    """
    found = {}
    for process in sorted(int(path.name) for path in PROCESSES.glob("[0-9]*")):
        facts = PROCESSES / str(process)
        with suppress(OSError):  # it has ended, or is another user's
            opened = [link for link in (facts / "fd").iterdir() if link.exists() and link.samefile(file)]
            if any(not writing or _is_for_writing(facts / "fdinfo" / link.name) for link in opened):
                found[process] = (facts / "comm").read_text().strip()
    found.pop(os.getpid(), None)
    return found


def _is_for_writing(facts: Path) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)$", facts.read_text(), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _read_owner(path: Path) -> Owner | None:
    """Return who claims the folder; none where that cannot be read, or not yet."""
    try:
        return Owner.model_validate(read_json_with_checksum(path))
    except (OSError, ValueError):
        return None


def _modified(path: Path) -> float:
    """Return when a file was renewed, 0 where it is gone; opened, so that a file server is asked."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0.0


def machine_id() -> str:
    """Return the boot and the namespace that a process number belongs to; empty where not Linux."""
    try:
        return f"{BOOT_ID.read_text().strip()} {PID_NAMESPACE.readlink()}"
    except OSError:
        return ""


def _begun_ticks(process: int) -> int | None:
    """Return when a process began, in ticks since the boot; none where there is no such process any more."""
    try:
        state, *_ = fields = stat_fields(Path("/proc", str(process)))
    except OSError:
        return None
    return None if state in ENDED_STATES else int(fields[START_FIELD])
