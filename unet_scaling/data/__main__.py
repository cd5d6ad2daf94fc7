"""Verify a data folder, fetch the indentation data set, or make synthetic images.

A data folder holds images/ and masks/ with PNG or TIFF files of the same names; images may be JPEG. Each
command ends with a check of the folder and writes its manifest, which training needs.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import run_program
from unet_scaling.base.validation import positive
from unet_scaling.data.checking import check_folder, require_meant, sample_folder
from unet_scaling.data.folder import (
    ALLOWED,
    MANIFEST_NAME,
    NAMES_HELP,
    SAME_NAMES,
    Manifest,
    name_pattern,
    require_replaceable,
    write_manifest,
)

COMMANDS = {
    "check": "decode every file of a folder once, report all that is wrong, or write the manifest",
    "fetch": "download the indentation data set (1,120 images, doi:10.5281/zenodo.7639190), and check it",
    "make": "make synthetic images of indents with their masks, and check them",
}
# A line of the summary shows at most so many.
MOST_KINDS_SHOWN = 4
MOST_VALUES_SHOWN = 8


def main() -> None:
    arguments = command_line().parse_args()
    folder = arguments.folder
    foreground, names = "nonzero", SAME_NAMES
    if arguments.command == "make":
        from unet_scaling.data.synthetic import make

        made = make(folder, arguments.count, arguments.height, arguments.width, arguments.seed)
        print("made" if made else f"{folder}: exists already")
    else:
        foreground, names = arguments.foreground, arguments.names
    if arguments.command == "fetch":
        from unet_scaling.data.fetch import fetch  # only this command needs network libraries

        print("fetched" if fetch(folder) else f"{folder}: exists already")
    path = arguments.manifest or folder / MANIFEST_NAME
    require_replaceable(path)
    manifest = check_folder(folder, foreground or "nonzero", names)
    if not foreground:
        require_meant(manifest, folder)
    write_manifest(manifest, path)
    print("\n".join(_summary(manifest)))
    print(f"range       {sample_folder(folder, manifest.files).range}")
    print(f"manifest    {path}\nsha256      {manifest.sha256}")


def command_line() -> CommandLine:
    parser = CommandLine("python -m unet_scaling.data", __doc__)
    commands = parser.add_subparsers(
        dest="command", title="commands", required=True, metavar=" | ".join(COMMANDS)
    )
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.add_argument("folder", type=Path, metavar="FOLDER")
        command.add_argument("--manifest", type=Path, help=f"default: FOLDER/{MANIFEST_NAME}")
        if name != "make":
            command.add_argument("--foreground", help=f"{ALLOWED} (default: nonzero)")
            command.add_argument("--names", metavar="IMAGE:MASK", help=NAMES_HELP)
    for option, default, meaning in (
        ("count", 64, "images"),
        ("height", 256, "pixels"),
        ("width", 256, "pixels"),
        ("seed", 1, "equal seeds give equal images"),
    ):
        text = f"{meaning} (default: %(default)s)"
        commands.choices["make"].add_argument(f"--{option}", type=positive, default=default, help=text)
    return parser


def _summary(manifest: Manifest) -> list[str]:
    """Return what to see of a data set at a glance, a line each."""
    pairs = manifest.pairs
    pattern = name_pattern(manifest.files[0])
    shares = [pair.foreground_share for pair in pairs]
    values = sorted({value for pair in pairs for value in pair.mask_values})
    shown = ", ".join(map(str, values[:MOST_VALUES_SHOWN]))
    lines = [f"pairs       {len(pairs)}"]
    if pattern != SAME_NAMES:
        lines.append(f"names       {pattern}, * being what image and mask share; --names says another")
    return [
        *lines,
        f"sizes       {_counted(f'{pair.width} x {pair.height}' for pair in pairs)}",
        f"images      {_counted(pair.image.mode for pair in pairs)}",
        f"masks       {_counted(pair.mask.mode for pair in pairs)}",
        f"values      {shown}{' ...' if len(values) > MOST_VALUES_SHOWN else ''}",
        f"foreground  {manifest.foreground}: {min(shares):.1%} / {median(shares):.1%} / {max(shares):.1%}"
        " of an image (lowest / median / highest)",
    ]


def _counted(texts: Iterable[str]) -> str:
    """Return the first distinct texts, each with the number of times it occurs."""
    counts = sorted(Counter(texts).items())
    shown = ", ".join(f"{text} ({count})" for text, count in counts[:MOST_KINDS_SHOWN])
    more = len(counts) - MOST_KINDS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


if __name__ == "__main__":
    run_program(main)
