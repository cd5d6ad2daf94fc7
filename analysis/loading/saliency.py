"""Runs with saliency maps: those without an epoch to time, and the manifests beside the records."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.loading.runs import CompleteRun, Loaded, UnusableRun, name_of
from analysis.study import Explained, Study
from analysis.text import count, first_of
from unet_scaling.study.files import read_regular
from unet_scaling.study.record_lines import Header
from unet_scaling.study.saliency import (
    SALIENCY_FOLDER,
    SALIENCY_MANIFEST_NAME,
    Faithfulness,
    Saliency,
    SaliencyManifest,
)

# Of a digest in a sentence.
SHOWN_CHARACTERS = 12
# Runs in a note.
_MOST_NAMED = 5
_MANIFEST = f"{SALIENCY_FOLDER}/{SALIENCY_MANIFEST_NAME}"


def split_untimed(
    complete: Sequence[CompleteRun], left_out: Sequence[UnusableRun]
) -> tuple[Loaded, list[CompleteRun]]:
    """Return the runs with a throughput and those left out, and the runs that tell of their maps only."""
    timed = [run for run in complete if run.has_throughput]
    return (timed, list(left_out)), [run for run in complete if not run.has_throughput]


def with_maps_only(study: Study, maps_only: Study) -> Study:
    """Return a study with those of its runs that tell of their maps only, and a note on them."""
    names = [str(run) for run in maps_only.runs["run"]]
    note = (
        f"{count(len(names), 'run')} without an epoch after the warm-up: of saliency maps alone, no table on "
        f"training or IoU has {'it' if len(names) == 1 else 'them'}: {first_of(names, 'run', _MOST_NAMED)}"
    )
    notes = dict.fromkeys([*study.notes, note, *maps_only.notes])
    return replace(study, maps_only=maps_only, notes=tuple(notes))


def read_manifests(
    study: Path, lines: Mapping[str, Saliency], headers: Mapping[str, Header]
) -> tuple[dict[str, Explained], list[str]]:
    """Return what is known of the maps of each run, by its name, and a note on each that is not whole.

    A manifest that does not fit its record is not used: its curves could be of other maps.
    """
    folders = {name_of(path): path for path in study.iterdir()}
    explained: dict[str, Explained] = {}
    notes: list[str] = []
    for run, line in lines.items():
        folder = folders[run] / SALIENCY_FOLDER
        try:
            manifest = _manifest(folder / SALIENCY_MANIFEST_NAME, line, headers[run])
        except (OSError, ValueError) as error:
            notes.append(f"{run}: {_MANIFEST} is not used: {str(error).splitlines()[0]}")
        else:
            explained[run] = Explained(folder, manifest)
            notes += _missing_maps(run, explained[run])
    return explained, notes


def _manifest(path: Path, line: Saliency, header: Header) -> SaliencyManifest:
    """Return the manifest that the record names.

    Raises OSError, and ValueError where it is another, or contradicts the record.
    """
    content = read_regular(path)
    found = hashlib.sha256(content).hexdigest()
    if found != line.manifest_sha256:
        recorded = line.manifest_sha256[:SHOWN_CHARACTERS]
        raise ValueError(
            f"its SHA-256 begins with {found[:SHOWN_CHARACTERS]}, that of the record with {recorded}"
        )
    manifest = SaliencyManifest.model_validate_json(content)
    for misfit in _misfits(manifest, line, header):
        raise ValueError(misfit)
    return manifest


def _misfits(manifest: SaliencyManifest, line: Saliency, header: Header) -> Iterator[str]:
    """Yield in what a manifest contradicts the record that names it, with both values."""
    maps = sum(image.map is not None for image in manifest.images)
    both = {
        "method": (manifest.method, header.config.saliency.method),
        "weights_sha256": (manifest.weights_sha256, line.weights_sha256),
        "images": (len(manifest.images), line.images),
        "maps": (maps, line.maps),
    }
    for name, (found, recorded) in both.items():
        if found != recorded:
            yield f"{name} is {found}, but {recorded} in the record"
    lengths = {len(scores) for curves in _all_curves(manifest) for scores in vars(curves).values()}
    if not lengths <= {len(manifest.shares)}:
        yield f"a curve has {max(lengths)} scores at {len(manifest.shares)} shares of the pixels"


def _all_curves(manifest: SaliencyManifest) -> Iterator[Faithfulness]:
    for image in manifest.images:
        yield from image.faithfulness.values()
        if image.untrained:
            yield from image.untrained.faithfulness.values()


def _missing_maps(run: str, explained: Explained) -> Iterator[str]:
    """Yield how many of the maps are not beside their manifest, where some are: a copy may leave out all."""
    maps = [image.map.file for image in explained.manifest.images if image.map]
    missing = [file for file in maps if not (explained.folder / file).is_file()]
    if missing and len(missing) < len(maps):
        yield f"{run}: {count(len(missing), 'map')} of {len(maps)} missing in {SALIENCY_FOLDER}: {missing[0]}"
