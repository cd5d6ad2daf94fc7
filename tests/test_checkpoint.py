"""Checkpoints and weights: what comes back is what was saved, or an earlier checkpoint, or an error.

An attempt goes on with the images, machine and software of those that trained before it.
"""

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.records import digest, make_epochs, make_header, make_point
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.base.files import PAUSES_SECONDS, read_verified, write_verified
from unet_scaling.format.facts import differing_attempts, sharing
from unet_scaling.format.record_lines import AttemptFacts, Header, WorkerFacts
from unet_scaling.group.group import single_worker
from unet_scaling.model import UNet
from unet_scaling.run.checkpoint import (
    EpochSoFar,
    Progress,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
    set_checkpoints_aside,
    why_anew,
)
from unet_scaling.run.training_state import Trained, generators, load_weights, seed_generators

POINT = digest("point")


GROUP = single_worker()


def trained(steps: int) -> Trained:
    """A small network with batch norm, after some steps of Adam."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    return Trained(model, optimizer, [generators()])


def progress(epoch: int, step: int = 0) -> Progress:
    return Progress(
        config_sha256=POINT,
        epoch=epoch,
        step=step,
        epochs=make_epochs(make_point(), 100.0, 48),
        results=[],
        attempts=[AttemptFacts(**{name: getattr(attempts(), name) for name in AttemptFacts.model_fields})],
    )


def save(folder: Path, state: Trained, epoch: int, step: int = 0) -> Path:
    begun = EpochSoFar(torch.tensor(0.1 * step), seconds=1.5 * step)
    save_checkpoint(folder, GROUP, state, progress(epoch, step), begun)
    return folder / f"checkpoint-{epoch:05d}-{step:07d}.pt"


def same(one: Trained, other: Trained) -> bool:
    """Whether two have the same weights, statistics and optimizer state, bit for bit."""
    states = [
        [*each.model.state_dict().values(), *_tensors(each.optimizer.state_dict())] for each in (one, other)
    ]
    return all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def _tensors(state: dict[str, dict[int, dict[str, Tensor]]]) -> list[Tensor]:
    return [value for entry in state["state"].values() for value in entry.values()]


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    saved = trained(5)
    seed_generators(1, 2)
    drawn, of_player = str(generators()), str(saved.played_generators)
    save(tmp_path, saved, 2, step=7)
    seed_generators(99, 0)
    fresh = trained(0)
    found = load_checkpoint(tmp_path, GROUP, fresh, POINT)
    assert found is not None
    assert found[0] == progress(2, 7)
    assert found[1].loss.item() == pytest.approx(0.7)
    assert found[1].seconds == 10.5
    assert same(fresh, saved)
    assert str(generators()) == drawn
    assert str(fresh.played_generators) == of_player


def test_the_newest_two_are_kept_and_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    paths = [save(tmp_path, trained(1), epoch, step) for epoch, step in ((0, 9), (1, 0), (1, 12), (10, 0))]
    assert [path.exists() for path in paths] == [False, False, True, True]
    files = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(files) == 4
    save(tmp_path, trained(1), 10, 0)
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == files
    remove_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


PARTS: dict[str, object] = {"model": {}, "optimizer": {}, "workers": [], "progress": ""}
CONTENTS: dict[str, tuple[object, str]] = {
    "nothing": (None, "it is empty"),
    "a list": ([1, 2], "it holds a list"),
    "weights alone": ({"weight": torch.ones(2)}, "its 'model' is a NoneType"),
    "no worker": (PARTS | {"workers": [3]}, "it holds a int where a dictionary belongs"),
    "no progress": (PARTS, "validation error"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_checkpoint_is_named_and_the_run_does_not_begin_anew_in_silence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, said = CONTENTS[name]
    buffer = io.BytesIO()
    if held is not None:
        torch.save(held, buffer)
    write_verified(tmp_path / "checkpoint-00001-0000000.pt", buffer.getvalue())
    require_none_usable(tmp_path)
    assert said in capsys.readouterr().out


def require_none_usable(folder: Path, point: str = POINT) -> None:
    with pytest.raises(UserError, match=r"none of the checkpoints .* can be used: checkpoint-00001") as error:
        load_checkpoint(folder, GROUP, trained(0), point)
    assert error.value.exit_code == EXIT_BAD_DATA


@pytest.mark.parametrize("workers", [0, 3])
def test_a_checkpoint_of_other_workers_or_another_configuration_is_named(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, trained(1), 1)
    require_none_usable(tmp_path, digest("another"))
    state = torch.load(path, weights_only=True)
    _rewrite(path, state | {"workers": state["workers"] * workers})
    require_none_usable(tmp_path)
    assert f"is of {workers} workers, this run has 1" in capsys.readouterr().out


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    path = save(tmp_path, trained(1), 1)
    state = torch.load(path, weights_only=True)
    _rewrite(path, state | {"model": {}})
    with pytest.raises(UserError, match=r"does not fit this run: .*Missing key") as error:
        load_checkpoint(tmp_path, GROUP, trained(0), POINT)
    assert error.value.exit_code == EXIT_BAD_DATA
    assert "\n" not in str(error.value)


def test_a_lack_of_gpu_memory_is_not_blamed_on_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    path = save(tmp_path, trained(1), 1)
    later = trained(0)
    monkeypatch.setattr(later.optimizer, "load_state_dict", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_checkpoint(tmp_path, GROUP, later, POINT)
    assert path.exists()


def _rewrite(path: Path, state: dict[str, object]) -> None:
    """Another content with the right checksum."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_verified(path, buffer.getvalue())


@pytest.mark.parametrize("tries_in_vain", [3, 4])
def test_a_lack_of_space_is_waited_for_and_then_said(
    tries_in_vain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save(tmp_path, trained(1), 1)
    roomy = shutil.disk_usage(tmp_path)
    told = [roomy._replace(free=1000)] * tries_in_vain + [roomy]
    monkeypatch.setattr("unet_scaling.run.checkpoint.shutil.disk_usage", lambda _: told.pop(0))
    monkeypatch.setattr("unet_scaling.base.texts.time.sleep", lambda _: None)
    if tries_in_vain > len(PAUSES_SECONDS):
        with pytest.raises(UserError, match="has 0 MiB free"):
            save(tmp_path, trained(2), 2)
        assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 1
    else:
        save(tmp_path, trained(2), 2)
        assert told == []
    assert old.exists()


class Code:
    """What makes a folder where it is unpacked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "it is empty"),
        (torch.ones(2), "it holds a Tensor"),
        ({"model": {}, "workers": [], "progress": "{}"}, "holds a dict beside tensors: a checkpoint?"),
        (UNet(width=4, depth=2).state_dict(), "another model"),
        (b"no file of torch's", "cannot be unpacked"),
        ({"weight": Code("made")}, "cannot be unpacked"),
    ],
)
def test_what_is_no_weights_is_refused_in_one_line_and_no_code_in_it_runs(
    held: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO(held if isinstance(held, bytes) else b"")
    if held is not None and not isinstance(held, bytes):
        torch.save(held, buffer)
    write_verified(tmp_path / "weights.pt", buffer.getvalue())
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        load_weights(UNet(width=2, depth=2), tmp_path / "weights.pt")
    assert caught.value.exit_code == EXIT_BAD_DATA
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


FOLDER = Path("/logs/study/run")
Change = Callable[[WorkerFacts], dict[str, object]]


def attempts(change: Change = lambda _: {}, **changes: object) -> Header:
    """A run of two workers of two cores in its second attempt; `change` gives other fields of each worker."""
    header = make_header(make_point(workers=2))
    now = header.model_copy(update={"attempt": 2, "started_utc": "later", "earlier": [header], **changes})
    return now.model_copy(update={"workers": [each.model_copy(update=change(each)) for each in now.workers]})


@pytest.mark.parametrize(
    ("now", "said", "code"),
    [
        (
            attempts(manifest_sha256=digest("other")),
            f"but {digest('other')[:60]}",
            EXIT_BAD_DATA,
        ),
        (attempts(lambda _: {"device": "H100"}), "devices: cpu in attempt 1, but H100", EXIT_USAGE),
        (attempts(lambda _: {"cores": [4, 5]}), "cores per worker: 1 in attempt 1, but 2", EXIT_USAGE),
        (attempts(lambda _: {"threads": 3}), "threads per worker: 1 in attempt 1, but 3", EXIT_USAGE),
        (attempts(lambda to: {"host": f"n{to.worker}"}), "host: 2 in attempt 1, but 1, 1", EXIT_USAGE),
        (attempts(dilation=4.0), "dilation: 1 in attempt 1, but 4 in attempt 2", EXIT_USAGE),
        (attempts(versions={"torch": "2.14.0"}), "torch: 2.13.0 in attempt 1, but 2.14.0", EXIT_USAGE),
    ],
)
def test_refuses_to_go_on_with_other_images_or_machines_or_versions(
    now: Header, said: str, code: int
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        why_anew(now, FOLDER)
    assert refused.value.exit_code == code
    assert "remove /logs/study/run/checkpoint-* to train from the start" in str(refused.value)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (attempts(), ""),
        (attempts(lambda _: {"host": "node9"}), ""),
        (attempts(versions={"python": "3.11.2", "torch": "2.13.0", "driver": "535", "os": "Suse"}), ""),
        (attempts(lambda _: {"environment": {"NCCL_SOCKET_IFNAME": "ib1"}}), ""),
        (attempts(lambda _: {"environment": {"HOROVOD_STALL_CHECK_TIME_SECONDS": "9"}}), ""),
        (attempts(commit="f" * 40), "commit: 0123456789abcdef"),
        (attempts(dirty=True), "uncommitted changes: False in attempt 1, but True in attempt 2"),
        (attempts(lambda _: {"environment": {"NCCL_ALGO": "Tree"}}), "NCCL_ALGO: not set in attempt 1"),
        (attempts(lambda _: {"allocator": {"LD_PRELOAD": "x.so"}}), "LD_PRELOAD"),
    ],
)
def test_goes_on_on_other_nodes_and_begins_anew_with_another_commit(now: Header, said: str) -> None:
    """What goes on, the report uses (tests/test_refusals.py): both ask one table."""
    why = why_anew(now, FOLDER)
    assert said in why
    assert bool(said) == bool(why)
    assert bool(sharing(now) or [*differing_attempts(now)]) == bool(why)


def test_what_is_set_aside_can_be_taken_back_until_the_run_is_complete(tmp_path: Path) -> None:
    write_verified(tmp_path / "checkpoint-00001-0000000.pt", b"state")
    aside = set_checkpoints_aside(tmp_path, attempt=1)
    assert not list(tmp_path.glob("checkpoint-*"))
    assert read_verified(aside / "checkpoint-00001-0000000.pt") == b"state"
    remove_checkpoints(tmp_path)
    assert not aside.exists()
