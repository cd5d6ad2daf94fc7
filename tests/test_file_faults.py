"""Each file that a command reads or writes, with something else in its place: no traceback, no endless wait.

The command ends with one line that names the file, or goes on without it and says so. All other files stay.
"""

import contextlib
import ctypes
import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import slurm.after_run
from slurm.launch.study_folder import StudyFolder
from tests.disks import full, small_disk, small_files
from tests.records import older_log, write_record, write_run
from tests.reports import without_figures
from tests.saliency_records import write_explained
from tests.studies import CPU_SITE, OWN_STUDY, TINY_STUDY, make_images
from tests.tasks import POINTS
from tests.trained import TrainedRuns, plain_config
from unet_scaling import subcommands
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.data.folder import FilePair
from unet_scaling.inference.segment import segment
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_study

LONGEST_SECONDS = 20
# Of memory, for a command: /dev/zero does not end.
MOST_BYTES = 1 << 30
HUGE_BYTES = 32 << 20
# By its name, what puts something at a path.
Faults = Mapping[str, Callable[[Path], object]]
# Of Linux: the version of its structures, and the rights to read, write and enter whatever the mode.
CAPABILITY_VERSION = 0x20080522
IGNORE_MODES = 0b110


class WaitsError(BaseException):
    """A command did not end in time; nothing of the product catches it."""


def socket_at(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:  # its path has to be short
        server.bind(path.name)


def without_permission(path: Path) -> None:
    path.touch(0)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


NOTHING_THERE: Faults = {
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link through a file": lambda path: path.symlink_to("/dev/null/below"),
    "link of a long name": lambda path: path.symlink_to("x" * 256),
}
SPECIAL: Faults = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": socket_at,
    "null device": lambda path: path.symlink_to("/dev/null"),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "no permission": without_permission,
}
FAULTS: Faults = {
    **SPECIAL,
    **NOTHING_THERE,
    "empty": lambda path: path.touch(),
    "binary": lambda path: path.write_bytes(bytes(range(128, 256)) * 8),
    "NUL": lambda path: path.write_bytes(bytes(64)),
    "huge": huge,
}

STUDY = "logs/study"
RUN = f"{STUDY}/pytorch_native-w01-r1"
FAILED = "logs/failed/pytorch_native-w01-r1"
AFTER_RUN = "after_run"
DRY_RUN = "run study.toml --dry-run --logs logs"
SUBMISSION = "submit study.toml --cluster site.toml --logs logs"
CHECK = "check study.toml --only-files"
REPORT = f"report {STUDY} --output out"
NEW = "new other --data data --no-probe --into"


@dataclass(frozen=True)
class Use:
    """A command, and a file or folder that it reads or writes, below the ground of the tests.

    goes_on: what it says where it ends with 0 without the file; "": then it has to end with an error.
    optional: a file that is not there is not missed. named: what an error calls it. replaced: what it writes
    anew in any case. faults: those that are tried.
    """

    file: str
    command: str
    goes_on: str = ""
    optional: bool = False
    named: str = ""
    replaced: Sequence[str] = ()
    faults: Faults = field(default_factory=lambda: FAULTS)


MANIFEST = ("data/manifest.json", "data/manifest.json.sha256")
TARGETS = {name: fault for name, fault in FAULTS.items() if name != "folder"}
# Of what is known only by its content.
NO_FILE = {name: fault for name, fault in FAULTS.items() if name not in ("empty", "binary", "NUL", "huge")}
UNKNOWN = {name: fault for name, fault in NO_FILE.items() if name != "no permission"}
# For commands that take a second.
FEW = {name: FAULTS[name] for name in ("pipe", "endless device", "no permission", "link to itself")}
LONG = {name: FAULTS[name] for name in ("link of a long name",)}
NOT_USABLE = r"pytorch_native-w01-r1\s+(invalid|failed)"
STARTS_AGAIN = r"pytorch_native-w01-r1(: 1 worker|/job.sbatch)"
READS = (
    Use("study.toml", CHECK),
    Use("study.toml", DRY_RUN),
    Use("study.toml", f"{SUBMISSION} --dry-run"),
    Use("study.toml", "profile study.toml --seconds 1 --samples 4"),
    Use("site.toml", f"{CHECK} --cluster site.toml"),
    Use("site.toml", f"{SUBMISSION} --dry-run"),
    Use("site.toml", "doctor --cluster site.toml --logs logs"),
    Use("site.toml", "segment trained data/images --output out --cluster site.toml"),
    Use("compute.toml", f"{CHECK} --set emulation.compute=GROUND/compute.toml"),
    Use("compute.json", f"{CHECK} --set emulation.compute=GROUND/compute.json"),
    Use("task.py", "check own.toml --only-files", faults=NO_FILE),
    Use("task.py", "run own.toml --dry-run --logs logs", goes_on="would start"),
    Use("task.py", "new other --task task.py --no-probe --into .", goes_on="other.toml is written"),
    Use("table.csv", "report --csv table.csv --output out"),
    Use("older", "report --reference older --output out"),
    Use("older/log_1.csv", "report --reference older --output out", goes_on="log_1.csv: ", faults=FEW),
    # Images and their manifest.
    Use("data", "data check data"),
    Use("data/images", "data check data", faults=TARGETS),
    Use("data/masks", "data check data", faults=TARGETS),
    Use("data/images/000.png", "data check data"),
    Use("data/masks/000.png", "data check data"),
    Use("data/images/000.png", CHECK),
    Use("data/masks/000.png", DRY_RUN.replace("--dry-run", "--force pytorch_native-w01-r1")),
    Use("data/images/000.png", f"{NEW} ."),
    Use("data/images/000.png", "profile study.toml --seconds 1 --samples 4"),
    Use("data/images", "segment trained data/images --output out"),
    Use("data/manifest.json", CHECK),
    Use("data/manifest.json", f"{NEW} .", goes_on="other.toml is written", optional=True),
    Use("data/manifest.json", "profile study.toml --seconds 1 --samples 4"),
    Use("data/manifest.json", "serve trained --port 0", named="manifest.json"),
    Use(MANIFEST[1], CHECK, named="manifest.json", optional=True),
    Use("data/synthetic.json", "data make data --count 1"),
    # Records of a study, and what lies beside them.
    Use(STUDY, f"status {STUDY}"),
    Use(STUDY, REPORT, faults=TARGETS),
    Use(f"{STUDY}/study.json", f"status {STUDY}", optional=True),
    Use(f"{STUDY}/study.json", DRY_RUN, optional=True),
    Use(f"{STUDY}/study.json", f"cancel {STUDY}", optional=True),
    Use(f"{STUDY}/study.json", REPORT, optional=True),
    Use(f"{STUDY}/repeats.json", DRY_RUN, optional=True),
    Use(f"{STUDY}/.cancelled", SUBMISSION + " --dry-run", goes_on="job", optional=True),
    Use(f"{RUN}/config.json", f"status {STUDY}", optional=True),
    Use(f"{RUN}/config.json", DRY_RUN, optional=True),
    Use(f"{RUN}/config.json", f"{AFTER_RUN} {RUN}"),
    Use("trained/config.json", "serve trained --port 0"),
    Use(f"{RUN}/run.jsonl", f"status {STUDY}", goes_on=NOT_USABLE),
    Use(f"{RUN}/run.jsonl", DRY_RUN, goes_on=STARTS_AGAIN),
    Use(f"{RUN}/run.jsonl", f"{SUBMISSION} --dry-run", goes_on=STARTS_AGAIN),
    Use(f"{RUN}/run.jsonl", REPORT, goes_on="no usable run of native DDP", faults=LONG),
    Use(
        f"{RUN}/run.jsonl",
        f"compare {STUDY} {STUDY} --output out",
        goes_on="leaves out 1 run",
        faults=FEW,
    ),
    Use(
        "logs/scaled/pytorch_native-w01-r1/run.jsonl",
        "predict logs/scaled --for 8 --output out",
        named="native DDP: no run on 1 worker",
        faults=FEW,
    ),
    Use(f"{RUN}/run.jsonl", f"{AFTER_RUN} {RUN}"),
    Use("trained/run.jsonl", "serve trained --port 0"),
    Use(f"{RUN}/run.attempt1.jsonl", DRY_RUN, goes_on="0 would start"),
    Use(f"{RUN}/job.json", f"status {STUDY}", optional=True),
    Use(f"{RUN}/job.json", f"cancel {STUDY}", optional=True),
    Use(f"{RUN}/.try-1", f"status {STUDY}", optional=True),
    Use(f"{FAILED}/error.attempt1.worker0.json", "status logs/failed", goes_on="failed"),
    Use(f"{FAILED}/output.log", "status logs/failed", goes_on="failed"),
    Use("trained/weights.pt", "serve trained --port 0"),
    Use("trained/weights.pt.sha256", "serve trained --port 0", named="weights.pt"),
)
WRITES = (
    Use("data/manifest.json", "data check data", faults=NO_FILE, replaced=MANIFEST),
    Use(MANIFEST[1], "data check data", faults=NO_FILE, replaced=MANIFEST, goes_on="sha256"),
    Use("new.json", "data check data --manifest new.json"),
    Use("made", "data make made --count 1", faults=TARGETS),
    Use("other.toml", f"{NEW} ."),
    Use("other.manifest.json", f"{NEW} .".replace("data data", "data bare"), faults=NO_FILE),
    Use("into", f"{NEW} into", faults=TARGETS),
    Use("logs", SUBMISSION, faults=TARGETS),
    Use("logs", DRY_RUN.replace("--dry-run", ""), faults=TARGETS),
    Use(f"{STUDY}/.lock", SUBMISSION, goes_on="0 to submit"),
    Use("out", REPORT, faults=FEW),
    Use("out/report.html", REPORT, faults={name: UNKNOWN[name] for name in ("pipe", "dangling link")}),
    Use("out", "report --csv table.csv --output out", faults=FEW),
    Use("out", f"compare {STUDY} {STUDY} --output out", faults=FEW),
    Use("out", "predict logs/scaled --for 8 --output out", faults=FEW),
    Use("out", "segment trained data/images --output out", faults=TARGETS),
    Use("out", "serve trained --measure data/images --output out", faults=TARGETS),
    Use("speeds.csv", "segment trained data/images --output out --speeds speeds.csv", faults=SPECIAL),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, trained_run: TrainedRuns, images: Path) -> Path:
    """All files, at the place where the tests use them; their copy is returned."""
    ground = tmp_path_factory.mktemp("faults") / "ground"
    data = make_images(ground / "data", count=6)
    text = TINY_STUDY.format(data=data, workers=[1], epochs=3)
    texts = {
        "study.toml": text,
        "own.toml": OWN_STUDY.format(task="task.py"),
        "task.py": POINTS,
        "site.toml": CPU_SITE,
        "compute.toml": (PROJECT / "slurm" / "profiles" / "v100_like.toml").read_text(),
        "table.csv": "workers,seconds\n1,10.0\n2,5.5\n4,3.0\n",
    }
    for name, content in texts.items():
        (ground / name).write_text(content)
    (ground / "older").mkdir()
    for name in ("log_1.csv", "log_2.csv", "log_hvd_1.csv"):
        (ground / "older" / name).write_text(older_log())
    folder = StudyFolder(ground / STUDY, read_study(ground / "study.toml"))
    folder.prepare()
    for config in folder.study.configs():
        write_record(folder.run_folder(config), config)
    for workers in (1, 2, 4):
        write_run(ground / "logs" / "scaled", workers=workers, images_per_second=90.0 * workers)
    write_run(ground / "logs" / "failed", end=None)
    for part in ("images", "masks"):
        shutil.copytree(data / part, ground / "bare" / part)
    shutil.copytree(trained_run(plain_config(data, workers=1)).folder, ground / "trained")
    shutil.copytree(ground, ground.parent / "sound")
    return ground.parent / "sound"


@pytest.fixture
def ground(sound: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh(sound, monkeypatch)


def fresh(sound: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the ground as it was, in which commands are then called."""
    ground = sound.parent / "ground"
    wanted = sound_contents(sound)
    for name, found in contents(ground).items():
        if found != wanted.get(name):
            remove(ground / name)
    for name in sorted(wanted):
        if (sound / name).is_dir():
            (ground / name).mkdir(exist_ok=True)
        elif not (ground / name).exists():
            shutil.copy(sound / name, ground / name)
    monkeypatch.chdir(ground)
    return ground


@cache
def sound_contents(sound: Path) -> dict[str, str]:
    return contents(sound)


def remove(path: Path) -> None:
    if os.path.lexists(path):
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
        shutil.rmtree(path) if is_folder else path.unlink()


def put(fault: Callable[[Path], object], path: Path) -> None:
    """Put something else in place of a file or folder."""
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fault(path)


def set_capabilities(*, ignore_modes: bool) -> None:
    """Give root its right to read whatever the mode, or take it from this thread."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    # effective, permitted and inheritable, of the lower and the upper bits
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] = sets[1] if ignore_modes else sets[1] & ~IGNORE_MODES
    libc.capset(header, sets)


@contextmanager
def limited() -> Iterator[None]:
    """End what waits for ever, or fills the memory; root reads what its mode allows."""

    def end(*_: object) -> None:
        raise WaitsError(f"it waits for more than {LONGEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    set_capabilities(ignore_modes=False)
    try:
        yield
    finally:
        set_capabilities(ignore_modes=True)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def called(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Call a command in this process; return its exit code, and what it says, with any traceback."""
    name, *words = command.replace("GROUND", str(Path.cwd())).split()
    main = slurm.after_run.main if name == AFTER_RUN else subcommands.main
    monkeypatch.setattr(sys, "argv", ["unet-scaling", *([] if name == AFTER_RUN else [name]), *words])
    output, errors = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), without_figures():
        try:
            # There is no Slurm.
            with limited(), pytest.MonkeyPatch.context() as patch:
                patch.setenv("PATH", "")
                run_program(main)
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:
            errors.write(traceback.format_exc())
    return int(str(code or 0)), output.getvalue(), errors.getvalue()


def contents(ground: Path) -> dict[str, str]:
    """Return what each file, folder or other thing is, by its place."""
    found = {}
    for place, folders, files in os.walk(ground):
        for name in (*folders, *files):
            path = Path(place, name)
            facts = path.lstat()
            text = str(facts.st_mode)
            if stat.S_ISLNK(facts.st_mode):
                text += str(path.readlink())
            elif stat.S_ISREG(facts.st_mode):
                small = facts.st_size < HUGE_BYTES
                text += hashlib.sha256(path.read_bytes()).hexdigest() if small else "huge"
            found[os.path.relpath(path, ground)] = text
    return found


def mistake(use: Use, fault: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is wrong with how a command takes a fault; empty where nothing is."""
    before = contents(Path.cwd())
    code, output, errors = called(use.command, monkeypatch)
    after = contents(Path.cwd())
    lost = [name for name in before if after.get(name) != before[name] and name not in use.replaced]
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    if "Traceback" in output + errors:
        return errors
    if lost:
        return f"changes {lost}"
    if code == 0:
        silent = use.optional and fault in NOTHING_THERE
        said = use.goes_on and re.search(use.goes_on, output + errors)
        return "" if silent or said else f"ends with 0, and says {output + errors}"
    if use.command.startswith(AFTER_RUN):
        return "" if Path(use.file).name in output else f"ends with {code}, and says {output + errors}"
    if len(told) != 1 or (use.named or Path(use.file).name) not in errors:
        return f"ends with {code}, and says {errors}"
    if "; " not in errors and "run " not in errors:
        return f"says no cure: {errors}"
    return ""


@pytest.mark.parametrize("use", [*READS, *WRITES], ids=lambda use: f"{use.file}: {use.command}")
def test_what_stands_in_place_of_a_file_is_named(
    use: Use, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, fault in use.faults.items():
        ground = fresh(sound, monkeypatch)
        put(fault, ground / use.file)
        found[name] = mistake(use, name, monkeypatch)
    assert not {name: text for name, text in found.items() if text}


def test_a_report_goes_on_without_what_it_cannot_read(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has another fault in one of its files: it is left out, or used without that file."""
    study = ground / "logs" / "many"
    missed, used = set(), set()
    notes = []
    faults = [fault for name, fault in FAULTS.items() if name not in LONG]
    for number, fault in enumerate(faults, start=1):
        for place, name in enumerate(("config.json", "run.jsonl")):
            run = write_run(study, workers=2 + place, repeat=number)
            put(fault, run / name)
            missed.add(run.name)
        for place, name in enumerate(("run.attempt1.jsonl", "run.disturbed1.jsonl", "ping_pong.json")):
            run = write_run(study, workers=4 + place, repeat=number)
            put(fault, run / name)
            used.add(run.name)
        put(fault, study / "predictions" / f"{number}.json")
        notes.append(f"predictions/{number}.json cannot be read")
    explained = write_explained(ground / "logs" / "explained")
    put(os.mkfifo, explained / "saliency" / "manifest.json")
    code, _, errors = called("report logs/many --output out", monkeypatch)
    assert (code, errors) == (0, "")
    told = (ground / "out" / "summary.json").read_text()
    assert {run["run"] for run in json.loads(told)["left_out"]} == missed
    assert not [note for note in notes if note not in told]
    code, output, errors = called("report logs/explained --output maps", monkeypatch)
    assert (code, errors) == (0, "")
    assert "saliency/manifest.json is not used" in output


@pytest.mark.parametrize("fault", [name for name in UNKNOWN if name not in LONG])
def test_segment_leaves_what_is_in_place_of_a_mask(fault: str, ground: Path) -> None:
    put(UNKNOWN[fault], ground / "masks" / "000.png")
    before = contents(ground)
    segmenter: Any = None
    with limited(), pytest.raises(UserError, match=r"masks/000.png is there and was not made by segment"):
        segment(segmenter, ground / "data", FilePair("000", "000.png", "000.png"), ground / "masks")
    assert contents(ground) == before


@pytest.mark.parametrize("name", ["config.json", "run.jsonl"])
@pytest.mark.parametrize("fault", [name for name in NO_FILE if name not in (*LONG, "dangling link")])
def test_a_worker_leaves_a_folder_whose_files_it_cannot_read(
    fault: str, name: str, ground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its record is there: it may be that of a complete run."""
    put(NO_FILE[fault], ground / RUN / name)
    before = contents(ground)
    monkeypatch.setattr(sys, "argv", ["train.py", RUN])
    with limited(), pytest.raises(UserError, match=name), open_run("Train."):
        pass
    assert contents(ground) == before


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    """Of `<(COMMAND)`: its writer is there before its reader, and may be slow."""
    text = "import sys; from pathlib import Path; from unet_scaling.base.files import read_given\n"
    text += "print(read_given(Path(sys.argv[1])))"
    words = ["bash", "-c", '"$0" -c "$1" <(sleep 0.2; printf 1; sleep 0.2; printf 2)', sys.executable, text]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "b'12'\n"


WRITERS = (
    f"{NEW} .",
    "data check data --manifest new.json",
    "data make made --count 1",
    REPORT,
    f"compare {STUDY} {STUDY} --output out",
    "predict logs/scaled --for 8 --output out",
    f"cancel {STUDY}",
    SUBMISSION.replace("--logs logs", "--logs others"),
    DRY_RUN.replace("--dry-run --logs logs", "--logs others"),
)


def empty_files(_: Path) -> AbstractContextManager[None]:
    """No file may have a byte, as where a quota is used up."""
    return small_files(0)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    for mode in ("ro", "rw"):
        subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)
        if mode == "ro":
            yield


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("state", [empty_files, full, read_only])
def test_what_cannot_be_written_is_named_and_all_else_stays(
    state: Callable[[Path], AbstractContextManager[None]],
    command: str,
    sound: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unet_scaling.base.files.PAUSES_SECONDS", ())
    ground = sound.parent / "ground"
    with disk_at(ground) if state is not empty_files else nullcontext():
        fresh(sound, monkeypatch)
        with state(ground):
            before = contents(ground)
            code, output, errors = called(command, monkeypatch)
            after = contents(ground)
    assert code != 0, output
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if line.startswith("error: ")]) == 1, errors
    assert {name: after.get(name) for name in before} == before
    left = [name for name in after if name not in before and Path(name).name.startswith(".")]
    assert set(map(os.path.basename, left)) <= {".lock"}


@contextmanager
def disk_at(ground: Path) -> Iterator[None]:
    """Let a disk of its own be there; skip where this user may not mount."""
    if os.geteuid():
        pytest.skip("only root mounts a disk")
    with small_disk(ground, mebibytes=8):
        yield
