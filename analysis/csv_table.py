"""Anybody's scaling table: workers and seconds, or throughput, by column name, into the tables of a study.

One row is one launch: several rows of one framework and worker count are repeats, and give intervals. Nothing
else is known of the launches, and the report says so.
"""

import csv
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.older import EPOCHS_PER_HOUR
from analysis.records import Columns, escape_unprintable, row_table, stacked_columns
from analysis.study import (
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    NAN,
    SECONDS_PER_HOUR,
    Names,
    Run,
    Score,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from unet_scaling.study.config import ALL_FRAMEWORKS, Framework
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.texts import WORDS_OF_LOSSES, did_you_mean

STANDARD_INPUT = "-"
# Names of each column as tables of papers and benchmarks have them, without units in brackets or at the end.
KNOWN_NAMES = {
    "workers": "workers n gpus gpu ngpus numgpus ranks processes procs np worldsize",
    "seconds": "seconds time runtime walltime elapsed epochtime timeperepoch steptime",
    "throughput": "throughput imagespersecond samplespersecond imgs imgsec speed examplespersecond",
    "framework": "framework backend library method system",
    "repeat": "repeat rep trial launch",
    "score": "score iou accuracy acc dice f1 top1 miou",
}
FRAMEWORK_NAMES: Mapping[Framework, str] = {
    "pytorch_native": "pytorchnative native nativeddp ddp pytorch pytorchddp torch torchddp",
    "horovod": "horovod hvd",
    "lightning": "lightning lightningfabric fabric pytorchlightning",
    "accelerate": "accelerate huggingfaceaccelerate hfaccelerate",
}
BRACKETS = re.compile(r"[\[(](.*?)[\])]")
UNIT = re.compile(rf"{BRACKETS.pattern}|_(s|sec|seconds)$")
_MOST_WORKERS = 10_000_000
_LARGEST = 1e12
_CANNOT_SAY = (
    "read from a table: code, versions, data, hosts, devices and order of the launches are not known, so "
    "nothing says whether they may be compared",
    "whether first epochs or start-up are in these numbers is not known",
)


def load_csv(source: str, columns: Mapping[str, str], weak: bool = False) -> Study:
    """Read a table from a file, or from standard input for "-".

    `columns`: the name of a column for each of KNOWN_NAMES that is called otherwise. `weak`: seconds are of
    work that grows with the workers, as with a fixed batch of each. Raises UserError with line and column.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    header, rows, delimiter = _rows(_text(source), name)
    places = _places(header, columns, name)
    read = [_run(number, cells, places, f"{name}:{number}", delimiter, weak) for number, cells in rows]
    arms: Names = names_of({run.framework for run in read})
    if "framework" not in places:  # of one arm, whatever it is
        arms = {ALL_FRAMEWORKS[0]: "unnamed framework"}
    # Launches of a repeat are compared as a pair: those of one name, or else in the order of their rows.
    labels = [cells[places["repeat"]] if "repeat" in places else "" for _, cells in rows]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels), start=1)}
    launches: Counter[tuple[Framework, int, str]] = Counter()
    runs = []
    for run, label, (number, _) in zip(read, labels, rows, strict=True):
        point = (run.framework, run.workers, label)
        launches[point] += 1
        if label and launches[point] > 1:
            cure = f"give each of a point another {header[places['repeat']]}, or leave the column out"
            raise UserError(f"{name}:{number}: repeat {label!r} stands twice; {cure}", EXIT_BAD_DATA)
        runs.append(replace(run, repeat=numbers[label] if label else launches[point]))
    runs.sort(key=lambda run: (ALL_FRAMEWORKS.index(run.framework), run.workers, run.repeat))
    is_throughput = "throughput" in places
    table = run_table(runs)
    score_name = "iou"
    if "score" in places:
        score_name = re.sub(r"\W+", "_", header[places["score"]].casefold()).strip("_")
    # A row is the one epoch of its run, and its evaluation.
    epochs: dict[str, Columns] = {}
    evaluations = {}
    for run in runs:
        known = {"epoch": 1, "seconds": run.seconds_per_epoch, "warmup": False, "stalled": False}
        epochs[run.run] = {name: np.array([known.get(name, NAN)]) for name in EPOCH_COLUMNS[1:]}
        result = dict.fromkeys(EVALUATION_COLUMNS[1:], NAN) | {"epochs": 1, "iou": run.iou}
        evaluations[run.run] = [] if math.isnan(run.iou) else [result]
    unit = "runs / h"
    if is_throughput:
        title = header[places["throughput"]]
        # A quotient in brackets, or else the whole title.
        in_brackets = BRACKETS.search(title)
        unit = escape_unprintable(in_brackets[1] if in_brackets and "/" in in_brackets[1] else title)
    return Study(
        name=Path(source).stem if source != STANDARD_INPUT else "table",
        runs=table.assign(**{EPOCHS_PER_HOUR: SECONDS_PER_HOUR * table["epochs_per_second"]}),
        epochs=stacked_columns(epochs, EPOCH_COLUMNS),
        evaluations=row_table(evaluations, EVALUATION_COLUMNS),
        left_out=left_out_table([]),
        headers={},
        names=arms,
        throughput="images_per_second" if is_throughput else EPOCHS_PER_HOUR,
        unit=unit,
        score=Score(score_name),
        iou_scope="not known on what",
        notes=(*_CANNOT_SAY, _of_work(is_throughput, weak)),
        provenance_known=False,
    )


def _text(source: str) -> str:
    """Return the text of the table; a byte order mark is no part of it."""
    try:
        content = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"--csv {source}: {error.strerror}") from None
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"--csv {source}: byte {error.start} is not UTF-8; save the table as UTF-8") from None


def _rows(text: str, name: str) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """Return the header, each row with its line number, and the delimiter.

    Comments (#) are no rows, nor is the line of dashes in a Markdown table.
    """
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip("|-: ") and not line.lstrip().startswith("#")
    ]
    if len(lines) < 2:
        raise UserError(
            f"{name}: {len(lines)} lines; a header and at least one row are needed", EXIT_BAD_DATA
        )
    first = lines[0][1]
    delimiter = max(";\t,|", key=first.count)
    if not first.count(delimiter):
        raise UserError(f"{name}:{lines[0][0]}: no column ends; separate them by , ; tab or |", EXIT_BAD_DATA)
    parsed = [
        (number, [cell.strip() for cell in next(csv.reader(io.StringIO(line), delimiter=delimiter))])
        for number, line in lines
    ]
    header = parsed[0][1]
    for number, cells in parsed[1:]:
        if len(cells) != len(header):
            found = f"{len(cells)} cells, the header has {len(header)}"
            raise UserError(f"{name}:{number}: {found}; each line is one row", EXIT_BAD_DATA)
    return header, parsed[1:], delimiter


def _places(header: Sequence[str], asked: Mapping[str, str], name: str) -> dict[str, int]:
    """Return the place of each column that is there. Raises UserError where one is missing or twice."""
    unknown = asked.keys() - KNOWN_NAMES.keys()
    if unknown:
        raise UserError(f"--column {min(unknown)}=...: no such column; allowed: {', '.join(KNOWN_NAMES)}")
    plain = [re.sub(r"[^a-z0-9]", "", UNIT.sub("", cell.casefold())) for cell in header]
    places = {}
    for column, known in KNOWN_NAMES.items():
        if column in asked:
            found = [place for place, cell in enumerate(header) if cell == asked[column]]
            if not found:
                hint = did_you_mean(asked[column], header)
                raise UserError(f"--column {column}={asked[column]}: {hint}{name} has {', '.join(header)}")
        else:
            found = [place for place, cell in enumerate(plain) if cell in known.split()]
        if len(found) > 1:
            names = " and ".join(header[place] for place in found)
            raise UserError(f"{name}: {names} may both be {column}; say which: --column {column}=NAME")
        if found:
            places[column] = found[0]
    if "throughput" in places and "seconds" in places and "throughput" not in asked:
        del places["seconds" if "seconds" not in asked else "throughput"]
    for column, *others in (("workers",), ("seconds", "throughput")):
        if not places.keys() & {column, *others}:
            cure = " or ".join((f"name it: --column {column}=NAME", *(f"{other}=NAME" for other in others)))
            raise UserError(f"{name}: no column of {column} among {', '.join(header)}; {cure}", EXIT_BAD_DATA)
    if "score" in places and WORDS_OF_LOSSES.search(header[places["score"]].casefold()):
        raise UserError(f"{name}: {header[places['score']]} is a loss; give a score of which more is better")
    return places


def _run(
    number: int, cells: Sequence[str], places: Mapping[str, int], place: str, delimiter: str, weak: bool
) -> Run:
    """Return a row as a launch, the first of its point. Raises UserError that names its place and column.

    A comma within a number is a decimal one, but where commas separate the cells.
    """

    def value(column: str) -> float:
        cell = cells[places[column]]
        text = cell.replace(" ", "").replace("\u00a0", "")
        if delimiter == ",":
            text = text.replace(",", "")
        elif "." not in text:
            text = text.replace(",", ".")
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or abs(found) > _LARGEST:
            raise UserError(f"{place}: {column} is {cell!r}; a number is needed", EXIT_BAD_DATA)
        return found

    workers = value("workers")
    if workers != int(workers) or not 1 <= workers <= _MOST_WORKERS:
        found = cells[places["workers"]]
        raise UserError(f"{place}: workers is {found!r}; a whole number above 0 is needed", EXIT_BAD_DATA)
    measured = "throughput" if "throughput" in places else "seconds"
    amount = value(measured)
    if not amount > 0:
        raise UserError(f"{place}: {measured} is {amount:g}; it must be above 0", EXIT_BAD_DATA)
    speed = amount if measured == "throughput" else (workers if weak else 1.0) / amount
    score = value("score") if "score" in places and cells[places["score"]] else NAN
    framework = ALL_FRAMEWORKS[0]
    if "framework" in places:
        cell = cells[places["framework"]]
        plain = re.sub(r"[^a-z]", "", cell.casefold())
        known = [arm for arm, names in FRAMEWORK_NAMES.items() if plain in names.split()]
        if not known:
            cure = "known are DDP, Horovod, Fabric, Accelerate; give others tables of their own"
            raise UserError(f"{place}: framework is {cell!r}; {cure}", EXIT_BAD_DATA)
        framework = known[0]
    return Run(
        run=f"line {number}",
        framework=framework,
        workers=int(workers),
        repeat=1,
        images_per_second=speed,
        epochs_per_second=speed,
        epochs_used=1,
        seconds_per_epoch=1 / speed,
        iou=score,
    )


def _of_work(is_throughput: bool, weak: bool) -> str:
    """Return of what work the numbers are taken to be."""
    if is_throughput:
        return "throughput is taken as that of all workers together"
    if weak:
        return "seconds are taken as those of work that grows with the workers (--weak)"
    return (
        "seconds are taken as those of the same work at every worker count; where each worker has its own "
        "share whatever their number, add --weak"
    )
