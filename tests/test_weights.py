"""Weights on disk: verified, tensors only, whole or absent."""

import io
import os
import re
from pathlib import Path

import pytest
import torch

from unet_scaling.model import UNet
from unet_scaling.run.weights import load_weights, save_weights, weights_sha256
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.files import write_verified


@pytest.fixture
def saved(tmp_path: Path) -> tuple[UNet, Path]:
    model = UNet(width=2, depth=2)
    save_weights(model, tmp_path / "weights.pt")
    return model, tmp_path / "weights.pt"


def test_come_back_as_they_were(saved: tuple[UNet, Path]) -> None:
    model, path = saved
    other = UNet(width=2, depth=2)
    assert weights_sha256(other) != weights_sha256(model)
    load_weights(other, path)
    assert weights_sha256(other) == weights_sha256(model)


def test_one_flipped_byte_is_refused(saved: tuple[UNet, Path]) -> None:
    """torch.load alone would accept it."""
    model, path = saved
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        load_weights(model, path)


def test_weights_without_checksum_are_refused(saved: tuple[UNet, Path]) -> None:
    model, path = saved
    path.with_name("weights.pt.sha256").unlink()
    with pytest.raises(UserError, match=r"weights\.pt\.sha256"):
        load_weights(model, path)


def test_weights_of_another_model_are_refused(saved: tuple[UNet, Path]) -> None:
    with pytest.raises(UserError, match="another model") as caught:
        load_weights(UNet(width=4, depth=2), saved[1])
    assert caught.value.exit_code == EXIT_BAD_DATA


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "it is empty"),
        ([torch.ones(2)], "it holds a list"),
        (torch.ones(2), "it holds a Tensor"),
        ({"model": {}, "workers": [], "progress": "{}"}, "holds a dict beside tensors: a checkpoint?"),
        ({}, "another model"),
        (b"no file of torch's", "cannot be unpacked"),
    ],
)
def test_what_is_no_weights_is_refused_in_one_line_that_says_what_it_is(
    held: object, said: str, tmp_path: Path
) -> None:
    buffer = io.BytesIO(held if isinstance(held, bytes) else b"")
    if held is not None and not isinstance(held, bytes):
        torch.save(held, buffer)
    write_verified(tmp_path / "weights.pt", buffer.getvalue())
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        load_weights(UNet(width=2, depth=2), tmp_path / "weights.pt")
    assert caught.value.exit_code == EXIT_BAD_DATA
    assert "\n" not in str(caught.value)


class Code:
    """What makes a folder where it is unpacked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_pickle_is_refused_and_never_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    buffer = io.BytesIO()
    torch.save({"weight": Code(made)}, buffer)
    write_verified(tmp_path / "weights.pt", buffer.getvalue())
    with pytest.raises(UserError) as caught:
        load_weights(UNet(width=2, depth=2), tmp_path / "weights.pt")
    assert caught.value.exit_code == EXIT_BAD_DATA
    assert not made.exists()


def test_a_full_disk_leaves_the_old_file(saved: tuple[UNet, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = saved
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", _disk_full)
    with pytest.raises(OSError, match="No space left"):
        save_weights(UNet(width=2, depth=2), path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["weights.pt", "weights.pt.sha256"]


def _disk_full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_the_checksum_sees_names_shapes_and_values() -> None:
    model = UNet(width=2, depth=2)
    before = weights_sha256(model)
    with torch.no_grad():
        model.head.weight += 1e-3
    assert weights_sha256(model) != before
