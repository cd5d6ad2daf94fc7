"""Write study and cluster files for people: every key with what it is, and why it has this value."""

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.reference import FileKind
from unet_scaling.study.errors import UserError
from unet_scaling.study.keys import Key, as_toml

COMMENT_WIDTH_CHARACTERS = 100


@dataclass(frozen=True)
class Choice:
    """A key of a file, `table.key` or `key`, the value chosen for it, and why."""

    key: str
    value: object
    why: str

    @property
    def table(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


def file_text(kind: FileKind, title: str, choices: Sequence[Choice], folder: Path) -> str:
    """Return the text of a file in `folder` with these choices in the order of its model.

    What a key means is said by its model, so that all places say the same. Raises ValueError for a key
    that the model does not have.
    """
    chosen = {choice.key: choice for choice in choices}
    lines = [f"#:schema {os.path.relpath(kind.schema_path, folder)}", *_comment(title)]
    for table, keys in kind.tables().items():
        lines += _table_lines(table, [(chosen.pop(key.dotted), key) for key in keys if key.dotted in chosen])
    if chosen:
        raise ValueError(f"a {kind.name} file has no key {', '.join(chosen)}")
    return "\n".join(lines) + "\n"


def _table_lines(table: str, entries: Sequence[tuple[Choice, Key]]) -> list[str]:
    block = [line for choice, key in entries for line in _lines(choice, key.meaning)]
    return ["", f"[{table}]", *block[1:]] if table and block else block


def require_new(paths: Sequence[Path]) -> None:
    """Raise UserError where one of these files exists: none is ever overwritten."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path} exists, and is not overwritten; choose another name")


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises UserError where it does, or cannot be written."""
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        require_new([path])
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); choose another folder with --into"
        ) from None


def _lines(choice: Choice, meaning: str) -> list[str]:
    return [
        "",
        *_comment(meaning),
        *_comment(f"Here: {choice.why}"),
        f"{choice.name} = {as_toml(choice.value)}",
    ]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH_CHARACTERS - 2)]
