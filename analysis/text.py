"""Words for people: numbers, intervals, durations, lists and foreign texts; and findings, by templates.

A form is a format, or "~4" for four significant digits, never with an exponent: an interval has as many
decimals as its number. What is not known is a dash, and an interval no wider than a point is none.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.study import (
    CONFIDENCE,
    FEWEST_REPEATS,
    NAMES,
    RECOMMENDED_REPEATS,
    SECONDS_PER_HOUR,
    Names,
    StudyKind,
    bounded,
)
from unet_scaling.base.texts import CALLED
from unet_scaling.base.texts import clean as clean
from unet_scaling.base.texts import count as count
from unet_scaling.format.record_lines import Header, ScriptHeader
from unet_scaling.study.frameworks import FRAMEWORK_ROWS

UNKNOWN = "—"
NOT_RESOLVED = "(no usable interval)"
# An interval that reaches to more than an order of magnitude above its number tells nothing of it; of times
# and speeds nor does one that reaches as far below.
MOST_RESOLVED_RATIO = 10
_SPEEDS = (
    "throughput", "speedup", "speedup_common", "efficiency", "efficiency_common", "ratio", "maps_per_second",
    "training_seconds", "worker_hours",
)  # fmt: skip
# From how many seconds on a column of durations is shown in a unit, the unit's seconds, and its names.
UNITS_SECONDS = ((7200.0, 3600.0, "h", "hours"), (120.0, 60.0, "min", "minutes"), (0.0, 1.0, "s", "seconds"))

Row = Mapping[Hashable, Any]


def number(value: float, form: str) -> str:
    """Return a number as text, a dash where it is not known."""
    return UNKNOWN if pd.isna(value) else format(value, _format(form, value)).replace("%", " %")


def percent(share: float, decimals: int = 1) -> str:
    """Return a share as per cent, "12.5 %"; a dash where it is not known."""
    return number(share, f".{decimals}%")


def bracketed(low: float, high: float, form: str) -> str:
    """Return "[low, high]", also where both are one number."""
    return "[{}, {}]".format(*(format(end, form).removesuffix("%") for end in (low, high)))


def number_with_interval(value: float, low: float, high: float, form: str) -> str:
    """Return a number with its interval to as many decimals, "1.87 [1.83, 1.91]"."""
    return " ".join(filter(None, (number(value, form), _interval("", value, low, high, form))))


def with_interval(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """Return the number `name` of a row, divided by `scale`, with the interval `name`_low to `name`_high."""
    return " ".join(filter(None, (number(row[name] / scale, form), interval_of(row, name, form, scale))))


def interval_of(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """Return only the interval of `with_interval`, "[1.83, 1.91]"; empty where there is none."""
    value, low, high = (row[each] / scale for each in bounded(name))
    return _interval(name, value, low, high, form)


def _interval(name: str, value: float, low: float, high: float, form: str) -> str:
    if _tells_nothing(name, value, low, high):
        return NOT_RESOLVED
    return bracketed(low, high, _format(form, value)) if low < high else ""


def _tells_nothing(name: str, value: Any, low: Any, high: Any) -> Any:  # noqa: ANN401, of numbers or columns
    """Return whether, or where, an interval is so wide that it tells nothing of its number."""
    far_above = (low >= 0) & (value > 0) & (high > MOST_RESOLVED_RATIO * value)
    return far_above | ((name in _SPEEDS) & (MOST_RESOLVED_RATIO * low < value))


def resolved(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the intervals that texts show as not resolved, for charts."""
    shown = table.copy()
    for name in (column for column in table if f"{column}_high" in table):
        columns = bounded(str(name))
        wide = _tells_nothing(str(name), *(table[each] for each in columns))
        shown.loc[wide, columns[1:]] = math.nan
    return shown


def _format(form: str, value: float) -> str:
    if not form.startswith("~"):
        return form
    size = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return f",.{max(0, int(form[1:]) - 1 - size)}f"


def chart_number(value: float, form: str = ".3g") -> str:
    """Return a number as a chart shows it: no exponent, a true minus sign; empty where not known."""
    if not math.isfinite(value):
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else format(value, form)
    return text.replace("-", "\N{MINUS SIGN}")


def chart_percent(share: float, decimals: int = 0) -> str:
    """Return a share as per cent, as a chart shows it; empty where not known."""
    return chart_number(100 * share, f".{decimals}f") + " %" if math.isfinite(share) else ""


def unit_of(seconds: float, *, is_long: bool = False) -> tuple[float, str]:
    """Return the (seconds, name) of the unit in which a duration, the longest of a column, reads best."""
    known = (unit for unit in UNITS_SECONDS if seconds >= unit[0])
    _, size, *names = next(known, UNITS_SECONDS[-1])
    return size, names[is_long]


def listed(parts: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *most, last = [*parts] or [UNKNOWN]
    return f"{', '.join(most)} and {last}" if most else last


def first_of(parts: Sequence[str], thing: str, most: int, separator: str = ", ") -> str:
    """Return at most so many of the parts and how many more there are: "a, b and 2 more hosts"."""
    more = len(parts) - most
    rest = f" and {count(more, f'more {thing}')}" if more > 0 else ""
    return separator.join(parts[:most]) + rest


def labelled(label: str, text: str) -> str:
    """Return "[label] text"; the text alone without a label."""
    return f"[{label}] {text}" if label else text


def sentence(text: str) -> str:
    """Return a text that starts with a capital and ends with a full stop."""
    text = capitalised(clean(text))
    return text + ("" if text.endswith((".", "!", "?")) else ".")


def capitalised(text: str) -> str:
    """Return a text that starts with a capital; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def repeats_text(repeats: "pd.Series[int]") -> str:
    """Return "5", or "3 to 5" where points differ; "none" without a point."""
    if repeats.empty:
        return "none"
    return " to ".join(map(str, dict.fromkeys((int(repeats.min()), int(repeats.max())))))


def series_name(row: Row, names: Names) -> str:
    """Return the framework with the options that vary in it alone: "native DDP, bucket_cap_mb=5"."""
    return clean(", ".join(part for part in (names[row["framework"]], row["knobs"]) if part))


def printable(text: str) -> str:
    """Return a text of a chart on one line, each unprintable character replaced by a sign for it."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def cleaned(table: pd.DataFrame, to: Callable[[object], str] = clean) -> pd.DataFrame:
    """Return a table whose texts are clean; numbers and missing values stay as they are."""
    texts = [str(name) for name in table.columns if pd.api.types.is_string_dtype(table[name])]
    return table.assign(**{name: table[name].map(to, na_action="ignore") for name in texts if len(table)})


COMMAND_AFTER = re.compile(rf": (?={re.escape(CALLED)} )")
INTERVAL = re.compile(r"\[([-+\d.,%]+), ([-+\d.,%]+)\]")


def lines(template: str, **values: object) -> list[str]:
    """Return what a template says, a sentence a line, clean; an unknown name raises."""
    text = _environment(is_page=False).get_template(f"{template}.jinja").render(**values)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def page(template: str, **values: object) -> str:
    """Return a page. Every value is escaped but the project's own SVG; an unknown name raises."""
    return _environment(is_page=True).get_template(f"{template}.html.jinja").render(**values)


def device_of(headers: Mapping[str, Header]) -> str:
    """Return what a worker is called: "GPU" where the header of every used run names one for each worker."""
    devices = [worker.device for header in headers.values() for worker in header.workers]
    return "GPU" if devices and "cpu" not in devices else "worker"


def cost(row: Row, device: str, *, bounded: bool = False) -> str:
    """Return what one training costs, `bounded` with its interval: "12.3 [12.1, 12.4] GPU-hours"."""
    size, unit = unit_of(SECONDS_PER_HOUR * row["worker_hours"], is_long=True)
    return f"{_in_units(row, 'worker_hours', size / SECONDS_PER_HOUR, bounded)} {device}-{unit}"


def _duration(row: Row, column: str, *, bounded: bool = False) -> str:
    """Return a duration of a row in the unit that reads best, `bounded` with its interval: "2.5 min"."""
    size, unit = unit_of(row[column])
    return f"{_in_units(row, column, size, bounded)} {unit}"


def _in_units(row: Row, column: str, size: float, bounded: bool) -> str:
    return with_interval(row, column, "~3", size) if bounded else number(row[column] / size, "~3")


def _signed(difference: float) -> str:
    """Return a difference of IoU with its sign, "-0.002"; "±0.000" where it rounds to that."""
    text = number(difference, "+.3f")
    return "±0.000" if text in ("+0.000", "-0.000") else text


@cache
def _environment(*, is_page: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        # What shows plain texts as Markdown escapes them.
        autoescape=is_page,  # noqa: S701
        # A foreign text stays on its line.
        finalize=None if is_page else clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=is_page,
    )
    environment.filters |= {
        "bracketed": lambda ends, form: bracketed(ends[0], ends[1], form),
        "capitalised": capitalised,
        "clean": clean,
        "cost": cost,
        "count": lambda number_of, thing: count(int(number_of), thing),
        "drawn": Markup,
        "duration": _duration,
        # By how many per cent the faster one of two is faster.
        "faster": lambda ratio: 100 * math.expm1(abs(math.log(ratio))),
        "first_of": first_of,
        "interval": interval_of,
        "listed": listed,
        "number": number,
        "pasted": lambda step: [*COMMAND_AFTER.split(step, 1), ""][:2],
        "percent": percent,
        "sentence": sentence,
        "shown": with_interval,
        "signed": _signed,
        # No line ends inside an interval.
        "unbroken": partial(INTERVAL.sub, "[\\1,\N{NO-BREAK SPACE}\\2]"),
        "times": lambda speedup: f"{number(speedup, '~2')}x",
    }
    environment.tests["nan"] = lambda value: value != value
    environment.globals |= {
        "NAMES": NAMES,
        "FRAMEWORK_ROWS": FRAMEWORK_ROWS,
        "FEWEST": FEWEST_REPEATS,
        "RECOMMENDED": RECOMMENDED_REPEATS,
        "CONFIDENCE": CONFIDENCE,
    }
    return environment


def with_restriction(kind: StudyKind, caption: str) -> str:
    """Return a caption; before one of restricted runs stand the words for what they are."""
    return after(kind.restricted, ". ".join(filter(None, (kind.meaning, caption))))


def after(words: str, text: str) -> str:
    """Return a sentence; before one on restricted runs stand the words for what they are."""
    return f"{capitalised(words)}: {text}" if words else text


def restriction_notes(headers: Mapping[str, Header], scripts: Mapping[str, ScriptHeader]) -> list[str]:
    """Return what to know of every number of a restricted study."""
    names = dict.fromkeys(
        f"{header.script} {header.script_sha256[:16]}" if header.script_sha256 else "typed"
        for header in scripts.values()
    )
    emulated = [header for header in headers.values() if header.is_emulated]
    profiles = {header.compute.sha256: header.compute for header in emulated if header.compute}
    slowed = {
        f"k = {header.dilation or 1:g}, link {header.link_rate or 'not limited'}" for header in emulated
    }
    values = {"scripts": list(names), "profiles": profiles.values(), "slowed": sorted(slowed)}
    return lines("notes", said="restricted", **values)
