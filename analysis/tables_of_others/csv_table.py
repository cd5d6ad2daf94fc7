"""Anybody's scaling table: workers and seconds, or throughput, by column name, into the tables of a study.

One row is one launch: several rows of one framework and worker count are repeats, and give intervals, unless
a column that is not read makes them unlike. Nothing else is known of the launches, and the report says so.
"""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.read.records import escape_unprintable
from analysis.study import (
    EPOCH_COLUMNS,
    EPOCHS_PER_HOUR,
    EVALUATION_COLUMNS,
    NAMES,
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
from analysis.text import first_of
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.files import read_given
from unet_scaling.base.texts import WORDS_OF_LOSSES, did_you_mean
from unet_scaling.study.frameworks import ALL_FRAMEWORKS, FRAMEWORK_ROWS, Framework

STANDARD_INPUT = "-"
# Names of each column as tables of papers and benchmarks have them, their words joined and "/" read as "per".
KNOWN_NAMES = {
    "workers": "workers n gpus gpu ngpus numgpus ranks processes procs np worldsize",
    "seconds": "seconds time runtime walltime elapsed epochtime timeperepoch steptime",
    "throughput": "throughput speed imagespersecond imgpersecond imgspersecond samplespersecond "
    "examplespersecond itpersecond",
    "framework": "framework backend library method system",
    "repeat": "repeat rep trial launch",
    "score": "score iou accuracy acc dice f1 top1 miou",
}
# The framework that each name stands for.
FRAMEWORK_OF_NAME = {
    name: framework
    for framework, row in FRAMEWORK_ROWS.items()
    for name in (framework.replace("_", ""), *row.other_names)
}
BRACKETS = re.compile(r"[\[(](.*?)[\])]")
_UNIT_NAMES = {
    1e-9: "ns nsec nanosecond nanoseconds",
    1e-6: "us \u03bcs usec microsecond microseconds",  # casefold makes the micro sign this letter
    1e-3: "ms msec millisecond milliseconds",
    1.0: "s sec secs second seconds",
    60.0: "min mins minute minutes",
    SECONDS_PER_HOUR: "h hr hrs hour hours",
}
SECONDS_OF_UNIT = {name: seconds for seconds, names in _UNIT_NAMES.items() for name in names.split()}
PER_WORKER = re.compile(r"[\s_]*(/|per)[\s_]*(worker|gpu|device|rank|process)(e?s)?(?![a-z])", re.IGNORECASE)
WORKER_NAMES = {"gpu", "worker", "device", "rank", "process", "node", "each"}
# What a time may be of, and what else may stand in its brackets.
TIMED = {"epoch", "step", "iteration", "run"}
WORDS_OF_TIMES = {*SECONDS_OF_UNIT, *TIMED, "per", "wall", "elapsed", "total", "mean", "average", "median"}
STEPS = re.compile("(it|iter|iteration|step|batch|minibatch)(e?s)?")  # of all workers together or of each
# Marks of thousands and of decimals.
MARKS = ((",", "."), (".", ","))
# The line below a header holds nothing else.
RULE_MARKS = frozenset("|-:+= \t")
# What follows a mean; times of a clock, and those with units of their own.
SPREAD = re.compile(r"\s*(±|\+/-|\+-).*")
CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d(?:\.\d*)?)")
UNIT = re.compile(r"(\d+(?:\.\d*)?)\s*([^\W\d_]+)")
WITH_UNITS = re.compile(rf"(?:{UNIT.pattern}\s*)+")
# Columns of such a name are of the launch alone.
NAMES_OF_REPEATS = {
    "seed", "run", "runid", "id", "index", "number", "job", "jobid", "date", "day", "start", "timestamp",
}  # fmt: skip
_MOST_SHOWN = 4
# As the value of a column in `where`.
EVERY = "*"
# A speed that grows less than by the second, while the workers grow by the first, is not that of all of them.
LEAST_GROWTH, MOST_CONSTANT = 4, 1.05
_MOST_WORKERS = 10_000_000
_SMALLEST, _LARGEST = 1e-12, 1e12
_Numbers = NDArray[np.float64]
Work = Literal["", "weak", "per-gpu", "of-all"]
Rows = list[tuple[int, list[str]]]
Point = tuple[Framework, float]
_CANNOT_SAY = (
    "read from a table: code, versions, data, hosts, devices and order of the launches are not known, so "
    "nothing says whether they may be compared",
    "whether first epochs or start-up are in these numbers is not known",
)


@dataclass(frozen=True)
class CsvColumn:
    """A column: its name in KNOWN_NAMES, its title and cells, the file and line of each, what ends it."""

    name: str
    title: str
    cells: Sequence[str]
    lines: Sequence[str]
    delimiter: str

    def refuse(self, wrong: Iterable[bool], reason: str) -> None:
        """Raise UserError for the first cell that is wrong, if any is."""
        for line, cell, is_wrong in zip(self.lines[1:], self.cells, wrong, strict=True):
            if is_wrong:
                raise UserError(f"{line}: {self.name} is {cell!r}; {reason}", EXIT_BAD_DATA)


def load_csv(
    source: str, columns: Mapping[str, str], work: Work = "", where: Mapping[str, str] | None = None
) -> Study:
    """Read a table from a file, or from standard input for "-".

    `columns`: the name of a column for each of KNOWN_NAMES that is called otherwise. `work`: "weak": seconds
    and steps are of work that grows with the workers, as with a fixed batch of each; "per-gpu": throughput is
    of each worker; "of-all": neither, though the numbers look like it. `where`: the rows to read, by the
    value of a column, or EVERY where its values are repeats. Raises UserError with line and column.
    """
    where = where or {}
    name = "standard input" if source == STANDARD_INPUT else source
    (top, header), rows, delimiter = _rows(_text(source), name)
    rows = _chosen(header, rows, where, name)
    lines = [f"{name}:{number}" for number in (top, *(number for number, _ in rows))]
    places = _places(header, columns, name)
    table = {
        column: CsvColumn(column, header[place], [cells[place] for _, cells in rows], lines, delimiter)
        for column, place in places.items()
    }
    title = table["workers"].title
    if not {"per", "per worker"}.isdisjoint(_words(title)):
        raise UserError(f"{lines[0]}: {title!r} is not of all workers; give their number", EXIT_BAD_DATA)
    workers = _numbers(table["workers"])
    whole = (workers >= 1) & (workers <= _MOST_WORKERS) & (workers % 1 == 0)
    table["workers"].refuse(~whole, "a whole number above 0 is needed")
    measured, spread = _without_spread(table.get("throughput") or table["seconds"])
    amounts = _numbers(measured)
    measured.refuse(amounts < _SMALLEST, f"it must be {_SMALLEST:g} or more")
    speeds, meant = _speeds(measured, amounts, workers, work)
    arms: Names = {ALL_FRAMEWORKS[0]: "unnamed framework"}  # one arm, whatever it is
    frameworks = [ALL_FRAMEWORKS[0]] * len(rows)
    if "framework" in table:
        frameworks = _frameworks(table["framework"])
        arms = names_of(set(frameworks))
    scores = _scores(table["score"]) if "score" in table else np.full(len(rows), NAN)
    points: list[Point] = [*zip(frameworks, workers, strict=True)]
    unread = {title: place for place, title in enumerate(header) if title and place not in places.values()}
    cells_of = {title: [cells[place] for _, cells in rows] for title, place in unread.items()}
    notes = [meant, *spread, *_notes_on_unread(cells_of, where, points, lines[0])]
    repeats = _repeats(points, table.get("repeat"))
    if not work:
        _refuse_constant(measured, pd.Series(speeds, index=pd.MultiIndex.from_tuples(points)))
    found = zip(rows, frameworks, workers, repeats, speeds, scores, strict=True)
    runs = [
        Run(
            run=f"line {number}",
            framework=framework,
            workers=int(count),
            repeat=repeat,
            images_per_second=speed,
            epochs_per_second=speed,
            epochs_used=1,
            seconds_per_epoch=1 / speed,
            iou=score,
        )
        for (number, _), framework, count, repeat, speed, score in found
    ]
    return _study(source, table, runs, arms, *notes)


def _chosen(header: Sequence[str], rows: Rows, where: Mapping[str, str], name: str) -> Rows:
    """Return the rows that have these values. Raises UserError where a column or value is not there."""
    for title, value in where.items():
        if title not in header:
            raise UserError(
                f"--where {title}={value}: {did_you_mean(title, header)}{name} has {', '.join(header)}"
            )
        place = header.index(title)
        found = dict.fromkeys(cells[place] for _, cells in rows)
        if value not in {*found, EVERY}:
            raise UserError(f"--where {title}={value}: no row has it; {title} is {', '.join(found)}")
        rows = [(number, cells) for number, cells in rows if value in (cells[place], EVERY)]
    return rows


def _notes_on_unread(
    unread: Mapping[str, Sequence[str]], where: Mapping[str, str], points: Sequence[Point], line: str
) -> list[str]:
    """Return what to say of the columns that are not read, by title; UserError where rows are unlike."""
    notes = [f"columns not read: {', '.join(unread)}"] if unread else []
    notes += [f"read where {title} is {value}" for title, value in where.items()]
    for title, cells in unread.items():
        notes += _unlike(title, cells, points, line) if title not in where else ()
    return list(map(escape_unprintable, notes))


def _unlike(title: str, cells: Sequence[str], points: Sequence[Point], line: str) -> list[str]:
    """Return a note on a column that is not read where each framework has one value of its own in it.

    Raises UserError where rows of one point differ in it by values that come back at other points, as batch
    sizes and clusters do: they are no repeats. What is measured hardly comes back; of numbers with decimals,
    all have to, as learning rates do. Dates, seeds and numbers of runs are those of repeats.
    """
    is_read_otherwise = any(_is(name, title) for name in ("seconds", "throughput"))
    if is_read_otherwise or "".join(_words(title)) in NAMES_OF_REPEATS:
        return []
    table = pd.DataFrame({"point": points, "arm": [arm for arm, _ in points], "cell": cells})
    values = [set(own) for _, own in table.groupby("point", sort=False)["cell"]]
    times = Counter(chain.from_iterable(values))
    again = {cell for cell in times if times[cell] > 1}
    is_measured = any(re.fullmatch(r"[-+]?\d*[.,]\d+", cell) for cell in cells)
    if any(own <= again if is_measured else own & again for own in values if len(own) > 1):
        found = [*dict.fromkeys(cells)]
        raise UserError(
            f"{line}: rows of one worker count differ in {title!r}: {first_of(found, 'value', _MOST_SHOWN)}; "
            f"read one by --where '{title}={found[0]}', or all as repeats by --where '{title}={EVERY}'"
        )
    of_arms = table.groupby("arm", sort=False)["cell"].agg(["min", "nunique"])
    if of_arms["nunique"].max() > 1 or of_arms["min"].nunique() < 2:
        return []
    arms = dict.fromkeys(arm for arm, _ in points)
    told = [f"{cell} in {NAMES[arm]}" for arm, cell in zip(arms, of_arms["min"], strict=True)]
    return [f"{title}, which is not read: {', '.join(told)}"]


def _refuse_constant(measured: CsvColumn, speeds: "pd.Series[float]") -> None:
    """Raise UserError where no number of workers is faster than the smallest: is it of each of them?"""
    is_of_work = measured.name == "seconds" or _is_of_steps(measured)
    for _, own in speeds.groupby(level=0, sort=False):
        of_counts = own.groupby(level=1).median()
        first, last = of_counts.index[0], of_counts.index[-1]
        if last < LEAST_GROWTH * first or of_counts.max() > MOST_CONSTANT * of_counts.iloc[0]:
            continue
        each = "--weak where each has its own share" if is_of_work else "--per-gpu where it is of each worker"
        found = f"{measured.title!r} is no faster on {last:g} workers than on {first:g}"
        raise UserError(f"{measured.lines[0]}: {found}: add {each}, or --of-all where it is of all together")


def _study(source: str, table: Mapping[str, CsvColumn], rows: list[Run], arms: Names, *notes: str) -> Study:
    """Return the tables of a study; a row is the one epoch of its run, and its evaluation."""
    runs = run_table(
        sorted(rows, key=lambda run: (ALL_FRAMEWORKS.index(run.framework), run.workers, run.repeat))
    )
    run = pd.Categorical(runs["run"], categories=[*runs["run"]])
    seconds = runs["seconds_per_epoch"]
    epochs = pd.DataFrame({"run": run, "epoch": 1, "seconds": seconds, "warmup": False, "stalled": False})
    evaluations = pd.DataFrame({"run": run, "epochs": 1, "iou": runs["iou"]}).dropna()
    unit = "runs / h"
    if "throughput" in table:
        title = table["throughput"].title
        # A quotient in brackets, or else the whole title.
        quotients = [part for part in BRACKETS.findall(title) if "/" in part]
        unit = escape_unprintable(PER_WORKER.sub("", [*quotients, title][0]))
    score = re.sub(r"\W+", "_", table["score"].title.casefold()).strip("_") if "score" in table else "iou"
    return Study(
        name=Path(source).stem if source != STANDARD_INPUT else "table",
        runs=runs.assign(**{EPOCHS_PER_HOUR: SECONDS_PER_HOUR * runs["epochs_per_second"]}),
        epochs=epochs.reindex(columns=EPOCH_COLUMNS),
        evaluations=evaluations.reindex(columns=EVALUATION_COLUMNS),
        left_out=left_out_table([]),
        headers={},
        names=arms,
        throughput="images_per_second" if "throughput" in table else EPOCHS_PER_HOUR,
        unit=unit,
        score=Score(score),
        iou_scope="not known on what",
        notes=(*_CANNOT_SAY, *notes),
        provenance_known=False,
    )


def _text(source: str) -> str:
    """Return the text of the table; a byte order mark is no part of it."""
    try:
        content = sys.stdin.buffer.read() if source == STANDARD_INPUT else read_given(Path(source))
    except OSError as error:
        raise UserError(
            f"--csv {source}: {error.strerror or 'standard input is closed'}; name a file"
        ) from None
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"--csv {source}: byte {error.start} is not UTF-8; save the table as UTF-8") from None
    if "\0" in text:
        raise UserError(f"--csv {source}: holds NUL bytes, as no text does; save the table as UTF-8")
    return text


def _rows(text: str, name: str) -> tuple[tuple[int, list[str]], Rows, str]:
    """Return the header and each row with its line number, and what ends a column.

    Comments (#) are no rows, nor is a line of dashes. Of a text with a Markdown table that alone is read.
    Where the first row has a number and no known title, the last comment before it is the header.
    """
    lines: list[tuple[int, str]] = []
    comment: list[tuple[int, str]] = []
    for number, line in _table_lines(text):
        if line.lstrip().startswith("#"):
            comment = comment if lines else [(number, line.lstrip("# \t"))]
        elif {*line} - RULE_MARKS:
            lines.append((number, line))
    cells = [cell.strip(" \"'") for cell in re.split(r"[;\t,|]", lines[0][1])] if lines else []
    titled = any(_is(column, cell) for cell in cells for column in ("workers", "seconds", "throughput"))
    if not titled and any(re.fullmatch(r"\d[\d.e+-]*", cell, re.IGNORECASE) for cell in cells):
        lines = comment + lines
    if len(lines) < 2:
        raise UserError(
            f"{name}: {len(lines)} lines; a header and at least one row are needed", EXIT_BAD_DATA
        )
    first = lines[0][1]
    delimiter = max(";\t,|", key=first.count)
    if not first.count(delimiter):
        lines, delimiter = _parted_by_blanks(lines), "\t"
    if not lines[0][1].count(delimiter):
        raise UserError(f"{name}:{lines[0][0]}: no column ends; separate them by , ; tab or |", EXIT_BAD_DATA)
    parsed = [
        (number, [cell.strip() for cell in next(csv.reader(io.StringIO(line), delimiter=delimiter))])
        for number, line in lines
    ]
    width = len(parsed[0][1])
    for number, cells in parsed[1:]:
        if len(cells) != width:
            found = f"{len(cells)} cells, the header has {width}"
            raise UserError(f"{name}:{number}: {found}; each line is one row", EXIT_BAD_DATA)
    return parsed[0], parsed[1:], delimiter


def _table_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text with their numbers; of one with Markdown tables, those of the first."""
    lines = [*enumerate(text.splitlines(), start=1)]
    rules = [place for place, (_, line) in enumerate(lines) if "--" in line and {*line} <= RULE_MARKS]
    rule = next((place for place in rules if {"|", "+"} & {*lines[place][1]}), None)
    if rule is None:
        return lines
    rows = takewhile(lambda row: "|" in row[1], lines[rule + 1 :])
    return [*lines[max(0, rule - 1) : rule], *rows]


def _parted_by_blanks(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return lines whose columns stand apart by blanks with tabs between them, where all have as many."""
    for blanks in (r" {2,}", r" +"):
        parted = [(number, re.sub(blanks, "\t", line.strip())) for number, line in lines]
        counts = {line.count("\t") for _, line in parted}
        if len(counts) == 1 and counts != {0}:
            return parted
    return [*lines]


def _places(header: Sequence[str], asked: Mapping[str, str], name: str) -> dict[str, int]:
    """Return the place of each column that is there. Raises UserError where one is missing or twice."""
    unknown = asked.keys() - KNOWN_NAMES.keys()
    if unknown:
        raise UserError(f"--column {min(unknown)}=...: no such column; allowed: {', '.join(KNOWN_NAMES)}")
    if {"seconds", "throughput"} <= asked.keys():
        raise UserError("--column seconds=... and throughput=...: only one of them is read; leave one")
    places = {}
    for column in KNOWN_NAMES:
        if column in asked:
            found = [place for place, cell in enumerate(header) if cell == asked[column]]
            if not found:
                hint = did_you_mean(asked[column], header)
                raise UserError(f"--column {column}={asked[column]}: {hint}{name} has {', '.join(header)}")
        else:
            found = [place for place, cell in enumerate(header) if _is(column, cell)]
        if len(found) > 1:
            names = [header[place] for place in found]
            cure = f"say which: --column {column}=NAME" if len({*names}) > 1 else "rename one of them"
            raise UserError(f"{name}: {' and '.join(names)} may both be {column}; {cure}")
        if found:
            places[column] = found[0]
    if "throughput" in places and "seconds" in places:
        del places["throughput" if "seconds" in asked else "seconds"]
    for column, *others in (("workers",), ("seconds", "throughput")):
        if not places.keys() & {column, *others}:
            cure = " or ".join((f"name it: --column {column}=NAME", *(f"{other}=NAME" for other in others)))
            raise UserError(f"{name}: no column of {column} among {', '.join(header)}; {cure}", EXIT_BAD_DATA)
    if "score" in places and WORDS_OF_LOSSES.search(header[places["score"]].casefold()):
        raise UserError(f"{name}: {header[places['score']]} is a loss; give a score of which more is better")
    return places


def _words(title: str) -> list[str]:
    """Return the words of "time [ms/step]" or imagesPerSecond: "per" for a slash, "per worker" for /GPU."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", PER_WORKER.sub(" per worker ", title)).replace("/", " per ")
    return re.findall(r"per worker|[^\W\d_]+|\d+", apart.casefold())


def _is(column: str, title: str) -> bool:
    """Return whether a title has a name in KNOWN_NAMES beside what stands in brackets and a unit of time."""
    words = _words(BRACKETS.sub(" ", title))
    if column == "throughput":
        words = ["second" if word in SECONDS_OF_UNIT else word for word in words if word != "per worker"]
    elif column == "seconds" and words[1:] and words[-1] in SECONDS_OF_UNIT.keys() - {"min"}:
        words.pop()
    return "".join(words) in KNOWN_NAMES[column].split()


def _unit_of_time(measured: CsvColumn, words: Sequence[str]) -> float:
    """Return the seconds of the unit in a title. Raises UserError for words that make it another quantity."""
    units = SECONDS_OF_UNIT.keys() & {*words}
    per = {word for before, word in pairwise(words) if before == "per"}
    wrong = WORKER_NAMES & {*words}
    if measured.name == "throughput":
        wrong |= per ^ units
        cure = "of all workers it is img/s, of each img/s/GPU; name a time by --column seconds=NAME"
    else:
        # Out of brackets stands a known name or the one asked for, and "min" is no unit.
        inside = {*_words(" ".join(BRACKETS.findall(measured.title)))}
        units -= {"min"} - inside
        wrong |= (inside - WORDS_OF_TIMES) | (per - TIMED) | ({"per worker"} & {*words})
        cure = "give wall time, in one unit, as time [s] or time [ms/step]"
    seconds = {SECONDS_OF_UNIT[unit] for unit in units}
    if wrong or len(seconds) > 1:
        found = f"{measured.title!r} is no {measured.name} with {min(wrong or units)!r} in it"
        raise UserError(f"{measured.lines[0]}: {found}; {cure}", EXIT_BAD_DATA)
    return max(seconds, default=1.0)


def _is_of_steps(measured: CsvColumn) -> bool:
    """Return whether a throughput counts steps, of all workers together or of each."""
    words = _words(measured.title)
    counted = [word for word, after in pairwise(words) if after == "per"] or words
    return measured.name == "throughput" and any(STEPS.fullmatch(word) for word in counted)


def _speeds(measured: CsvColumn, amounts: _Numbers, workers: _Numbers, work: Work) -> tuple[_Numbers, str]:
    """Return the speed of all workers together in each row, and of what work it is taken to be."""
    title = escape_unprintable(measured.title)
    words = _words(title)
    unit = _unit_of_time(measured, words)
    is_of_steps = _is_of_steps(measured)
    speeds = amounts
    weak = work == "weak"
    if work == "per-gpu" and (is_of_steps or measured.name == "seconds"):
        raise UserError(f"--per-gpu changes nothing of {title!r}; leave it out, or say --weak")
    if measured.name == "seconds":
        speeds = 1 / (amounts * unit)
        title += f" ({unit:g} s each)" if unit != 1 else ""
    elif "per worker" in words or not is_of_steps:
        if weak:
            raise UserError(f"--weak changes nothing of {title!r}; leave it out")
        if "per worker" in words or work == "per-gpu":
            return speeds * workers, f"{title} is of each worker: multiplied by the number of workers"
        return speeds, "throughput is taken as that of all workers together"
    if weak:
        return speeds * workers, f"{title}: taken as that of work that grows with the workers (--weak)"
    return speeds, (
        f"{title}: taken as that of the same work at every worker count; where each worker has its own "
        "share whatever their number, add --weak"
    )


def _number(cell: str, thousands: str, decimal: str) -> float:
    """Return a number in ASCII digits with these marks, NaN for anything else."""
    whole = rf"\d+|[1-9]\d{{0,2}}([{thousands}]\d{{3}})+|(?=[{decimal}]\d)"
    pattern = rf"[-+]?({whole})([{decimal}]\d*)?(e[-+]?\d+)?"
    if not re.fullmatch(pattern, cell, re.ASCII | re.IGNORECASE):
        return NAN
    return float(cell.replace(thousands, "").replace(decimal, "."))


def _without_spread(column: CsvColumn) -> tuple[CsvColumn, list[str]]:
    """Return a column without what follows ±, times in one unit, and what is to be said of it."""
    told = replace(column, cells=[SPREAD.sub("", cell) for cell in column.cells])
    notes = [f"{column.title}: what stands after ± is not read"] if told.cells != column.cells else []
    return _in_one_unit(told) if column.name == "seconds" else told, notes


def _in_one_unit(column: CsvColumn) -> CsvColumn:
    """Return times with units of their own (12h, 1 min 30 s, 0:12:31, 1-02:00:00) in that of the title."""
    of_clock = [CLOCK.fullmatch(cell) for cell in column.cells]
    column.refuse(
        [bool(re.fullmatch(r"\d+:\d+", cell)) for cell in column.cells],
        "hours and minutes, or minutes and seconds? Write all three, as 0:12:31 or 12:31:00",
    )
    parts = [WITH_UNITS.fullmatch(cell) and UNIT.findall(cell) for cell in column.cells]
    if not any(of_clock) and not any(parts):
        return column
    seconds = []
    for clock, units in zip(of_clock, parts, strict=True):
        if clock:
            days, hours, minutes, rest = (float(each or 0) for each in clock.groups())
            seconds.append(((days * 24 + hours) * 60 + minutes) * 60 + rest)
        else:
            known = [
                SECONDS_OF_UNIT.get(unit.casefold(), NAN) * float(number) for number, unit in units or ()
            ]
            seconds.append(sum(known) if known else NAN)
    column.refuse(np.isnan(seconds), "others have a unit or are hours:minutes:seconds; write all alike")
    unit = _unit_of_time(column, _words(column.title))
    return replace(column, cells=[f"{each / unit:.12e}" for each in seconds])


def _numbers(column: CsvColumn) -> _Numbers:
    """Return the numbers of a column, all of which have the same marks of thousands and decimals.

    Raises UserError where there are two readings: of 998 and 1,890, but not of 1.890 and 2.512, decimals.
    """
    allowed = MARKS[:1] if column.delimiter == "," and "," not in "".join(column.cells) else MARKS
    readings = np.array([[_number(cell, *marks) for cell in column.cells] for marks in allowed])
    whole = [reading for reading in readings if not np.isnan(reading).any()]
    if not whole:
        column.refuse(np.isnan(readings).all(axis=0), "a number is needed")
        column.refuse(np.isnan(readings[0]), "other cells have a decimal dot; write all alike")
    values: _Numbers = whole[0]
    other = whole[-1]
    if not all("." in cell for cell in column.cells):
        first = np.argmax(values != other)
        found = f"{values[first]:.15g} or {other[first]:.15g}? Write no marks of thousands"
        column.refuse(values != other, f"{found}, or a decimal dot in every cell (8 as 8.000)")
    column.refuse(abs(values) > _LARGEST, f"a number up to {_LARGEST:g} is needed")
    return values


def _scores(column: CsvColumn) -> _Numbers:
    """Return scores from 0 to 1, NaN for an empty cell; "%" stands beside them or in the title."""
    told = [place for place, cell in enumerate(column.cells) if cell]
    cells = [column.cells[place].rstrip("% ") for place in told]
    scores = np.full(len(column.cells), NAN)
    lines = [column.lines[0], *(column.lines[place + 1] for place in told)]
    scores[told] = _numbers(replace(column, cells=cells, lines=lines))
    scores[["%" in column.title + cell for cell in column.cells]] /= 100
    column.refuse((scores < 0) | (scores > 1), "0 to 1 is needed, or % in its title")
    return scores


def _frameworks(column: CsvColumn) -> list[Framework]:
    """Return the framework of each row; two names of one are not read as repeats of it."""
    plain = [re.sub(r"[^a-z]", "", cell.casefold()) for cell in column.cells]
    unknown = [name not in FRAMEWORK_OF_NAME for name in plain]
    known = ", ".join(row.short_title for row in FRAMEWORK_ROWS.values())
    column.refuse(unknown, f"known are {known}; give others tables of their own")
    arms = [FRAMEWORK_OF_NAME[name] for name in plain]
    names: dict[Framework, str] = {}
    for arm, cell in zip(arms, column.cells, strict=True):
        first = names.setdefault(arm, cell)
        if cell.casefold() != first.casefold():
            reason = f"{first!r} above is the same framework; write one name, or give each a table"
            column.refuse([each == cell for each in column.cells], reason)
    return arms


def _repeats(points: Sequence[Point], column: CsvColumn | None) -> list[int]:
    """Return which repeat each launch is of: those of one name, or else of one place among their point's."""
    labels = column.cells if column else [""] * len(points)
    launches = pd.DataFrame({"point": points, "label": labels})
    counts = launches.groupby(["point", "label"]).cumcount() + 1
    if not column or not any(labels):
        return counts.tolist()
    column.refuse([not label for label in labels], "others have a name; name each launch, or none")
    cure = f"give each of a point another {column.title}, or leave the column out"
    column.refuse(counts > 1, f"it stands twice; {cure}")
    return (launches["label"].factorize()[0] + 1).tolist()
