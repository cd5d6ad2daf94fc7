"""Explain a key of a study or cluster file: its meaning, the values allowed, the default, an example.

unet-scaling explain training.rate_scaling   one key; its name alone will do
unet-scaling explain training                all keys of a table
unet-scaling explain                         all keys
"""

from slurm.reference import FileKind, file_kinds
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import did_you_mean
from unet_scaling.base.validation import Key
from unet_scaling.study.options import CRITERIA_OF_OWN_TASK


def main() -> None:
    name = command_line().parse_args().key
    print(overview() if name is None else explanation(name))


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling explain", __doc__)
    parser.add_argument("key", nargs="?", metavar="KEY", help="a key or a table; default: all keys")
    parser.known = known_words()
    return parser


def explanation(name: str) -> str:
    """Return the entry of a key, or the list of keys of a table; raises UserError for neither."""
    name = CRITERIA_OF_OWN_TASK.get(name, name)
    entries = [_entry(kind, key) for kind, key in _all_keys() if name in (key.dotted, key.name)]
    lists = [_list(kind, name) for kind in file_kinds() if name and name in kind.tables()]
    if not entries and not lists:
        hint = did_you_mean(name, known_words()) or "unet-scaling explain lists them all"
        raise UserError(f"{name!r} is no key of a study or cluster file; {hint.strip()}")
    return "\n\n".join(lists + entries)


def overview() -> str:
    """Return a line for every key of both kinds of files."""
    return "\n\n".join(_list(kind, table) for kind in file_kinds() for table in kind.tables())


def known_words() -> list[str]:
    """Return every word that can be explained: keys, with and without their table, and tables."""
    keys = {name for _, key in _all_keys() for name in (key.dotted, key.name)}
    tables = {table for kind in file_kinds() for table in kind.tables()}
    return sorted((keys | tables) - {""})


def _all_keys() -> list[tuple[FileKind, Key]]:
    return [(kind, key) for kind in file_kinds() for keys in kind.tables().values() for key in keys]


def _entry(kind: FileKind, key: Key) -> str:
    place = f"in [{key.table}] of a {kind.name} file" if key.table else f"in a {kind.name} file"
    axis = "; or a list of such values, an axis" if key.table in kind.axes else ""
    default = f"  default   {key.default}\n" if key.default is not None else ""
    needed = "  required\n" if key.required else default
    about = f"{key.dotted}, {place}\n  {key.meaning}\n  allowed   {key.allowed}{axis}\n"
    return f"{about}{needed}  example   {key.example}"


def _list(kind: FileKind, table: str) -> str:
    entries = kind.tables()[table]
    file = f"of a {kind.name} file"
    title = f"[{table}] {file}: {kind.about(table)}" if table else f"keys {file}"
    width = max(len(key.name) for key in entries)
    return "\n".join([title, *(f"  {key.name:{width}}  {key.meaning}" for key in entries)])
