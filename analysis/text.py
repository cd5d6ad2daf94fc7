"""How numbers, names and foreign texts are written for people."""

import math
import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.study import Names
from unet_scaling.study.texts import count as count

UNKNOWN = "—"
UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))

Row = Mapping[Hashable, Any]


def number(value: float, form: str) -> str:
    """A number for people; a dash where it is not known.

    `form` is a format, or "~4" for four digits that count, never with an exponent.
    """
    return UNKNOWN if pd.isna(value) else format(value, _format(form, value)).replace("%", " %")


def interval(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """The interval `name`_low to `name`_high of a row, "[1.83, 1.91]"; empty where there is none.

    An interval no wider than a point is none: it would only repeat the number.
    """
    low, high = row[f"{name}_low"] / scale, row[f"{name}_high"] / scale
    if not low < high:
        return ""
    shown = _format(form, row[name] / scale)
    return "[{}, {}]".format(*(format(end, shown).removesuffix("%") for end in (low, high)))


def with_interval(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """A number with its interval, where there is one."""
    return " ".join(filter(None, (number(row[name] / scale, form), interval(row, name, form, scale))))


def _format(form: str, value: float) -> str:
    """The format behind "~4" for numbers of about this size: an interval has the decimals of its number."""
    if not form.startswith("~"):
        return form
    size = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return f",.{max(0, int(form[1:]) - 1 - size)}f"


def unit_of(seconds: "pd.Series[float]") -> tuple[float, str]:
    """The (seconds, name) of the unit in which a column of durations reads best."""
    longest = float(seconds.max()) if len(seconds) else math.nan
    return next(((size, name) for least, size, name in UNITS if longest >= least), (1.0, "s"))


def clean(text: object) -> str:
    """A foreign text on one line, without the characters that steer a terminal or turn its direction."""
    if str(text).isprintable():
        return str(text)
    spaced = re.sub(r"[\t\r\n\v\f\x85\u2028\u2029]+", " ", str(text))
    return "".join(letter for letter in spaced if unicodedata.category(letter) not in ("Cc", "Cf", "Cs"))


def cleaned(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose texts are clean; numbers and what is missing stay as they are."""
    texts = [name for name in table.columns if pd.api.types.is_string_dtype(table[name])]
    return table.assign(
        **{str(name): table[name].map(clean, na_action="ignore") for name in texts if len(table)}
    )


def series_name(row: Row, names: Names) -> str:
    """ "native DDP, bucket_cap_mb=5": the framework with what varies in it alone."""
    return clean(", ".join(part for part in (names[row["framework"]], row["knobs"]) if part))


def listed(parts: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = [*parts] or [UNKNOWN]
    return f"{', '.join(most)} and {last}" if most else last


def sentence(text: str) -> str:
    """A text that starts with a capital and ends with a full stop."""
    text = clean(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def repeats_text(repeats: "pd.Series[int]") -> str:
    """ "5", or "3 to 5" where points differ."""
    fewest, most = int(repeats.min()), int(repeats.max())
    return f"{most}" if fewest == most else f"{fewest} to {most}"
