"""The cache holds what decoding gives, is whole or not there, and is made anew when anything changes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.data_folders import blob, make_folder, noise, options, refused, save
from unet_scaling.base.errors import UserError
from unet_scaling.data import images as module
from unet_scaling.data.batches import unpack_bits
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import Manifest, write_manifest
from unet_scaling.data.images import DecodedImages, build_cache, cache_path, default_cache_root, open_cache
from unet_scaling.study.config import PROJECT

# Killed when all is written, and has not yet its name.
KILLED_BUILDER = """
import os, signal, sys
from pathlib import Path
from unet_scaling.data import images
from unet_scaling.data.folder import read_manifest
from unet_scaling.study.options import Data
folder, root = Path(sys.argv[1]), Path(sys.argv[2])
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
data = Data(folder=str(folder), image_height=16, image_width=16)
images.build_cache(read_manifest(folder / "manifest.json"), data, root)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", count=5)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return check_folder(folder)


def test_pixels_arrive_unchanged_within_their_padding_and_are_mapped(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    data = options(folder, image_height=20)
    build_cache(manifest, data, root)
    found = open_cache(manifest, data, root)
    assert found.boxes.tolist() == [[4, 0, 12, 16]] * 5
    np.testing.assert_array_equal(found.images[3, 4:16, :, 0], noise(seed=3))
    assert found.images[:, :4].max() == found.images[:, 16:].max() == 0
    mask = unpack_bits(torch.from_numpy(found.masks[3].copy()), blob().shape[1])
    np.testing.assert_array_equal(mask[4:16], blob(value=1))
    for array in (found.images, found.masks):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_all_that_changes_a_pixel_has_its_own_cache_and_nothing_else(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cache_path(manifest, options(folder), root)
    assert place == cache_path(manifest, options(Path("/moved"), test_share=0.5, split_seed=1), root)
    changes: list[dict[str, object]] = [
        {"image_height": 32}, {"image_width": 32}, {"channels": 3}, {"intensity": "image"},
        {"foreground": "255"},
    ]  # fmt: skip
    places = {place, *(cache_path(manifest, options(folder, **change), root) for change in changes)}
    save(folder / "images" / "p0.png", noise(seed=99))
    places.add(cache_path(check_folder(folder), options(folder), root))
    monkeypatch.setattr(module, "CACHE_FORMAT", 1_000_000)
    places.add(cache_path(manifest, options(folder), root))
    assert len(places) == 1 + len(changes) + 2


def test_a_finished_cache_is_not_built_again(folder: Path, root: Path, manifest: Manifest) -> None:
    data = options(folder)
    images = build_cache(manifest, data, root) / "images.npy"
    before = images.stat().st_mtime_ns
    (folder / "images" / "p0.png").unlink()
    assert build_cache(manifest, data, root) == images.parent
    assert images.stat().st_mtime_ns == before


def test_the_slower_of_two_builders_keeps_what_the_faster_made(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = options(folder)
    write_arrays = module._write_arrays

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(module, "_write_arrays", write_arrays)
        build_cache(manifest, data, root)
        write_arrays(*arguments)

    monkeypatch.setattr(module, "_write_arrays", overtaken)
    place = build_cache(manifest, data, root)
    assert sorted(path.name for path in root.iterdir()) == [place.name]
    open_cache(manifest, data, root)


def test_a_killed_builder_leaves_nothing_that_passes_for_a_cache(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    """What it leaves is removed by later builds, once it is a day old."""
    write_manifest(manifest, folder / "manifest.json")
    command = [sys.executable, "-c", KILLED_BUILDER, str(folder), str(root)]
    assert subprocess.run(command, cwd=PROJECT).returncode == -signal.SIGKILL
    data = options(folder)
    with pytest.raises(UserError) as caught:
        open_cache(manifest, data, root)
    assert refused(caught, 65, cache_path(manifest, data, root), folder)
    (left,) = root.iterdir()
    for age_hours, remains in ((23, True), (25, False)):
        then = time.time() - age_hours * 3600
        os.utime(left, (then, then))
        place = build_cache(manifest, data, root)
        assert left.exists() == remains
        open_cache(manifest, data, root)
        shutil.rmtree(place)


def test_files_that_changed_since_the_check_are_not_used(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    # The same number of bytes: only the checksum tells.
    path = folder / "masks" / "p1.png"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError) as caught:
        build_cache(manifest, options(folder), root)
    assert refused(caught, 65, path, f"data check {folder}")
    assert list(root.iterdir()) == []
    save(folder / "images" / "p2.png", noise(16, 16))
    images = DecodedImages(manifest, options(folder))
    with pytest.raises(UserError) as caught:
        images.gather(np.array([2]))
    assert refused(caught, 65, folder / "images" / "p2.png", "16 x 16")


@pytest.mark.parametrize("damage", ["cut", "other shape", "not numpy", "missing"])
def test_a_damaged_cache_is_refused_with_its_place(
    folder: Path, root: Path, manifest: Manifest, damage: str
) -> None:
    data = options(folder)
    path = build_cache(manifest, data, root) / "masks.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "other shape":
        np.save(path, np.zeros((5, 16, 15), np.uint8))
    elif damage == "not numpy":
        path.write_text("nothing")
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        open_cache(manifest, data, root)
    assert refused(caught, 65, path.parent, "rename it")


def test_another_foreground_rule_than_that_of_the_check_is_refused(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    data = options(folder, foreground="255")
    with pytest.raises(UserError, match=r"data\.foreground"):
        build_cache(manifest, data, root)
    with pytest.raises(UserError, match=r"data\.foreground"):
        DecodedImages(manifest, data)


@pytest.mark.parametrize("fault", ["unwritable", "fills up", "too small"])
def test_a_disk_without_room_is_named_with_the_variable_and_holds_nothing(
    fault: str, folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open
    full = Path("/dev/full")

    def open_full(path: Path, mode: str = "r") -> object:
        return open_file(full if path.name == "masks.npy" else path, mode)

    if fault == "unwritable":
        root.touch()
    elif fault == "fills up":
        monkeypatch.setattr(Path, "open", open_full)
    else:
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 16 * (16 + 2) - 1))
    with pytest.raises(UserError) as caught:
        build_cache(manifest, options(folder), root)
    assert refused(caught, 2, root, "UNET_SCALING_CACHE")
    assert fault == "unwritable" or list(root.iterdir()) == []


def test_the_default_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_root() == tmp_path / "images"
    monkeypatch.delenv("UNET_SCALING_CACHE")
    assert default_cache_root() == Path("/scratch/unet-scaling/images")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_root() == Path("/home/someone/.cache/unet-scaling/images")
