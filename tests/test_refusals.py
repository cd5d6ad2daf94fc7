"""What may not be compared is refused, withheld or remarked on, and the reason names fact and values."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.honest import Honest, write_honest
from tests.records import digest, make_header, make_point, make_workers, older_log, write_run
from tests.reports import report_of, report_of_older
from tests.tampering import Runs, config
from unet_scaling.format.record import RECORD_NAME, set_record_aside
from unet_scaling.format.record_lines import Resumed, WorkerFacts
from unet_scaling.study.config import FRAMEWORKS, Framework

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
NATIVE: Framework = "pytorch_native"
YES, NO, UNKNOWN = "yes", "no", "not known"
TORCH = {"python": "3.11.2", "torch": "2.12.0"}
# Of one run: its framework, its workers, what its header says otherwise, and its options.
Run = tuple[Framework, int, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]


def run(framework: Framework = NATIVE, count: int = 1, options: Any = None, **header: Any) -> Run:
    return framework, count, header, options or {}


def variable(**environment: str) -> dict[str, Any]:
    """Workers that have these variables beside those of all."""
    return {
        "workers": [
            each.model_copy(update={"environment": (each.environment or {}) | environment})
            for each in make_workers(1)
        ]
    }


def moment(seconds: float) -> str:
    """So many seconds after the first run of a study began."""
    return f"{START + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def write(folder: Path, runs: Sequence[Run], images: int = 48) -> Path:
    """Write these runs as repeats 1, 2, ... of their points, in the order of their start, a minute apart."""
    repeats: dict[tuple[str, int], Any] = {}
    for number, (framework, workers, header, options) in enumerate(runs):
        repeat = next(repeats.setdefault((framework, workers), itertools.count(1)))
        about = {"started_utc": moment(60 * number)} | dict(header)
        write_run(folder, framework, workers, repeat, options=options, header=about, images_per_epoch=images)
    return folder


BOTH = (run(), run("horovod"))
NINE = tuple(run(FRAMEWORKS[number % 2]) for number in range(9))
CHANGED = tuple(run(framework, dirty=True, commit="later") for framework in (NATIVE, "horovod") * 4)
TUNED = variable(HOROVOD_HIERARCHICAL_ALLREDUCE="1")
YIELDING = {"horovod": {"yield_when_idle": True}}
TWO_CORES = {"training": {"cores_per_worker": 2}}


def owning(cores: int) -> dict[str, Any]:
    return {"workers": make_workers(1, cores_each=cores)}


def placed(hosts: str) -> list[WorkerFacts]:
    """As many workers as the name has letters, each on the host of its letter."""
    workers = zip(make_workers(len(hosts)), hosts, strict=True)
    return [each.model_copy(update={"host": host}) for each, host in workers]


# The runs, those refused, and words of the reason.
REFUSED: Mapping[str, tuple[Sequence[Run], set[str], Sequence[str]]] = {
    "commit": ((*NINE, run(commit="another")), {f"{NATIVE}-w01-r6"}, ("but 0123", "9 of 10")),
    "commits of equally many": (
        (*BOTH, run(commit="b"), run("horovod", commit="b")),
        {f"{NATIVE}-w01-r2", "horovod-w01-r2"}, ("2 of 4 runs, the first to start",),
    ),
    "more changed ones than clean ones": (
        (*CHANGED, *NINE[:6]), {f"{framework}-w01-r{n}" for framework in FRAMEWORKS for n in (1, 2, 3, 4)},
        ("uncommitted changes", "kept: committed code"),
    ),
    "one clean among changed ones": ((*CHANGED, run()), set(), ()),
    "clean ones of two commits among them": ((*CHANGED, run(), run("horovod", commit="b")), set(), ()),
    # Without them nothing would be known of 2 workers.
    "changed ones at one point": ((*NINE[:6], *(run(count=2, dirty=True) for _ in range(3))), set(), ()),
    "commits beside one changed run": (
        (*NINE, run(commit="another"), run(dirty=True, commit="a third")),
        {f"{NATIVE}-w01-r6", f"{NATIVE}-w01-r7"}, (),
    ),
    "nodes of several drivers, systems and networks": (
        (*(run(versions=TORCH | {"driver": each, "kernel": each}) for each in ("550", "550", "535")),
         run(versions=TORCH), run(**variable(NCCL_SOCKET_IFNAME="ib1"), versions=TORCH)), set(), (),
    ),
    "a variable": ((*BOTH, run(**variable(NCCL_ALGO="Tree"))), {f"{NATIVE}-w01-r2"}, ("NCCL_ALGO: Tree",)),
    "Horovod's variables in its runs": (
        (run("horovod"), run("horovod", **TUNED)), {"horovod-w01-r2"}, ("ALLREDUCE: 1, but not set",),
    ),
    "Horovod's variables beside native DDP": ((run(), run("horovod", **TUNED)), set(), ()),
    "limits of waiting": (
        (run("horovod"), run("horovod", **variable(HOROVOD_STALL_CHECK_TIME_SECONDS="66"))), set(), (),
    ),
    "variables of an option": (
        (run("horovod"), run("horovod", options=YIELDING, **variable(OMPI_MCA_mpi_yield_when_idle="1"))),
        set(), (),
    ),
    "cores that the study varies": ((run(**owning(1)), run(options=TWO_CORES, **owning(2))), set(), ()),
    "cores that it does not vary": (
        tuple(run(options=TWO_CORES, **owning(cores)) for cores in (2, 2, 3)), {f"{NATIVE}-w01-r3"},
        ("cores per worker: 3, but 2",),
    ),
    "packages of one framework": (
        (run(versions=TORCH), run("horovod", versions=TORCH | {"horovod": "0.28.1"})), set(), (),
    ),
    "transport within a framework": (
        (run(), run(), run(transport={"backend": "nccl"})), {f"{NATIVE}-w01-r3"}, ("nccl, but backend gloo",),
    ),
    "initial weights of the options": (
        (run(), run(options={"model": {"width": 16}}, initial_weights_sha256=digest("wide"))), set(), (),
    ),
    "other hosts": ((run(NATIVE, 2), run("horovod", 2, workers=make_workers(2, host="c"))), set(), ()),
    "workers on each host": (
        (run(NATIVE, 2), run("horovod", 2, workers=placed("ab"))), {"horovod-w02-r1"}, ("host: 1, 1, but 2",),
    ),
    "a shared core": (
        (run(NATIVE, 2, workers=[each.model_copy(update={"cores": [4]}) for each in make_workers(2)]),),
        {f"{NATIVE}-w02-r1"}, ("workers 0 and 1 share core 4 of host node1",),
    ),
    "equal core numbers of two hosts": (
        (run(NATIVE, 2, workers=[each.model_copy(update={"cores": [0]}) for each in placed("ab")]),),
        set(), (),
    ),
    "a shared device": (
        (run(NATIVE, 2, workers=[
            each.model_copy(update={"device_uuid": "GPU-7"}) for each in make_workers(2, device="V100")
        ]),),
        {f"{NATIVE}-w02-r1"}, ("workers 0 and 1 share device GPU-7",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_differ_are_refused_naming_both_values(tmp_path: Path, case: str) -> None:
    runs, refused, words = REFUSED[case]
    found = report_of(write(tmp_path, runs)).left_out
    assert set(found) == refused
    assert all(
        reason.startswith("refused: ") and word in reason for reason in found.values() for word in words
    )


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("commit", {"commit": "another"}),
        ("devices", {"workers": make_workers(1, device="NVIDIA H200")}),
        ("environment NCCL_ALGO", variable(NCCL_ALGO="Tree")),
    ],
)  # fmt: skip
def test_a_run_whose_attempts_differ_is_refused(tmp_path: Path, fact: str, change: dict[str, Any]) -> None:
    resumed = run(attempt=2, resumed=Resumed(epoch=1, step=0), earlier=[make_header(make_point(), **change)])
    found = report_of(write(tmp_path, (resumed, run("horovod")))).left_out
    assert list(found) == [f"{NATIVE}-w01-r1"]
    assert all(
        word in found[f"{NATIVE}-w01-r1"] for word in (f"{fact}: ", "in attempt 1, but", "in attempt 2")
    )


@pytest.mark.parametrize("name", ["NCCL_{}{x}", "NCCL_{0.__class__}", "NCCL_%s", "NCCL_{{"])
def test_a_name_from_data_is_no_template(tmp_path: Path, name: str) -> None:
    odd = run("horovod", **variable(**{name: "1"}))
    found = report_of(write(tmp_path, [run(), run(), run("horovod"), odd])).left_out
    assert [f"environment {name}: " in reason for reason in found.values()] == [True]


ORDER = "order interleaved in time"
ALONE = "one run at a time on a core"
NODES = "same nodes"
Write = Callable[[Path], object]


def in_order(runs: str, minutes: float = 1.0, images: int = 48) -> Write:
    """Write runs on 2 workers that start one after the other: "N1 H1", a letter and a repeat for each."""
    names: dict[str, Framework] = {"N": NATIVE, "H": "horovod"}

    def write_them(folder: Path) -> None:
        for place, name in enumerate(runs.split()):
            started = {"started_utc": moment(60 * minutes * place)}
            write_run(folder, names[name[0]], 2, int(name[1:]), images_per_epoch=images, header=started)

    return write_them


def apart(seconds: int) -> Write:
    """Three pairs of runs that train for 60 s each, of which the second one starts so much later."""
    runs = [
        run(framework, 2, started_utc=moment(repeat + place * seconds))
        for repeat in (1, 2, 3)
        for place, framework in enumerate(FRAMEWORKS)
    ]
    return lambda folder: write(folder, runs, images=1000)


GOES_ON: dict[str, Any] = {
    "attempt": 2, "resumed": Resumed(epoch=2, step=0),
    "earlier": [make_header(make_point(workers=2), workers=make_workers(2))],
}  # fmt: skip


def at(*starts: float, shared: bool = True, **header: Any) -> Write:
    """Runs of both frameworks in turn on 2 workers that train for 6 s each, from these seconds on."""
    runs = []
    for number, second in enumerate(starts):
        workers = make_workers(2)
        if not shared:
            workers = [each.model_copy(update={"cores": [each.worker + 2 * number]}) for each in workers]
        facts = {"workers": workers, "started_utc": moment(second)}
        runs.append(run(FRAMEWORKS[number % 2], 2, **(facts | header)))
    return lambda folder: write(folder, runs, images=100)


def on_hosts(native: Sequence[str], horovod: Sequence[str]) -> Write:
    """Runs of both frameworks in turn, each on the hosts of its letters."""
    runs = [
        run(framework, len(hosts), workers=placed(hosts))
        for pair in zip(native, horovod, strict=True)
        for framework, hosts in zip(FRAMEWORKS, pair, strict=True)
    ]
    return lambda folder: write(folder, runs)


def driven(native: Sequence[str], horovod: Sequence[str]) -> Write:
    """Runs of both frameworks in turn, each with a GPU driver, and of "5 6" resumed on another node."""
    runs = []
    for pair in zip(native, horovod, strict=True):
        for framework, drivers in zip(FRAMEWORKS, pair, strict=True):
            *before, last = ({"versions": TORCH | {"driver": each}} for each in drivers.split())
            earlier = [make_header(make_point(workers=2), workers=make_workers(2), **each) for each in before]
            resumed = (
                {"attempt": 2, "resumed": Resumed(epoch=1, step=0), "earlier": earlier} if earlier else {}
            )
            runs.append(run(framework, 2, **last, **resumed))
    return lambda folder: write(folder, runs)


def of_studies(*names: str) -> Write:
    """Pairs of runs that were moved here from the studies of these letters."""

    def write_them(folder: Path) -> None:
        write_honest(folder, Honest(workers=(2,), repeats=len(names)))
        for repeat, pair in enumerate(names, start=1):
            for framework, name in zip(FRAMEWORKS, pair, strict=True):
                Runs(folder).of(framework, repeats=[repeat]).change(config(study=name))

    return write_them


def both(**header: Any) -> Write:
    return lambda folder: write(folder, (run(NATIVE, 2, **header), run("horovod", 2, **header)))


def unequal_repeats(folder: Path) -> None:
    write(folder, (run(), run("horovod"), run(), run()))


IN_TURN = "N1 H1 H2 N2 N3 H3"
# The study, a row of its fairness table, its mark, whether it withholds, and words of its fact.
CHECKED: Sequence[tuple[str, Write, str, bool, Sequence[str]]] = [
    (ORDER, in_order(IN_TURN), YES, False, ()),
    (ORDER, in_order("N1 H1 H2 N3 H3 N4 H4 N5 H5 N2"), YES, False, ()),
    (ORDER, in_order("N1 N2 H1 H2"), NO, True, ("1 of 1 point",)),
    (ORDER, in_order("H1 H2 H3 H4 H5 N1 N2 N3 N4 N5"), NO, True, ()),
    # One late rerun of one framework does not hide it.
    (ORDER, in_order("N2 N3 N4 N5 H1 H2 H3 H4 H5 N1"), NO, True, ()),
    (ORDER, in_order("N1 H1"), UNKNOWN, False, ()),
    # Slurm starts jobs together: a second before the other's is no doubt.
    (ORDER, in_order("N1 N2 N3 H1 H2 H3", minutes=1 / 300), YES, False, ()),
    (ORDER, apart(20), YES, False, ()),
    (ORDER, apart(59), NO, True, ()),
    (ALONE, at(0, 6, 12, 18), YES, False, ()),
    (ALONE, at(0, 6, 12, 8), NO, True, ("horovod-w02-r1 and horovod-w02-r2", "core 0 of host node1")),
    (ALONE, at(0, 0, shared=False), YES, False, ()),
    (ALONE, at(0, 0, workers=make_workers(2, device="H200")), NO, True, ("on device GPU-0",)),
    # Its last attempt trained for 1 s of 6.
    (ALONE, at(0, 2, **GOES_ON), YES, False, ()),
    (ALONE, both(started_utc="later"), UNKNOWN, False, ()),
    (NODES, on_hosts(["aa"] * 5, ["bb"] * 5), NO, True, ("5 of 5 launches a in native DDP", "b in Horovod")),
    (NODES, on_hosts(["aa"] * 5, ["bb", "bb", "bb", "bb", "aa"]), NO, True, ("5 launches b in Horovod",)),
    (NODES, on_hosts(["aa", "bb", "aa"], ["bb", "aa", "aa"]), NO, False, ()),
    # Of two launches nothing is claimed at all.
    (NODES, on_hosts(["aa", "bb"], ["aa", "cc"]), NO, False, ()),
    (NODES, on_hosts(["abcd"] * 5, ["abcs"] * 4 + ["abcd"]), NO, True, ("4 of 5 launches s in Horovod",)),
    (NODES, on_hosts(["abcd"] * 5, ["abcs"] * 3 + ["abcd"] * 2), NO, False, ()),
    (NODES, driven(["550", "550", "535"], ["550", "535", "550"]), YES, False, ("driver 550, 535",)),
    (NODES, driven(["550"] * 3, ["535"] * 3), NO, True, ("550 in native DDP", "535 in Horovod")),
    (NODES, driven(["550", "550 535"], ["550", "550"]), YES, False, ("version of driver 550, 535",)),
    ("same machine in all attempts", driven(["550", "550 535"], ["550", "550"]), NO, False,
     ("attempt 1 on node1 with version of driver 550, attempt 2 on node1 with version of driver 535",)),
    ("runs of one study", of_studies("ab", "ba", "aa"), NO, False, ("are read as one: a and b",)),
    ("runs of one study", of_studies("ab", "ab", "ab"), NO, True, ("a in native DDP", "b in Horovod")),
    ("same software", both(dirty=True), UNKNOWN, False, ()),
    ("same software", lambda folder: write(folder, (*CHANGED, run())), NO, False, ("True, False",)),
    ("equal repeats", unequal_repeats, NO, False, ("1 to 3 per point",)),
]  # fmt: skip


# Of each row so many cases: "same baseline 2".
NAMES = [
    f"{row} {[check for check, *_ in CHECKED[:n]].count(row) + 1}" for n, (row, *_) in enumerate(CHECKED)
]


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=NAMES)
def test_a_row_of_the_fairness_table_says_what_the_records_say(tmp_path: Path, number: int) -> None:
    check, write_it, mark, withholds, words = CHECKED[number]
    write_it(tmp_path)
    found = report_of(tmp_path).check(check)
    assert found[:2] == (mark, withholds), found
    assert all(word in found[2] for word in words), found


def test_a_record_of_an_attempt_that_was_removed_is_named(tmp_path: Path) -> None:
    """And no number is given again: nothing is written over."""
    study = write_honest(tmp_path / "study", Honest(workers=(2,), repeats=3))
    first, *_ = sorted(study.glob("horovod*"))
    shutil.copy(first / RECORD_NAME, first / "run.attempt2.jsonl")
    found = report_of(study)
    assert not found.left_out
    assert f"{first.name}: records of earlier attempts were removed" in found.notes
    set_record_aside(first)
    assert sorted(path.name for path in first.glob("run*.jsonl")) == [
        "run.attempt2.jsonl",
        "run.attempt3.jsonl",
    ]


def test_a_fair_study_has_no_unmet_row_and_older_logs_know_but_their_repeats(tmp_path: Path) -> None:
    marks = {row["check"]: row["mark"] for row in report_of(write_honest(tmp_path / "fair")).rows("checks")}
    assert set(marks.values()) == {"yes"}
    for name in ("log_1.csv", "log_hvd_1.csv"):
        (tmp_path / name).write_text(older_log())
    marks = {row["check"]: row["mark"] for row in report_of_older(tmp_path).rows("checks")}
    assert marks.pop("equal repeats") == "yes"
    assert set(marks.values()) == {"not known"}


def test_what_withholds_at_a_point_leaves_other_points_alone(tmp_path: Path) -> None:
    """Horovod's runs on 4 workers all came later; on 2 workers the frameworks took turns."""
    for repeat in range(1, 6):
        for place, framework in enumerate(FRAMEWORKS):
            for workers, hours in ((2, repeat), (4, 20 + 10 * place + repeat)):
                speed = (112 if place == 0 else 100) * workers + 0.1 * repeat
                header = {"started_utc": moment(3600 * hours + 1200 * place)}
                write_run(tmp_path, framework, workers, repeat, images_per_second=speed, header=header)
    found = report_of(tmp_path)
    assert found.outcomes == ["native DDP faster", "withheld"]
    assert found.rows("comparison")[1]["doubts"].endswith(ORDER)
    assert any(doubt.startswith(f"{ORDER}: no: ") for doubt in found.report.doubts)
