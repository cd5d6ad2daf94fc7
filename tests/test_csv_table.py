"""`report --csv`: tables of other people in their dialects, what they cannot tell, and what is no table."""

import math
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.csv_table import load_csv
from analysis.points import summarise
from unet_scaling.study.errors import UserError

EUROPEAN = "\ufeff# of a benchmark\nGPUs;Zeit;Time [s];Framework;Accuracy\n" + "".join(
    f"{workers};x;{seconds:.1f};{framework};0,9\n".replace(".", ",")
    for framework, alone in (("DDP", 100.0), ("Horovod", 110.0))
    for workers, share in ((1, 1.0), (3, 0.36), (6, 0.2))
    for seconds in (alone * share, alone * share * 1.01, alone * share * 0.99)
)


def table(folder: Path, text: str) -> str:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def speedups(source: str, **options: bool) -> dict[tuple[str, int], float]:
    points = summarise(load_csv(source, {}, **options))
    return {(row["framework"], row["workers"]): round(row["speedup"], 3) for row in points.to_dict("records")}


def test_a_european_table_gives_the_report_of_both_frameworks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--csv", table(tmp_path, EUROPEAN), "--output", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Undecided: no provenance; measured ")
    assert "3 repeats suggest that native DDP is 10 % faster than Horovod" in printed
    assert "caution: no provenance" in printed
    assert "so nothing says whether they may be compared" in " ".join(printed.split())
    assert (tmp_path / "report" / "report.html").exists()


def test_seconds_are_of_the_same_work_or_of_each_workers_share(tmp_path: Path) -> None:
    source = table(tmp_path, "n,seconds\n1,10\n4,4\n")
    assert speedups(source)["pytorch_native", 4] == 2.5
    assert speedups(source, weak=True)["pytorch_native", 4] == 10.0


@pytest.mark.parametrize(
    ("text", "throughput"),
    [
        ("ranks\tthroughput\n1\t10\n\n2\t18\n", "throughput"),
        ("| N | img/s |\n|---|---|\n| 1 | 10 |\n| 2 | 18 |\n", "img/s"),
        ("#x\nworld_size, samples/second\n1, 10\n2, 18\n", "samples/second"),
    ],
)
def test_dialects_and_names_of_columns(text: str, throughput: str, tmp_path: Path) -> None:
    study = load_csv(table(tmp_path, text), {"throughput": throughput})
    assert summarise(study)["speedup"].tolist() == [1.0, 1.8]


def test_without_one_worker_no_speedup_is_known(tmp_path: Path) -> None:
    found = speedups(table(tmp_path, "workers,throughput\n2,20\n5,45\n"))
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 lines; a header and at least one row"),
        ("workers\n1\n", ":1: no column ends"),
        ("workers,loss\n1,2\n", "no column of seconds among workers, loss; name it: --column seconds=NAME"),
        ("workers,seconds\n1,2,3\n", ":2: 3 cells, the header has 2"),
        ("workers,seconds\n1.5,2\n", r":2: workers is '1.5'; a whole number"),
        ("workers,seconds\n1,two\n", ":2: seconds is 'two'; a number is needed"),
        ("workers,seconds\n1,nan\n", ":2: seconds is 'nan'; a number"),
        ("workers,seconds\n1,0\n", ":2: seconds is 0; it must be above 0"),
        (
            "workers,seconds,trial\n1,2,a\n1,3,a\n",
            ":3: repeat 'a' stands twice; give each of a point another",
        ),
        ("workers,gpus,seconds\n1,1,2\n", "workers and gpus may both be workers; say which"),
        ("workers,seconds,framework\n1,2,DeepSpeed\n", ":2: framework is 'DeepSpeed'; known are DDP"),
    ],
)
def test_what_is_no_table_is_refused_with_line_and_cure(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_csv(table(tmp_path, text), {})


def test_launches_of_a_repeat_are_those_of_its_name(tmp_path: Path) -> None:
    text = "n,seconds,framework,trial\n1,1,DDP,a\n1,2,DDP,b\n1,20,hvd,b\n1,10,hvd,a\n"
    runs = load_csv(table(tmp_path, text), {}).runs
    assert dict(zip(runs["seconds_per_epoch"], runs["repeat"], strict=True)) == {1: 1, 2: 2, 20: 2, 10: 1}


def test_a_comma_between_digits_is_decimal_unless_commas_separate_cells(tmp_path: Path) -> None:
    for text, seconds in (('n,seconds\n1,"1,024"\n', 1024.0), ("n;seconds\n1;1,024\n", 1.024)):
        assert load_csv(table(tmp_path, text), {}).runs["seconds_per_epoch"].tolist() == [seconds]


def test_options_of_a_table_are_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--column and --weak: only with --csv"):
        main([str(tmp_path), "--weak"])
    with pytest.raises(UserError, match=r"--column time=\.\.\.: no such column; allowed: workers, seconds"):
        load_csv(table(tmp_path, "n,seconds\n1,2\n"), {"time": "seconds"})
    with pytest.raises(UserError, match="--csv nosuch: No such file"):
        load_csv("nosuch", {})
