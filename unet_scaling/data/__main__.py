"""Verify a data folder, fetch the indentation data set, or make synthetic images.

A data folder holds images/ and masks/ with PNG or TIFF files of the same names. Each command
ends with a check of the folder and writes its manifest, which training needs.
"""

import argparse
from pathlib import Path
from statistics import median

from unet_scaling.data.checking import check_folder
from unet_scaling.data.foreground import ALLOWED
from unet_scaling.data.manifest import MANIFEST_NAME, Manifest, write_manifest
from unet_scaling.study.errors import run_program


def main() -> None:
    arguments = _parser().parse_args()
    arguments.command(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unet_scaling.data", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="check | fetch | make")
    check = commands.add_parser("check", help="decode every file once and write the manifest")
    fetch = commands.add_parser("fetch", help="download the indentation data set, doi:10.5281/zenodo.7639190")
    make = commands.add_parser("make", help="make synthetic images of indents with their masks")
    for command, function in ((check, _check), (fetch, _fetch), (make, _make)):
        command.set_defaults(command=function)
        command.description = function.__doc__
        command.add_argument("folder", type=Path, metavar="FOLDER")
        command.add_argument("--manifest", type=Path, help=f"default: FOLDER/{MANIFEST_NAME}")
    check.add_argument("--foreground", default="nonzero", help=f"{ALLOWED} (default: %(default)s)")
    fetch.add_argument("--foreground", default="nonzero", help="as for check (default: %(default)s)")
    for name, default, text in (
        ("count", 64, "images"),
        ("height", 256, "pixels"),
        ("width", 256, "pixels"),
        ("seed", 1, "equal seeds give equal images"),
    ):
        make.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Decode every file of the folder, report all that is wrong with it, or write its manifest."""
    _describe(arguments, arguments.foreground)


def _fetch(arguments: argparse.Namespace) -> None:
    """Download the indentation data set (1,120 images), verify, unpack and check it."""
    from unet_scaling.data.fetch import fetch  # the network is no matter of the other commands

    print("fetched" if fetch(arguments.folder) else f"{arguments.folder}: is there already")
    _describe(arguments, arguments.foreground)


def _make(arguments: argparse.Namespace) -> None:
    """Draw images of triangular and square indents with their masks, and check them."""
    from unet_scaling.data.synthetic import make

    size = (arguments.count, arguments.height, arguments.width)
    print(
        "made" if make(arguments.folder, *size, arguments.seed) else f"{arguments.folder}: is there already"
    )
    _describe(arguments, "nonzero")


def _describe(arguments: argparse.Namespace, foreground: str) -> None:
    path = arguments.manifest or arguments.folder / MANIFEST_NAME
    manifest = check_folder(arguments.folder, foreground)
    write_manifest(manifest, path)
    print("\n".join(_summary(manifest)))
    print(f"manifest    {path}\nsha256      {manifest.sha256}")


def _summary(manifest: Manifest) -> list[str]:
    """What a person wants to see of a data set at a glance."""
    pairs = manifest.pairs
    shares = [pair.foreground_share for pair in pairs]
    values = sorted({value for pair in pairs for value in pair.mask_values})
    return [
        f"pairs       {len(pairs)}",
        f"sizes       {_few([f'{pair.width} x {pair.height}' for pair in pairs])}",
        f"images      {_few([pair.image.mode for pair in pairs])}",
        f"masks       {_few([pair.mask.mode for pair in pairs])}",
        f"values      {', '.join(map(str, values[:8]))}{' ...' if len(values) > 8 else ''}",
        f"foreground  {manifest.foreground}: {min(shares):.1%} / {median(shares):.1%} / {max(shares):.1%}"
        " of an image (lowest / median / highest)",
    ]


def _few(found: list[str]) -> str:
    """The distinct values with how often they occur, the first of them."""
    kinds = sorted(set(found))
    shown = ", ".join(f"{kind} ({found.count(kind)})" for kind in kinds[:4])
    return f"{shown} and {len(kinds) - 4} more" if len(kinds) > 4 else shown


if __name__ == "__main__":
    run_program(main)
