"""Options of the communication: the same training, averaged in another way by real workers."""

from pathlib import Path

import pytest

from tests.studies import make_point, train
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import HorovodKnobs, NativeKnobs

HELD_BACK = "static_graph needs training.accumulate = 1, found 2"
TUNED = {
    "pytorch_native": NativeKnobs(gradient_as_bucket_view=True, static_graph=True),
    "horovod": HorovodKnobs(groups=2, cycle_time_ms=1),
}


def with_knobs(point: RunConfig) -> RunConfig:
    return RunConfig.model_validate(
        point.model_dump() | {point.framework: TUNED[point.framework].model_dump()}
    )


def losses(folder: Path, point: RunConfig) -> list[float]:
    return [epoch.loss for epoch in train(folder, point, cores_each=1).epochs]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_tuned_communication_changes_no_result(framework: str, images: Path, tmp_path: Path) -> None:
    plain = make_point(images, framework, 2, epochs=2)
    expected = losses(tmp_path / "plain", plain)
    assert losses(tmp_path / "tuned", with_knobs(plain)) == pytest.approx(expected, rel=1e-6)
    half = plain.model_copy(
        update={"training": plain.training.model_copy(update={"gradient_compression": "fp16"})}
    )
    compressed = losses(tmp_path / "half", half)
    assert compressed == pytest.approx(expected, rel=1e-2)
    assert compressed != expected


@pytest.mark.slow
def test_horovod_under_gloo_trains_as_under_mpi(images: Path, tmp_path: Path) -> None:
    mpi = make_point(images, "horovod", 2, epochs=2)
    gloo = mpi.model_copy(update={"horovod": HorovodKnobs(controller="gloo")})
    expected = losses(tmp_path / "mpi", mpi)
    record = train(tmp_path / "gloo", gloo, cores_each=1)
    assert record.header is not None
    assert record.header.transport["controller"] == "Gloo"
    assert [epoch.loss for epoch in record.epochs] == pytest.approx(expected, rel=1e-6)


def test_a_static_graph_has_one_pass_per_step() -> None:
    point = make_point(Path("/images"), accumulate=2)
    with pytest.raises(ValueError, match=HELD_BACK):
        with_knobs(point)
