"""Options of the communication: the same training, averaged in another way by real workers."""

from pathlib import Path

import pytest

from tests.studies import make_point
from tests.trained import TrainedRuns, plain_config
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import HorovodKnobs, NativeKnobs

HELD_BACK = r"static_graph needs one pass per step .* found 2"
TUNED = {
    "pytorch_native": NativeKnobs(gradient_as_bucket_view=True, static_graph=True),
    "horovod": HorovodKnobs(groups=2, cycle_time_ms=1),
}


def with_knobs(point: RunConfig) -> RunConfig:
    return RunConfig.model_validate(
        point.model_dump() | {point.framework: TUNED[point.framework].model_dump()}
    )


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_tuned_communication_changes_no_result(
    framework: str, images: Path, trained_run: TrainedRuns
) -> None:
    plain = plain_config(images, framework)
    expected = trained_run(plain).losses
    assert trained_run(with_knobs(plain)).losses == pytest.approx(expected, rel=1e-6)
    compressed = trained_run(plain_config(images, framework, gradient_compression="fp16")).losses
    assert compressed == pytest.approx(expected, rel=1e-2)
    assert compressed != expected


@pytest.mark.slow
def test_horovod_under_gloo_trains_as_under_mpi(images: Path, trained_run: TrainedRuns) -> None:
    mpi = plain_config(images, "horovod")
    gloo = trained_run(mpi.model_copy(update={"horovod": HorovodKnobs(controller="gloo")}))
    assert gloo.record.header is not None
    assert gloo.record.header.transport["controller"] == "Gloo"
    assert gloo.losses == pytest.approx(trained_run(mpi).losses, rel=1e-6)


def test_a_static_graph_has_one_pass_per_step() -> None:
    point = make_point(Path("/images"), accumulate=2)
    with pytest.raises(ValueError, match=HELD_BACK):
        with_knobs(point)
