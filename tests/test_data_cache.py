"""The cache holds what decoding gives, is whole or not there, and is made anew when anything changes."""

import os
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
from unet_scaling.data import cache
from unet_scaling.data.cache import build_cache, cache_path, default_cache_root, open_cache
from unet_scaling.data.checking import check_folder
from unet_scaling.data.decoding import DecodedImages
from unet_scaling.data.manifest import Manifest, write_manifest
from unet_scaling.data.mask_bits import packed_width, unpack_bits
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Data

BUILDER = """
import sys
from pathlib import Path
from unet_scaling.study.config import Data
from unet_scaling.data.cache import build_cache
from unet_scaling.data.manifest import read_manifest
folder, root = Path(sys.argv[1]), Path(sys.argv[2])
data = Data(folder=str(folder), image_height=16, image_width=16)
manifest = read_manifest(folder / "manifest.json")
print("ready", flush=True)
sys.stdin.readline()
print(build_cache(manifest, folder, data, root))
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


def start_builder(folder: Path, root: Path) -> subprocess.Popen[str]:
    """A process that builds the cache once it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), str(root)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def leftovers(root: Path) -> list[Path]:
    return sorted(root.glob(".*"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"channels": 3},
        {"image_height": 12},
        {"intensity": "image"},
        {"foreground": ">127"},
        {"image_height": 9, "image_width": 7},
    ],
)
def test_both_ways_of_loading_give_the_same(
    folder: Path, root: Path, manifest: Manifest, changes: dict[str, object]
) -> None:
    data = options(folder, **changes)
    manifest = check_folder(folder, data.foreground)
    build_cache(manifest, folder, data, root)
    cached, decoded = open_cache(manifest, folder, data, root), DecodedImages(manifest, folder, data)
    indices = np.array([4, 0, 0, 2])
    for ours, theirs in zip(cached.gather(indices), decoded.gather(indices), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.equal(theirs)
    images, masks = cached.gather(indices)
    assert images.shape == (4, data.channels, data.image_height, data.image_width)
    assert masks.shape == (4, data.image_height, packed_width(data.image_width))
    assert set(unpack_bits(masks, data.image_width).flatten().tolist()) == {0, 1}
    np.testing.assert_array_equal(cached.boxes, decoded.boxes)


def test_pixels_arrive_unchanged_where_the_size_fits(folder: Path, root: Path, manifest: Manifest) -> None:
    data = options(folder, image_height=12)
    build_cache(manifest, folder, data, root)
    found = open_cache(manifest, folder, data, root)
    np.testing.assert_array_equal(found.images[3, :, :, 0], noise(seed=3))
    mask = unpack_bits(torch.from_numpy(found.masks[3].copy()), blob().shape[1])
    np.testing.assert_array_equal(mask, blob(value=1))


def test_boxes_say_where_the_picture_is(folder: Path, root: Path, manifest: Manifest) -> None:
    data = options(folder, image_height=20)
    build_cache(manifest, folder, data, root)
    found = open_cache(manifest, folder, data, root)
    assert found.boxes.tolist() == [[4, 0, 12, 16]] * 5
    assert found.images[:, :4].max() == found.images[:, 16:].max() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"image_height": 32},
        {"image_width": 32},
        {"channels": 3},
        {"intensity": "image"},
        {"foreground": "255"},
    ],
)
def test_every_option_that_changes_a_pixel_has_its_own_cache(
    folder: Path, root: Path, manifest: Manifest, changes: dict[str, object]
) -> None:
    assert cache_path(manifest, options(folder), root) != cache_path(
        manifest, options(folder, **changes), root
    )


def test_other_data_have_another_cache(folder: Path, root: Path, manifest: Manifest) -> None:
    save(folder / "images" / "p0.png", noise(seed=99))
    other = check_folder(folder)
    assert cache_path(manifest, options(folder), root) != cache_path(other, options(folder), root)


def test_options_that_change_no_pixel_share_one(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cache_path(manifest, options(folder), root)
    assert place == cache_path(manifest, options(Path("/moved"), test_share=0.5, split_seed=1), root)
    monkeypatch.setattr(cache, "CACHE_FORMAT", 1_000_000)
    assert place != cache_path(manifest, options(folder), root)


def test_a_finished_cache_is_not_built_again(folder: Path, root: Path, manifest: Manifest) -> None:
    data = options(folder)
    place = build_cache(manifest, folder, data, root)
    before = (place / "images.npy").stat().st_mtime_ns
    (folder / "images" / "p0.png").unlink()
    assert build_cache(manifest, folder, data, root) == place
    assert (place / "images.npy").stat().st_mtime_ns == before


def test_two_processes_building_at_once_leave_one_sound_cache(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    make_folder(folder, count=80)
    manifest = check_folder(folder)
    write_manifest(manifest, folder / "manifest.json")
    builders = [start_builder(folder, root) for _ in range(2)]
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("go\n")
        builder.stdin.flush()
    answers = [builder.communicate(timeout=60)[0].strip() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert answers == [str(cache_path(manifest, options(folder), root))] * 2
    assert len(open_cache(manifest, folder, options(folder), root).images) == 80
    assert leftovers(root) == []


def test_the_slower_of_two_builders_keeps_what_the_faster_made(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = options(folder)
    write_arrays = cache._write_arrays

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(cache, "_write_arrays", write_arrays)
        build_cache(manifest, folder, data, root)
        write_arrays(*arguments)

    monkeypatch.setattr(cache, "_write_arrays", overtaken)
    place = build_cache(manifest, folder, data, root)
    assert sorted(path.name for path in root.iterdir()) == [place.name]
    open_cache(manifest, folder, data, root)


def test_a_killed_builder_leaves_nothing_that_passes_for_a_cache(tmp_path: Path, root: Path) -> None:
    folder = make_folder(tmp_path / "large", count=400, height=96, width=96)
    manifest = check_folder(folder)
    write_manifest(manifest, folder / "manifest.json")
    builder = start_builder(folder, root)
    assert builder.stdin is not None
    builder.stdin.write("go\n")
    builder.stdin.flush()
    while not list(root.glob(".building-*/images.npy")):
        assert builder.poll() is None
        time.sleep(0.001)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert builder.returncode == -signal.SIGKILL
    data = options(folder)
    with pytest.raises(UserError) as caught:
        open_cache(manifest, folder, data, root)
    assert refused(caught, 65, cache_path(manifest, data, root), folder)
    assert len(leftovers(root)) == 1
    build_cache(manifest, folder, data, root)
    assert len(open_cache(manifest, folder, data, root).images) == 400


def test_only_old_leftovers_are_removed(folder: Path, root: Path, manifest: Manifest) -> None:
    for name, age_hours in (("old", 25), ("young", 23)):
        (root / f".building-{name}").mkdir(parents=True)
        then = time.time() - age_hours * 3600
        os.utime(root / f".building-{name}", (then, then))
    build_cache(manifest, folder, options(folder), root)
    assert [path.name for path in leftovers(root)] == [".building-young"]


def test_files_that_changed_since_the_check_are_not_cached(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    # The same number of bytes: only the checksum tells.
    path = folder / "masks" / "p1.png"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError) as caught:
        build_cache(manifest, folder, options(folder), root)
    assert refused(caught, 65, path, "changed since the manifest", f"data check {folder}")
    assert list(root.iterdir()) == []


def test_decoding_at_every_step_notices_a_picture_of_another_size(folder: Path, manifest: Manifest) -> None:
    save(folder / "images" / "p2.png", noise(16, 16))
    images = DecodedImages(manifest, folder, options(folder))
    images.gather(np.array([1]))
    with pytest.raises(UserError) as caught:
        images.gather(np.array([1, 2]))
    assert refused(caught, 65, folder / "images" / "p2.png", "16 x 16")


@pytest.mark.parametrize("damage", ["cut", "other shape", "not numpy", "missing"])
def test_a_damaged_cache_is_refused_with_its_place(
    folder: Path, root: Path, manifest: Manifest, damage: str
) -> None:
    data = options(folder)
    path = build_cache(manifest, folder, data, root) / "masks.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "other shape":
        np.save(path, np.zeros((5, 16, 15), np.uint8))
    elif damage == "not numpy":
        path.write_text("nothing")
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        open_cache(manifest, folder, data, root)
    assert refused(caught, 65, path.parent, "rename it")


def test_another_foreground_rule_than_that_of_the_check_is_refused(
    folder: Path, root: Path, manifest: Manifest
) -> None:
    data = options(folder, foreground="255")
    for load in (
        lambda: build_cache(manifest, folder, data, root),
        lambda: DecodedImages(manifest, folder, data),
    ):
        with pytest.raises(UserError, match=r"data\.foreground"):
            load()


def test_an_unwritable_place_names_the_variable(folder: Path, tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        build_cache(manifest, folder, options(folder), tmp_path / "file" / "images")
    assert refused(caught, 2, tmp_path / "file", "UNET_SCALING_CACHE")


def test_a_disk_that_fills_up_while_writing_leaves_nothing(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open
    full = Path("/dev/full")

    def open_full(path: Path, mode: str = "r") -> object:
        return open_file(full if path.name == "masks.npy" else path, mode)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(UserError) as caught:
        build_cache(manifest, folder, options(folder), root)
    assert refused(caught, 2, root, "No space left on device", "UNET_SCALING_CACHE")
    assert list(root.iterdir()) == []


def test_too_little_space_is_noticed_before_any_work(
    folder: Path, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 16 * (16 + 2) - 1))
    with pytest.raises(UserError) as caught:
        build_cache(manifest, folder, options(folder), root)
    assert refused(caught, 2, root, "MiB are free", "UNET_SCALING_CACHE", "data.loading")
    assert list(root.iterdir()) == []


def test_the_default_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path))
    assert default_cache_root() == tmp_path / "images"
    monkeypatch.delenv("UNET_SCALING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert default_cache_root() == Path("/scratch/unet-scaling/images")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_root() == Path("/home/someone/.cache/unet-scaling/images")


def test_the_arrays_are_mapped_not_loaded(folder: Path, root: Path, manifest: Manifest) -> None:
    data: Data = options(folder)
    build_cache(manifest, folder, data, root)
    found = open_cache(manifest, folder, data, root)
    assert isinstance(found.images, np.memmap)
    assert isinstance(found.masks, np.memmap)
    assert not found.images.flags.writeable
