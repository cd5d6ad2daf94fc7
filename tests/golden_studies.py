"""Every number that `report`, `compare` and `predict` write for committed and for generated studies.

`python -m tests.golden_studies [NAME ...]` prints what differs from tests/golden/studies; `--accept`
writes it there, and git shows the difference for review. Numbers are equal within TOLERANCE; prose is left
out.
"""

import csv
import difflib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from analysis.__main__ import main
from tests.attacks import ON_REPORT, Attack, write_base
from tests.evidence import COMMITTED, evidence
from tests.honest import Honest, write_honest
from tests.records import write_script_run
from tests.reports import without_figures
from tests.tampering import as_own_task
from unet_scaling.study.config import FRAMEWORKS

PROJECT = Path(__file__).parents[1]
GOLDEN = PROJECT / "tests" / "golden" / "studies"
# Relative: files have 10 digits, of which the last may be rounded the other way.
TOLERANCE = 2e-9
# What is left of a sum that cancels, which each processor rounds in its own way.
ROUNDING = 1e-12
# Longer columns, of runs and epochs, are kept as number, sum and sum of squares.
FEW_ROWS = 60
# More words than these are prose.
MOST_WORDS = 4
# Tables of summary.json that have no file: a line per column, as of the files.
TABLES_WITHOUT_FILE = (
    "checks", "diagnoses", "differences", "evaluation_scores", "evaluations", "left_out", "network",
)  # fmt: skip
# Rows of the CSV files once more, and facts of the moment at which a prediction was written.
LEFT_OUT = (
    "summary.json.points", "summary.json.comparisons", "summary.json.iou", "summary.json.cost",
    "summary.json.iou_between_frameworks", "summary.json.top_accuracy",
    "summary.json.top_accuracy_between_frameworks",
    "prediction.written_utc", "prediction.commit", "prediction.dirty", "prediction.sha256",
)  # fmt: skip
COMPARED = {
    "compare_published_gap": ("published_gap_openmpi", "published_gap_intel"),
    "compare_dilation": ("dilation_k14", "dilation_k28"),
}
PREDICTED = {"predict_emulated_scaling": "emulated_scaling", "predict_published_gap": "published_emulated"}
# Attacks of test_attacks whose studies have what no committed one has.
ATTACKED = (
    "all background",
    "one arm stalls",
    "attempts of other code",
    "one arm before the other",
    "one arm on another host",
    "Horovod without NCCL on GPUs",
    "the slower launches of an arm failed",
    "a worker count of one arm removed",
    "another test set in one arm",
)


def _generated() -> Mapping[str, Callable[[Path], object]]:
    """Return what writes each generated study, by its name."""
    attacks = {attack.name: attack for attack in ON_REPORT}
    wrappers = Honest((*FRAMEWORKS, "lightning", "accelerate"), workers=(1, 2), repeats=3, has_files=True)
    every = {"synchronise_every": [1, 4, 16]}
    strategies = Honest(workers=(1, 2), advantage=0.0, overhead=4.0, strategy=every)
    axes = {"precision": ["fp32", "bf16"], "batch_per_worker": [4, 8]}
    made: dict[str, Callable[[Path], object]] = {
        "wrappers": lambda folder: write_honest(folder, wrappers),
        "many_axes": lambda folder: write_honest(folder, Honest(workers=(1, 2), repeats=2, training=axes)),
        "one_point": lambda folder: write_honest(folder, Honest(FRAMEWORKS[:1], workers=(2,), repeats=1)),
        "own_task": lambda folder: as_own_task(write_honest(folder, Honest(workers=(1, 2), repeats=3))),
        "hostile_names": lambda folder: write_honest(folder, Honest(hosts=('<b>"a"&\u202e,\x1b[1m', "=1+1"))),
        "strategies": lambda folder: write_honest(folder, strategies),
        "scripts": _write_scripts,
        "older_logs": _write_older_logs,
    }
    attacked = {name.replace(" ", "_"): partial(_attacked, attacks[name]) for name in ATTACKED}
    return made | attacked


def _attacked(attack: Attack, folder: Path) -> None:
    write_base(attack.base, folder)
    attack.do(folder)


def _write_scripts(folder: Path) -> None:
    for framework in FRAMEWORKS:
        for workers in (1, 2):
            for repeat in (1, 2, 3):
                speed = 100 * workers + repeat + len(framework)
                write_script_run(folder, framework, workers, repeat, images_per_second=speed)


def _write_older_logs(folder: Path) -> None:
    runs = write_honest(folder.with_name("runs"), Honest(repeats=1, has_files=True))
    folder.mkdir()
    for framework, kind in zip(FRAMEWORKS, ("", "hvd_"), strict=True):
        for workers in (1, 2, 4):
            log = next(runs.glob(f"{framework}-w{workers:02d}*/log.csv"))
            shutil.copy(log, folder / f"log_{kind}{workers}.csv")


GENERATED = _generated()
NAMES = (*COMMITTED, *COMPARED, *PREDICTED, *GENERATED)


def numbers_of(name: str, place: Path) -> list[str]:
    """Return what the command of this name writes, a line per column or key; `place` is an empty folder."""
    output = place / "output"
    with without_figures():
        main([*_command(name, place / "study"), "--output", str(output)])
    lines: list[str] = []
    for path in sorted(output.iterdir()):
        if path.suffix == ".csv":
            header, *rows = csv.reader(path.read_text().splitlines())
            columns = zip(*rows, strict=True) if rows else [()] * len(header)
            lines += [
                f"{path.name} {key}: {_column(cells)}" for key, cells in zip(header, columns, strict=True)
            ]
        elif path.suffix == ".json":
            kind = "prediction" if name in PREDICTED else path.name
            content = json.loads(path.read_text())
            for table in TABLES_WITHOUT_FILE:
                rows = content.pop(table, [])
                for key in rows[0] if rows else ():
                    cells = ["" if row[key] is None else str(row[key]) for row in rows]
                    lines.append(f"{path.name} {table} {key}: {_column(cells)}")
            lines += _flat(content, kind)
    return lines


def _command(name: str, folder: Path) -> list[str]:
    if name in COMMITTED:
        return [str(evidence(name))]
    if name in COMPARED:
        return ["compare", *(str(evidence(side)) for side in COMPARED[name])]
    if name in PREDICTED:
        return ["predict", str(evidence(PREDICTED[name])), "--for", "28"]
    GENERATED[name](folder)
    return ["--reference", str(folder)] if name == "older_logs" else [str(folder)]


def _column(cells: Sequence[str]) -> str:
    if len(cells) <= FEW_ROWS:
        return " | ".join(map(_cell, cells))
    known = [number for number in map(_number, cells) if number is not None and math.isfinite(number)]
    squares = math.fsum(number * number for number in known)
    return f"{len(cells)} rows {len(known)} numbers sum {math.fsum(known):.12g} squares {squares:.12g}"


def _flat(value: object, place: str) -> Iterator[str]:
    """Yield a line per value that stands in a JSON document."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if f"{place}.{key}" not in LEFT_OUT:
                yield from _flat(each, f"{place}.{key}")
    else:
        yield f"{place}: {_cell(str(value))}"


def _cell(text: str) -> str:
    """Return a number to 12 digits, a few words as they are, and '~' for prose: no sentence is held."""
    number = _number(text)
    if number is not None:
        return format(number, ".12g")
    return text if len(text.split()) <= MOST_WORDS else "~"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def difference(name: str, found: Sequence[str]) -> list[str]:
    """Return the lines of a diff between what is stored under this name and what was found."""
    path = GOLDEN / f"{name}.txt"
    stored = path.read_text().splitlines() if path.exists() else []
    kept = {line.partition(": ")[0]: line for line in stored}
    now = [
        old if (old := kept.get(line.partition(": ")[0])) and _are_equal(old, line) else line
        for line in found
    ]
    return [*difflib.unified_diff(stored, now, name, name, n=0, lineterm="")]


def _are_equal(one: str, other: str) -> bool:
    words = one.split(), other.split()
    return len(words[0]) == len(words[1]) and all(
        a == b
        or (
            (x := _number(a)) is not None
            and (y := _number(b)) is not None
            and math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=ROUNDING)
        )
        for a, b in zip(*words, strict=True)
    )


if __name__ == "__main__":
    for chosen in [name for name in sys.argv[1:] if name != "--accept"] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = numbers_of(chosen, Path(folder))
        print(*difference(chosen, found), sep="\n", flush=True)
        if "--accept" in sys.argv:
            GOLDEN.mkdir(parents=True, exist_ok=True)
            (GOLDEN / f"{chosen}.txt").write_text("\n".join(found) + "\n")
