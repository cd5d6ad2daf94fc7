"""`report --csv`: tables of other people in their dialects, what they cannot tell, and what is no table."""

import math
import sys
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.numbers.points import summarise
from analysis.tables_of_others.csv_table import Work, load_csv
from unet_scaling.base.errors import UserError

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


def speedups(source: str, work: Work = "") -> dict[tuple[str, int], float]:
    points = summarise(load_csv(source, {}, work))
    return {(row["framework"], row["workers"]): round(row["speedup"], 3) for row in points.to_dict("records")}


def test_a_european_table_gives_the_report_of_both_frameworks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--csv", table(tmp_path, EUROPEAN), "--output", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Undecided: no provenance\n  Measured ")
    assert "3 repeats suggest that native DDP is 10 % faster than Horovod" in printed
    assert "so nothing says whether they may be compared" in " ".join(printed.split())
    assert "columns not read: Zeit" in printed
    assert (tmp_path / "report" / "report.html").exists()


def test_seconds_are_of_the_same_work_or_of_each_workers_share(tmp_path: Path) -> None:
    source = table(tmp_path, "n,seconds\n1,10\n4,4\n")
    assert speedups(source)["pytorch_native", 4] == 2.5
    assert speedups(source, "weak")["pytorch_native", 4] == 10.0


@pytest.mark.parametrize(
    "text",
    [
        "ranks\tthroughput\n1\t10\n\n2\t18\n",
        "| N | img/s |\n|---|---|\n| 1 | 10 |\n| 2 | 18 |\n",
        "#x\nworld_size, imagesPerSecond\n1, 10\n2, 18\n",
        "n,images/sec,GPU hours\n1,10,3\n2,18,4\n",
        "n,samples/s\n1,10\n2,18\n",
        "n,it/s\n1,1e1\n2,1.8E+1\n",
        "# of a benchmark\n# gpus,examples per sec\n1.000e+00,1.000e+01\n2.000e+00,1.800e+01\n",
        'n,img/s\n1,"1,000.0"\n2,"1,800.0"\n',
        "n;img/s\n1;1.000,0\n2;1.800\n",
        "n,img/s\n1,10\n2,18.000\n",
        "n;img/s\n1;1,25\n2;2,250\n",
        "n;img/s\n1;1.250\n2;2.250\n",
        "# note a,b,c\nworkers,img/s,2024\n1,10,5\n2,18,6\n",
        '# GPUs,img/s\n"1","10"\n"2","18"\n',
        "n,throughput (img/s/GPU)\n1,10\n2,9\n",
        "n,img/s/GPU\n1,10\n2,9\n",
        "n,images/sec/GPUs\n1,10\n2,9\n",
        "n,images/s per GPU\n1,10\n2,9\n",
        "n,throughput per worker\n1,10\n2,9\n",
        "# Results\n\nWe saw:\n\n| N | img/s |\n|--:|:--|\n| 1 | 10 |\n| 2 | 18 |\n\nIt, well, scales.\n",
        "N | img/s\n---|---\n1 | 10\n2 | 18\nand more\n",
        " n | img/s\n---+-------\n 1 |  10\n 2 |  18\n(2 rows)\n",
        "GPUs   images / s\n   1           10\n   2           18\n",
        "  n img/s\n  1 10\n  2 18\n",
        "n    img/s\n---  -----\n1    10\n2    18\n",
        "n,img/s\n1,10 ± 0.2\n2,18.0 +/- 1\n",
    ],
)
def test_dialects_and_names_of_columns(text: str, tmp_path: Path) -> None:
    title = "throughput per worker"
    study = load_csv(table(tmp_path, text), {"throughput": title} if title in text else {})
    assert summarise(study)["speedup"].tolist() == [1.0, 1.8]


@pytest.mark.parametrize(
    ("title", "seconds"),
    [
        ("time [us]", 5e-6),
        ("time [\u00b5s]", 5e-6),
        ("time [\u03bcs]", 5e-6),
        ("time [ns per step]", 5e-9),
        ("step_time_ms", 5e-3),
        ("time (min)", 300.0),
        ("elapsed (hours)", 18000.0),
    ],
)
def test_the_unit_in_a_title_counts(title: str, seconds: float, tmp_path: Path) -> None:
    runs = load_csv(table(tmp_path, f"n,{title}\n1,5\n"), {}).runs
    assert runs["seconds_per_epoch"].tolist() == pytest.approx([seconds])


@pytest.mark.parametrize(
    ("title", "cells", "seconds"),
    [
        ("time", ("12h", "90 min"), (43200.0, 5400.0)),
        ("time [h]", ("12 h", "90min"), (43200.0, 5400.0)),
        ("elapsed", ("00:12:31", "1-00:00:02"), (751.0, 86402.0)),
        ("time", ("1 min 30 s", "1m 30s"), None),
        ("time", ("1.5 s ± 0.1 s", "700 ms"), (1.5, 0.7)),
        ("time", ("123.4 ns", "61.75 ns"), (123.4e-9, 61.75e-9)),
        ("time", ("12:31", "6:20"), None),
        ("time", ("12 h", "6"), None),
        ("time", ("12 parsec", "6 parsec"), None),
    ],
)
def test_a_time_may_have_a_unit_of_its_own_or_be_that_of_a_clock(
    title: str, cells: tuple[str, str], seconds: tuple[float, float] | None, tmp_path: Path
) -> None:
    source = table(tmp_path, f"n,{title}\n1,{cells[0]}\n2,{cells[1]}\n")
    if seconds is None:
        with pytest.raises(UserError, match=r"write all alike|Write all three, as 0:12:31"):
            load_csv(source, {}, "of-all")
    else:
        found = load_csv(source, {}, "of-all").runs["seconds_per_epoch"]
        assert found.tolist() == pytest.approx(seconds)


def test_steps_grow_with_the_workers_where_told(tmp_path: Path) -> None:
    source = table(tmp_path, "n,speed (batches/s)\n1,10\n4,9\n")
    assert speedups(source, "of-all")["pytorch_native", 4] == 0.9
    assert speedups(source, "weak")["pytorch_native", 4] == 3.6


@pytest.mark.parametrize("text", ["accuracy [%]\n1,2,95.5", "accuracy\n1,2,95.5 %", "accuracy\n1,2,.955"])
def test_a_score_is_a_share(text: str, tmp_path: Path) -> None:
    study = load_csv(table(tmp_path, f"n,seconds,{text}\n2,1,\n"), {})
    assert study.evaluations["iou"].tolist() == [0.955]
    assert study.score.name == "accuracy"


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
        ("workers,seconds\n1.5,2\n", ":2: workers is '1.5'; a whole number"),
        ("workers,seconds\n1,two\n", ":2: seconds is 'two'; a number is needed"),
        ("workers,seconds\n1,nan\n", ":2: seconds is 'nan'; a number"),
        ("workers,seconds\n1,0\n", ":2: seconds is '0'; it must be 1e-12 or more"),
        ("workers,seconds,trial\n1,2,a\n1,3,a\n", ":3: repeat is 'a'; it stands twice; give each of a point"),
        ("workers,seconds,trial\n1,2,a\n1,3,\n", ":3: repeat is ''; others have a name; name each launch"),
        ("workers,gpus,seconds\n1,1,2\n", "workers and gpus may both be workers; say which"),
        ("workers,seconds,framework\n1,2,DeepSpeed\n", ":2: framework is 'DeepSpeed'; known are DDP"),
        ("|n|img/s|\n|1|998|\n|2|1,890|\n", ":3: throughput is '1,890'; 1890 or 1.89. Write no marks of th"),
        ("n\timg/s\n1\t998\n2\t1.890\n", ":3: throughput is '1.890'; 1.89 or 1890"),
        ("n,seconds\n1,1.234.567\n", ":2: seconds is '1.234.567'; a number"),
        ("n;img/s\n1;100\n2;1 800\n", ":3: throughput is '1 800'; a number is needed"),
        ("n;seconds\n1;10,25\n2;1,890.5\n", ":2: seconds is '10,25'; other cells have a decimal dot"),
        ("n,seconds\n1,1_0\n", ":2: seconds is '1_0'; a number"),
        ("n,seconds\n1,\u0661\u0662\n", ":2: seconds is '\u0661\u0662'; a number"),
        ("n,seconds\n1,1e13\n", ":2: seconds is '1e13'; a number up to"),
        (
            "n,seconds,method\n1,1,DDP 1.13\n1,1,DDP 2.0\n",
            ":3: framework is 'DDP 2.0'; 'DDP 1.13' above is the same",
        ),
        ("n,time ms [s]\n1,1\n", ":1: 'time ms .s.' is no seconds with 'ms' in it; give wall time, in one"),
        ("n,time (days)\n1,1\n", "no seconds with 'days' in it"),
        ("n,time (GPU-hours)\n1,1\n", "no seconds with 'gpu' in it"),
        ("n,time (node hours)\n1,1\n", "no seconds with 'node' in it"),
        ("n,runtime (steps/s)\n1,1\n", "no seconds with 's' in it"),
        ("n,time (speedup)\n1,1\n", "no seconds with 'speedup' in it"),
        ("n,time_min,time_max\n1,1,2\n", "no column of seconds among n, time_min"),
        (
            "n,throughput (img/s/node)\n1,1\n",
            "with 'node' in it; of all workers it is img/s",
        ),
        ("n,speed (ms)\n1,1\n", "no throughput with 'ms' in it"),
        ("n,throughput (each)\n1,1\n", "no throughput with 'each' in it"),
        ("GPUs (per node),time\n1,1\n", ":1: 'GPUs .per node.' is not of all workers; give their number"),
        ("n,seconds,accuracy\n1,2,95.5\n", ":2: score is '95.5'; 0 to 1 is needed, or %"),
        ("n,time,time\n1,2,3\n", "time and time may both be seconds; rename one"),
    ],
)
def test_what_is_no_table_is_refused_with_line_and_cure(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_csv(table(tmp_path, text), {})


def test_launches_of_a_repeat_are_those_of_its_name(tmp_path: Path) -> None:
    text = "n,seconds,framework,trial\n1,1,DDP,a\n1,2,DDP,b\n1,20,hvd,b\n1,10,hvd,a\n"
    runs = load_csv(table(tmp_path, text), {}).runs
    assert dict(zip(runs["seconds_per_epoch"], runs["repeat"], strict=True)) == {1: 1, 2: 2, 20: 2, 10: 1}


def launches(*rows: str, repeats: int = 2) -> str:
    """Rows of 1, 2, 4 workers, each value of a further column `repeats` times: "16" or "16 at 4"."""
    lines = []
    for count in (1, 2, 4):
        for row in rows:
            value, _, only = row.partition(" at ")
            for repeat in range(repeats if only in ("", str(count)) else 0):
                lines.append(f"{count},{100 * count + repeat},{value.replace('REPEAT', str(repeat))}\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("title", "rows", "refused"),
    [
        (
            "cluster",
            ["mahti", "puhti"],
            "'cluster': mahti, puhti; read one by --where 'cluster=mahti', or all as",
        ),
        ("batch", ["16", "32"], "differ in 'batch': 16, 32"),
        ("batch", ["16", "32 at 4"], "differ in 'batch': 16, 32"),
        ("lr", ["0.1", "0.01"], "differ in 'lr': 0.1, 0.01"),
        ("batch", ["16"], ""),
        ("seed", ["REPEAT"], ""),
        ("memory [GB]", ["3.1REPEAT at 1", "3.2REPEAT at 2", "3.3REPEAT at 4"], ""),
        ("host", ["a at 1", "b at 2", "c at 4"], ""),
    ],
)
def test_rows_that_a_column_makes_unlike_are_no_repeats(
    title: str, rows: list[str], refused: str, tmp_path: Path
) -> None:
    source = table(tmp_path, f"n,img/s,{title}\n{launches(*rows)}")
    if not refused:
        assert set(summarise(load_csv(source, {}))["repeats"]) >= {2}
        return
    with pytest.raises(UserError, match=refused):
        load_csv(source, {})
    value = rows[0]
    assert summarise(load_csv(source, {}, where={title: value}))["repeats"].tolist() == [2, 2, 2]
    study = load_csv(source, {}, where={title: "*"})
    assert len(study.runs) == launches(*rows).count("\n")
    assert f"read where {title} is *" in study.notes


def test_a_column_that_tells_the_arms_apart_is_named(tmp_path: Path) -> None:
    text = "n,img/s,framework,batch\n" + "".join(
        f"{count},{100 * count},{framework}\n" for count in (1, 2) for framework in ("DDP,16", "hvd,32")
    )
    assert (
        "batch, which is not read: 16 in native DDP, 32 in Horovod"
        in load_csv(table(tmp_path, text), {}).notes
    )


@pytest.mark.parametrize(
    ("title", "numbers", "asked", "work", "speedup"),
    [
        ("img/s", (100, 99, 98, 97), "--per-gpu where it is of each worker, or --of-all", "per-gpu", 7.76),
        ("img/s", (100, 95, 88, 70), "is no faster on 8 workers than on 1", "of-all", 0.7),
        ("seconds", (10, 10, 10.1, 10), "--weak where each has its own share, or --of-all", "weak", 8.0),
    ],
)  # fmt: skip
def test_numbers_that_do_not_grow_are_asked_for(
    title: str, numbers: tuple[float, ...], asked: str, work: Work, speedup: float, tmp_path: Path
) -> None:
    rows = "".join(f"{count},{number}\n" for count, number in zip((1, 2, 4, 8), numbers, strict=True))
    source = table(tmp_path, f"n,{title}\n{rows}")
    with pytest.raises(UserError, match=asked):
        load_csv(source, {})
    assert speedups(source, work)["pytorch_native", 8] == speedup
    assert main(["--csv", source, f"--{work}", "--output", str(tmp_path / "report")]) == 0


def test_options_of_a_table_are_refused_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--column, --where, --weak, --per-gpu and --of-all: only with --csv"):
        main([str(tmp_path), "--weak"])
    with pytest.raises(UserError, match=r"--column time=\.\.\.: no such column; allowed: workers, seconds"):
        load_csv(table(tmp_path, "n,seconds\n1,2\n"), {"time": "seconds"})
    with pytest.raises(UserError, match="only one of them is read"):
        load_csv(table(tmp_path, "n,a,b\n1,2,3\n"), {"seconds": "a", "throughput": "b"})
    with pytest.raises(UserError, match="--weak changes nothing of 'img/s'; leave it out"):
        load_csv(table(tmp_path, "n,img/s\n1,2\n"), {}, "weak")
    with pytest.raises(UserError, match="--csv nosuch: No such file"):
        load_csv("nosuch", {})
    with (tmp_path / "closed").open("w") as unreadable:
        monkeypatch.setattr(sys, "stdin", unreadable)
        with pytest.raises(UserError, match="--csv -: standard input is closed"):
            load_csv("-", {})
