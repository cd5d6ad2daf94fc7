"""One check reports everything that is wrong with a folder, and describes what is right."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_folders import blob, cut, make_folder, noise, refused, save
from unet_scaling.data.checking import check_folder
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError

NUCLEI = PROJECT.parent / "shared" / "data" / "nuclei"


def test_a_sound_folder_is_described(tmp_path: Path) -> None:
    manifest = check_folder(make_folder(tmp_path))
    pair = manifest.pairs[0]
    assert [pair.stem for pair in manifest.pairs] == ["p0", "p1", "p2", "p3"]
    assert (pair.height, pair.width, pair.image.mode) == (12, 16, "grey 8 bit")
    assert (pair.mask_values, pair.mask_value_count, pair.foreground_pixels) == ([0, 255], 2, 24)
    assert pair.foreground_share == 24 / (12 * 16)
    assert pair.image.bytes == (tmp_path / "images" / "p0.png").stat().st_size


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_all_problems_are_reported_at_once_with_their_paths(tmp_path: Path, suffix: str) -> None:
    make_folder(tmp_path, count=8, suffix=suffix)
    images = tmp_path / "images"
    masks = tmp_path / "masks"
    (masks / f"p0{suffix}").unlink()
    save(masks / f"extra{suffix}", blob())
    cut(images / f"p1{suffix}", 0.7)
    (images / f"p2{suffix}").write_bytes(b"")
    (images / f"p3{suffix}").write_text("this is no picture")
    save(masks / f"p4{suffix}", blob(14, 16))
    save(masks / f"p5{suffix}", blob(value=7))
    cut(masks / f"p6{suffix}", 0.5)
    with pytest.raises(UserError) as caught:
        check_folder(tmp_path, "255")
    assert refused(
        caught,
        65,
        "8 problems found",
        images / f"p0{suffix}: has no mask",
        masks / f"extra{suffix}: has no image",
        images / f"p1{suffix}: cannot be decoded",
        images / f"p2{suffix}: is empty",
        images / f"p3{suffix}: is no PNG, JPEG or TIFF file",
        masks / f"p4{suffix}: has 16 x 14 pixels, its image 16 x 12",
        masks / f"p5{suffix}: holds 7, unexpected under the rule '255'",
        masks / f"p6{suffix}: cannot be decoded",
    )


def test_a_long_list_is_cut_with_a_count(tmp_path: Path) -> None:
    make_folder(tmp_path, count=60)
    for mask in (tmp_path / "masks").iterdir():
        mask.write_bytes(b"")
    with pytest.raises(UserError, match="60 problems found") as caught:
        check_folder(tmp_path)
    assert str(caught.value).count("\n") == 51
    assert str(caught.value).endswith("... and 10 more")


def test_nonzero_allows_one_value_in_the_whole_data_set(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "masks" / "p2.png", blob(value=1))
    with pytest.raises(UserError) as caught:
        check_folder(tmp_path)
    assert refused(caught, 65, "p0.png: holds 255", "p2.png: holds 1", "2 classes: use --foreground '1,255'")
    assert check_folder(tmp_path, "1,255").foreground == "1,255"


def test_masks_of_0_and_1_have_foreground(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for index in range(4):
        save(tmp_path / "masks" / f"p{index}.png", blob(value=1))
    assert check_folder(tmp_path).pairs[0].foreground_pixels == 24


def test_a_rule_that_finds_no_foreground_at_all_is_a_problem(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for index in range(4):
        save(tmp_path / "masks" / f"p{index}.png", blob(value=1))
    with pytest.raises(UserError, match="no mask has a foreground pixel under the rule '>127'"):
        check_folder(tmp_path, ">127")


def test_sixteen_bit_masks_are_judged_by_all_their_bits(tmp_path: Path) -> None:
    make_folder(tmp_path, count=1)
    # 256 and 512 are both 0 in their low byte, 1 and 2 in their high byte.
    mask = blob(value=256, dtype=np.uint16)
    mask[0, 0] = 512
    save(tmp_path / "masks" / "p0.png", mask)
    with pytest.raises(UserError, match="holds 256, 512, unexpected"):
        check_folder(tmp_path)
    assert check_folder(tmp_path, ">256").pairs[0].foreground_pixels == 1


def test_overlay_masks_of_equal_channels_pass_and_coloured_ones_do_not(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "masks" / "p0.png", Image.fromarray(blob()).convert("RGBA"))
    assert check_folder(tmp_path).pairs[0].mask.mode == "RGBA 8 bit"
    red = np.dstack([blob(), blob() * 0, blob() * 0, np.full_like(blob(), 255)])
    save(tmp_path / "masks" / "p0.png", red)
    with pytest.raises(UserError) as caught:
        check_folder(tmp_path)
    assert refused(caught, 65, tmp_path / "masks" / "p0.png", "has colours")


def test_many_mask_values_are_counted_but_not_all_listed(tmp_path: Path) -> None:
    make_folder(tmp_path, count=1, height=64, width=64)
    save(tmp_path / "masks" / "p0.png", noise(64, 64))
    pair = check_folder(tmp_path, ">127").pairs[0]
    assert pair.mask_values == list(range(16))
    assert pair.mask_value_count == 256


def test_real_micrographs_pass() -> None:
    if not NUCLEI.is_dir():
        pytest.skip("the nuclei data set is not beside this checkout")
    manifest = check_folder(NUCLEI)
    assert len(manifest.pairs) == 240
    assert all(pair.mask_values in ([0, 255], [0]) for pair in manifest.pairs)
