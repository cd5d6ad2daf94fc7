"""Say what a path is that is no folder of a study, or of a run, and which one was perhaps meant."""

import difflib
from collections.abc import Collection
from pathlib import Path

from unet_scaling.base.texts import LAUNCH_HINT, NEAR, called, did_you_mean
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import CONFIG_NAME, is_of_others

# Folders of studies are kept as archives of this kind.
ARCHIVE = ".tar.xz"
MOST_FOLDERS_NAMED = 5


def describe_no_study(path: Path, logs: Path = PROJECT / "logs", unbegun: str = "") -> str:
    """Return one line on a path that is no folder of a study with runs; `logs` is where studies are.

    `unbegun` is said in place of how a study is begun.
    """
    folder = path.with_name(path.name.removesuffix(ARCHIVE))
    archive = folder.with_name(folder.name + ARCHIVE)
    if archive.is_file() and not folder.exists():
        return f"{folder} is in an archive: tar -xf {archive} -C {path.parent}, then give {folder}"
    if path.suffix == ".toml":
        folder = logs / path.stem
        if _runs(folder):
            return f"{path} is a study file, and its runs are elsewhere; did you mean {folder}?"
        if path.is_file():
            begin = unbegun or f"{called('run', path)} begins them"
            return f"{path} is a study file without runs in {logs}; {begin}"
    if path.is_dir():
        if _is_of_a_run(path / CONFIG_NAME):
            return f"{path} is one run; give its study, {path.parent}"
        if below := [folder for folder in _folders(path) if _runs(folder)]:
            every = f"a page over all: {called('report', '--index', path)}"
            return f"{path} holds several studies; give one of them: {_named(below)}; {every}"
        if _runs(path.parent):
            return f"{path} is a folder inside a study; give the study, {path.parent}"
        return f"{path} has no run folders; {unbegun or LAUNCH_HINT + ' makes them'}"
    if path.is_file() and _runs(path.parent.parent):
        return f"{path} is a file inside a study; give the study, {path.parent.parent}"
    places = (path.parent, logs) if path.parent == Path() else (path.parent,)
    known = {each.name: each for place in places for each in _folders(place) if _runs(each)}
    stem = path.stem if path.suffix == ".toml" else path.name
    if near := difflib.get_close_matches(stem, known, n=1, cutoff=NEAR):
        hint = f"did you mean {known[near[0]]}?"
    else:
        begin = unbegun or f"{LAUNCH_HINT} begins one"
        hint = f"studies there: {_named([*known.values()])}" if known else begin
    return f"{path} is no folder of a study; {hint}"


def describe_no_run(path: Path) -> str:
    """Return one line on a path that is no run folder, and which one was perhaps meant."""
    if runs := _runs(path):
        return f"{path} is a study; give one of its runs, such as {runs[0]}"
    if path.is_file() and _is_of_a_run(path.parent / CONFIG_NAME):
        return f"{path} is a file of a run; give the run, {path.parent}"
    if siblings := _runs(path.parent):
        hint = did_you_mean(path.name, [run.name for run in siblings])
        return f"{path} is no run of {path.parent}; {hint or f'its runs: {_named(siblings)}'}".rstrip()
    return f"{path} is no run; give the folder of a complete one, logs/STUDY/RUN; {LAUNCH_HINT} makes them"


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def _runs(folder: Path) -> list[Path]:
    """Return the run folders of a study; none where this is none, but holds others' `config.json`."""
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG_NAME}") if not is_of_others(path))


def _is_of_a_run(config: Path) -> bool:
    return config.is_file() and not is_of_others(config)


def _named(paths: Collection[Path]) -> str:
    names = [path.name for path in paths]
    more = len(names) - MOST_FOLDERS_NAMED
    return ", ".join(names[:MOST_FOLDERS_NAMED]) + (f" and {more} more" if more > 0 else "")
