"""Which runs may not be compared, and that the reason names the fact and both values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.facts import refusals, sharing
from analysis.findings.comparison import compare
from analysis.findings.fairness_table import fairness_checks
from analysis.findings.verdict import verdicts
from analysis.loading.load import load_study
from analysis.loading.remarks import remarks
from tests.records import digest, make_header, make_point, make_workers, write_record, write_run
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.record import RECORD_NAME, set_record_aside
from unet_scaling.study.record_lines import AttemptFacts, End, Header, Resumed, WorkerFacts

OF_TWO = " (kept: 1 of 2 runs, the first to start)"


def header(framework: Framework = "pytorch_native", count: int = 1, **changes: object) -> Header:
    return make_header(make_point(framework, count), **changes)


def with_settings(
    count: int = 1, *, environment: dict[str, str] | None = None, allocator: dict[str, str] | None = None
) -> list[WorkerFacts]:
    """Workers that have these settings beside those of all."""
    return [
        worker.model_copy(
            update={
                "environment": (worker.environment or {}) | (environment or {}),
                "allocator": (worker.allocator or {}) | (allocator or {}),
            }
        )
        for worker in make_workers(count)
    ]


def by_number(headers: Sequence[Header]) -> dict[str, Header]:
    return {str(number): each for number, each in enumerate(headers)}


def test_a_verdict_says_why_the_other_framework_has_no_usable_run(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_run(tmp_path, repeat=repeat)
        tuned = with_settings(environment={"NCCL_ALGO": "Tree"})
        write_run(tmp_path, "horovod", repeat=repeat, header={"workers": tuned})
    study = load_study(tmp_path)
    sentence = verdicts(study, compare(study))[0].sentence
    assert all(word in sentence for word in ("no usable run of Horovod", "NCCL_ALGO", "Tree", "not set"))


@pytest.mark.parametrize("formats", [(1, 4), (4, 2), (3, 4)])
def test_runs_are_compared_whatever_the_format_of_their_records(formats: tuple[int, int]) -> None:
    versions = {"python": "3.11.2", "torch": "2.12.0"}
    first = header(format=formats[0])
    second = header("horovod", format=formats[1], commit="another", versions=versions)
    refused = refusals({"first": first, "second": second})
    assert "commit: another, but 0123456789abcdef0123456789abcdef01234567 in first" in refused["second"]
    assert "version of torch: 2.12.0, but 2.13.0 in first" in refused["second"]


def test_variables_of_horovod_are_compared_among_its_runs_only() -> None:
    stall = with_settings(environment={"HOROVOD_STALL_CHECK_TIME_SECONDS": "66", "HOROVOD_CYCLE_TIME": "1"})
    tuned = with_settings(environment={"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"})
    assert refusals({"a": header(), "b": header("horovod", workers=stall)}) == {}
    assert refusals({"a": header(), "b": header("horovod", workers=tuned)}) == {}
    refused = refusals({"a": header("horovod"), "b": header("horovod", workers=tuned)})
    assert refused == {"b": f"environment HOROVOD_HIERARCHICAL_ALLREDUCE: 1, but not set in a{OF_TWO}"}


def test_knobs_may_set_variables_of_the_mpi_that_horovod_uses() -> None:
    yielding = make_point("horovod", options={"horovod": {"yield_when_idle": True}})
    workers = with_settings(environment={"OMPI_MCA_mpi_yield_when_idle": "1"})
    assert refusals({"a": header("horovod"), "b": make_header(yielding, workers=workers)}) == {}


def test_clean_runs_are_not_refused_for_the_majority_of_changed_ones() -> None:
    changed = {f"changed{n}": header(dirty=True, commit="later") for n in range(9)}
    clean = {f"clean{n}-{name}": header(name) for n in range(3) for name in FRAMEWORKS}
    refused = refusals(changed | clean)
    assert set(refused) == set(changed)
    assert refused["changed0"] == (
        "uncommitted changes: True, but False in clean0-pytorch_native and 5 more (kept: committed code)"
    )


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("odd", "others"),
    [
        ({"commit": "another"}, {}),
        ({}, {"dirty": True, "commit": "later"}),
        ({"versions": {"python": "3.11.2", "torch": "2.12.0"}}, {}),
    ],
)
def test_one_run_does_not_throw_out_all_others(
    first: bool, odd: dict[str, Any], others: dict[str, Any]
) -> None:
    runs = {f"run{n}": header(FRAMEWORKS[n % 2], **others) for n in range(9)}
    one = {"odd": header("horovod", **odd)}
    refused = refusals(one | runs if first else runs | one)
    assert set(refused) == {"odd"}
    assert " in run0 and 8 more (kept: 9 of 10 runs)" in refused["odd"]


def test_of_equally_many_runs_those_of_the_first_to_start_are_kept() -> None:
    later = {f"a{n}": header(started_utc=f"2025-02-0{n}T12:00:00Z") for n in (1, 2)}
    started = {"b1": "2025-02-03T12:00:00Z", "b2": "2025-01-31T11:00:00Z"}
    earlier = {run: header("horovod", commit="other", started_utc=begun) for run, begun in started.items()}
    refused = refusals(later | earlier)
    assert set(refused) == set(later)
    assert refused["a1"].endswith(", but other in b1 and 1 more (kept: 2 of 4 runs, the first to start)")


def attempt(number: int = 1, **changes: object) -> AttemptFacts:
    """The facts of an earlier attempt that differs from the last one in these."""
    fields = {name: getattr(header(), name) for name in AttemptFacts.model_fields}
    return AttemptFacts(**fields | {"attempt": number} | changes)


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("commit", {"commit": "another"}),
        ("SHA-256 of the data's manifest", {"manifest_sha256": digest("other images")}),
        ("cores per worker", {"workers": make_workers(1, cores_each=2)}),
        ("devices", {"workers": make_workers(1, device="NVIDIA H200")}),
        ("version of torch", {"versions": {"python": "3.11.2", "torch": "2.12.0"}}),
        ("environment NCCL_ALGO", {"workers": with_settings(environment={"NCCL_ALGO": "Tree"})}),
        ("allocator LD_PRELOAD", {"workers": with_settings(allocator={"LD_PRELOAD": "libjemalloc.so"})}),
    ],
)
def test_a_run_whose_attempts_differ_is_refused_naming_both(fact: str, change: dict[str, Any]) -> None:
    run = header(attempt=2, resumed=Resumed(epoch=1, step=0), earlier=[attempt(**change)])
    refused = refusals({"resumed": run, "other": header("horovod")})
    assert set(refused) == {"resumed"}
    assert f"{fact}: " in refused["resumed"]
    assert " in attempt 1, but " in refused["resumed"]
    assert refused["resumed"].endswith("in attempt 2")


def write_resumed(
    study: Path, earlier: dict[str, Any] | None, *, kept: bool = True, format_: int = 3
) -> None:
    """A run of format 3, resumed after its first epoch, with the record of its first attempt beside it."""
    resumed = {"attempt": 2, "resumed": Resumed(epoch=1, step=0), "format": format_}
    point = make_point()
    folder = write_run(study, end=None, header={"format": format_, **(earlier or {})})
    set_record_aside(folder)
    if not kept:
        (folder / "run.attempt1.jsonl").unlink()
    write_record(folder, point, header=resumed)


def test_an_older_resumed_run_is_refused_by_the_record_of_its_first_attempt(tmp_path: Path) -> None:
    write_resumed(tmp_path, {"workers": make_workers(1, cores_each=2), "commit": "another"})
    left_out = load_study(tmp_path).left_out.iloc[0]
    assert left_out["state"] == "refused"
    assert "commit: another in attempt 1, but 0123456789" in left_out["reason"]
    assert "cores per worker: 2 in attempt 1, but 1 in attempt 2" in left_out["reason"]


def test_a_run_resumed_on_other_hosts_is_used_and_names_them(tmp_path: Path) -> None:
    write_resumed(tmp_path, {"workers": make_workers(1, host="node7")})
    study = load_study(tmp_path)
    assert list(study.runs["hosts"]) == ["node7 node1"]
    (check,) = [check for check in fairness_checks(study) if check.check == "same machine in all attempts"]
    assert check.mark == "no"
    assert "attempt 1 on node7" in check.fact


def test_a_missing_record_of_an_earlier_attempt_is_said(tmp_path: Path) -> None:
    write_resumed(tmp_path, None, kept=False)
    study = load_study(tmp_path)
    assert study.unknown_attempts == ("pytorch_native-w01-r1",)
    assert any("run.attemptN.jsonl" in note for note in study.notes)
    (check,) = [check for check in fairness_checks(study) if check.check == "same machine in all attempts"]
    assert check.mark == "not known"


def test_an_attempt_that_trained_nothing_of_the_record_is_not_compared(tmp_path: Path) -> None:
    """The second attempt began anew: nothing of the first is in its record."""
    folder = write_run(tmp_path, end=None, header={"commit": "another"})
    set_record_aside(folder)
    write_record(folder, make_point(), header={"attempt": 2})
    assert list(load_study(tmp_path).runs["run"]) == [folder.name]


def test_an_attempt_that_died_before_its_first_checkpoint_is_not_compared(tmp_path: Path) -> None:
    write_resumed(tmp_path, None)
    folder = tmp_path / make_point().run
    middle = {"attempt": 2, "resumed": Resumed(epoch=1, step=0), "commit": "another"}
    (folder / RECORD_NAME).unlink()
    write_record(folder, make_point(), header=middle, end=End(status="stopped"))
    set_record_aside(folder)
    write_record(folder, make_point(), header={**middle, "attempt": 3, "commit": header().commit})
    study = load_study(tmp_path)
    assert [facts.attempt for facts in study.headers[folder.name].attempts()] == [1, 3]


def test_cores_may_differ_where_the_study_varies_them() -> None:
    def using(cores: int, owned: int) -> Header:
        point = make_point(options={"training": {"cores_per_worker": cores}})
        return make_header(point, workers=make_workers(1, cores_each=owned))

    assert refusals({"one": using(1, 1), "two": using(2, 2)}) == {}
    assert set(refusals({"one": using(2, 2), "two": using(2, 2), "other": using(2, 3)})) == {"other"}


def test_frameworks_may_differ_in_transport_and_in_versions_that_only_one_has() -> None:
    versions = {"python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1"}
    assert refusals({"a": header(), "b": header("horovod", versions=versions)}) == {}


def test_runs_of_one_framework_may_not_differ_in_transport() -> None:
    refused = refusals({"a": header(), "b": header(count=2, transport={"backend": "nccl"})})
    assert "transport of native DDP: backend nccl, but backend gloo in a" in refused["b"]


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
    assert refused == {"b": f"workers on each host: 1, 1, but 2 in a{OF_TWO}"}


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


def test_uncommitted_changes_are_remarked_upon() -> None:
    assert remarks(by_number([header()])) == ()
    assert "uncommitted changes" in remarks(by_number([header(dirty=True)]))[0]
