"""Write the reference of study and cluster files: docs/study.md for people, slurm/schemas/ for editors.

python -m slurm.reference           print the page
python -m slurm.reference --write   write the keys between their marks in the page, and the schemas
"""

import json
import re
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from slurm.cluster import Cluster
from unet_scaling.base.validation import Key, StrictModel, described, keys
from unet_scaling.study.config import PROJECT
from unet_scaling.study.frameworks import OPTION_TABLES
from unet_scaling.study.study_file import study_file_model

REFERENCE_PAGE = PROJECT / "docs" / "study.md"
SCHEMAS = PROJECT / "slurm" / "schemas"
_BEGIN = "<!-- keys: written by python -m slurm.reference --write -->\n"
_END = "<!-- end of keys -->\n"
# Of most keys: a row of the page has room for less than a message.
_WHOLE_NUMBERS = re.compile(r"^an integer, at least (\d+), at most (\d+)$")
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class FileKind:
    """A kind of file that users write.

    axes: tables of which each key may be a list of values. either: tables of which one is needed.
    """

    name: str
    model: type[StrictModel]
    axes: frozenset[str] = frozenset()
    either: tuple[str, ...] = ()

    @property
    def schema_path(self) -> Path:
        return SCHEMAS / f"{self.name}.json"

    def tables(self) -> dict[str, list[Key]]:
        """Return the keys by table; those outside of tables are in the table ""."""
        return {table: list(group) for table, group in groupby(keys(self.model), lambda key: key.table)}

    def about(self, table: str) -> str:
        """Return what a table holds, in a sentence."""
        schema = described(self.model)
        about = schema["properties"][table] if table else schema
        return str(about.get("description", "")).strip().partition("\n")[0]


def file_kinds() -> tuple[FileKind, ...]:
    study = FileKind("study", study_file_model(), axes=frozenset(OPTION_TABLES), either=("data", "task"))
    return study, FileKind("cluster", Cluster)


def page_with_keys(page: str) -> str:
    """Return the page with the keys of today between its marks; raises ValueError without marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{REFERENCE_PAGE} lacks the line {_BEGIN!r} or {_END!r}")
    return f"{before}{_BEGIN}\n{key_sections()}\n{_END}{after}"


def key_sections() -> str:
    """Return the keys of every kind of file as Markdown, a table for each of their tables."""
    lines: list[str] = []
    seen: dict[str, list[str]] = {}
    for kind in file_kinds():
        lines += [f"## Keys of a {kind.name} file", ""]
        for table, entries in kind.tables().items():
            rows = [_row(key) for key in entries]
            if table:
                axes = " Each key may be an axis." if table in kind.axes else ""
                lines += [f"### `[{table}]`", "", f"{kind.about(table)}{axes}", ""]
            if same := next((name for name in seen if seen[name] == rows), ""):
                lines += [f"The keys of [`[{same}]`](#{same}).", ""]
                continue
            seen[table] = rows
            lines += ["| key, as an example | meaning | allowed | default |", "|---|---|---|---|"]
            lines += [*rows, ""]
    return "\n".join(lines)


def _row(key: Key) -> str:
    default = "required" if key.required else key.default or ""  # empty where the meaning tells it
    allowed = _WHOLE_NUMBERS.sub(r"\1 to \2", key.allowed)
    cells = (f"`{key.example}`", key.meaning, allowed, default)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def schema(kind: FileKind) -> str:
    """Return the JSON Schema of a kind of file, by which editors complete and check it."""
    content = _without_noise(kind.model.model_json_schema())
    if kind.either:
        content["required"] = [key for key in content["required"] if key not in kind.either]
        content["anyOf"] = [{"required": [key]} for key in kind.either]
    about = {"$schema": SCHEMA_DIALECT, "title": f"unet-scaling {kind.name} file"}
    return json.dumps(about | content, indent=1) + "\n"


def _without_noise(content: object) -> Any:  # noqa: ANN401  (the same kind of JSON as its argument)
    """Return a schema without titles that repeat its keys, words for people and null, which TOML lacks."""
    if isinstance(content, list):
        return [_without_noise(each) for each in content if each != {"type": "null"}]
    if not isinstance(content, dict):
        return content
    return {
        key: _without_noise(value)
        for key, value in content.items()
        if not (key in ("title", "words") and isinstance(value, str)) and (key, value) != ("default", None)
    }


def main() -> None:
    if "--write" not in sys.argv:
        print(key_sections())
        return
    REFERENCE_PAGE.write_text(page_with_keys(REFERENCE_PAGE.read_text()))
    for kind in file_kinds():
        kind.schema_path.write_text(schema(kind))


if __name__ == "__main__":
    main()
