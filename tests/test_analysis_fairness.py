"""Which runs may not be compared, and that the reason names the fact and both values."""

from pathlib import Path
from typing import Any

import pytest

from analysis.loading.fairness import refusals, remarks, sharing
from analysis.loading.load import load_study
from tests.records import digest, make_header, make_point, make_workers, write_run
from unet_scaling.config import Framework
from unet_scaling.record_lines import Header


def header(framework: Framework = "pytorch_native", count: int = 1, **changes: object) -> Header:
    return make_header(make_point(framework, count), **changes)


def test_unequal_test_sets_are_refused_naming_both_values(tmp_path: Path) -> None:
    for repeat in (1, 2):
        write_run(tmp_path, repeat=repeat)
    write_run(tmp_path, "horovod", header={"test_images": 30})
    study = load_study(tmp_path)
    assert set(study.runs["framework"]) == {"pytorch_native"}
    left_out = study.left_out.iloc[0]
    assert left_out["state"] == "refused"
    assert left_out["reason"] == "test_images is 30, but 12 in pytorch_native-w01-r1 and 1 more"


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("manifest_sha256", {"manifest_sha256": digest("other images")}),
        ("train_images", {"train_images": 47}),
        ("initial_weights_sha256", {"initial_weights_sha256": digest("other weights")}),
        ("commit", {"commit": "another"}),
        ("uncommitted changes", {"dirty": True}),
        ("device", {"workers": make_workers(1, device="NVIDIA H200")}),
        ("cores per worker", {"workers": make_workers(1, cores_each=2)}),
        ("threads per worker", {"workers": make_workers(1, cores_each=2)}),
        ("version of torch", {"versions": {"python": "3.11.2", "torch": "2.12.0"}}),
    ],
)
def test_frameworks_must_agree_in(fact: str, change: dict[str, Any]) -> None:
    refused = refusals({"first": header(), "second": header("horovod", **change)})
    assert set(refused) == {"second"}
    assert f"{fact} is " in refused["second"]
    assert "in first" in refused["second"]


def test_cores_may_differ_where_the_study_varies_them() -> None:
    def using(cores: int, owned: int) -> Header:
        point = make_point(options={"training": {"cores_per_worker": cores}})
        return make_header(point, workers=make_workers(1, cores_each=owned))

    assert refusals({"one": using(1, 1), "two": using(2, 2)}) == {}
    assert set(refusals({"one": using(2, 2), "two": using(2, 2), "other": using(2, 3)})) == {"other"}


def test_the_value_of_most_runs_stands() -> None:
    refused = refusals({"odd": header(test_images=11), "a": header(), "b": header("horovod")})
    assert list(refused) == ["odd"]


def test_frameworks_may_differ_in_transport_and_in_versions_that_only_one_has() -> None:
    versions = {"python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1"}
    assert refusals({"a": header(), "b": header("horovod", versions=versions)}) == {}


def test_runs_of_one_framework_may_not_differ_in_transport() -> None:
    refused = refusals({"a": header(), "b": header(count=2, transport={"backend": "nccl"})})
    assert 'transport is {"backend": "nccl"}, but {"backend": "gloo"} in a' in refused["b"]


def test_seeds_may_differ_in_initial_weights() -> None:
    runs = {str(repeat): make_header(make_point(repeat=repeat)) for repeat in (1, 2, 3)}
    assert len({run.initial_weights_sha256 for run in runs.values()}) == 3
    assert refusals(runs) == {}


def test_options_that_vary_are_no_reason_to_refuse() -> None:
    wide = make_point(options={"model": {"width": 16}})
    assert refusals({"a": header(), "b": make_header(wide, initial_weights_sha256=digest("wide"))}) == {}


def test_hosts_may_differ_but_not_the_workers_on_each() -> None:
    spread = [make_workers(1, host=host)[0].model_copy(update={"worker": n}) for n, host in enumerate("ab")]
    together, elsewhere = header(count=2), header("horovod", 2, workers=make_workers(2, host="c"))
    assert refusals({"a": together, "b": elsewhere}) == {}
    refused = refusals({"a": together, "b": header("horovod", 2, workers=spread)})
    assert refused == {"b": "workers on each host is 1, 1, but 2 in a"}
    assert any("different hosts" in remark for remark in remarks([together, elsewhere]))


def test_workers_that_share_a_core_are_refused(tmp_path: Path) -> None:
    workers = [worker.model_copy(update={"cores": [4]}) for worker in make_workers(2)]
    write_run(tmp_path, "horovod", 2, header={"workers": workers})
    study = load_study(tmp_path)
    assert study.runs.empty
    assert list(study.left_out["reason"]) == ["workers 0 and 1 share core 4 of host node1"]


def test_equal_core_numbers_of_two_hosts_are_not_shared() -> None:
    workers = [make_workers(1, host=host)[0] for host in ("a", "b")]
    assert sharing(header(count=2, workers=workers)) == ""


def test_workers_that_share_a_device_are_refused() -> None:
    gpus = [worker.model_copy(update={"device_uuid": "GPU-7"}) for worker in make_workers(2, device="V100")]
    run = header(count=2, workers=gpus)
    assert refusals({"a": run, "b": header()}) == {"a": "workers 0 and 1 share device GPU-7"}


def test_gpu_workers_that_share_cores_are_remarked_upon() -> None:
    gpus = [worker.model_copy(update={"cores": [0, 1]}) for worker in make_workers(2, device="V100")]
    run = header(count=2, workers=gpus)
    assert refusals({"a": run}) == {}
    assert any("same cores" in remark for remark in remarks([run]))


def test_uncommitted_changes_are_remarked_upon() -> None:
    assert remarks([header()]) == ()
    assert "uncommitted changes" in remarks([header(dirty=True)])[0]
