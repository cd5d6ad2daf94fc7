"""Print a profile as tables and sentences."""

import sys
from collections.abc import Iterator

from rich import box
from rich.table import Table

from unet_scaling.profile.findings import as_milliseconds, counted
from unet_scaling.profile.results import Conclusions, Profile, Samples
from unet_scaling.profile.stages import STAGES
from unet_scaling.study.console import CleanConsole

# Columns of the tables where the output is no terminal.
TABLES_WIDTH_CHARACTERS = 130


def print_profile(profile: Profile) -> None:
    """Print stages, loader processes, steps, notes and warnings, with the advice last."""
    width = None if sys.stdout.isatty() else TABLES_WIDTH_CHARACTERS
    console = CleanConsole(highlight=False, soft_wrap=True, width=width)
    console.print(_heading(profile))
    for table in (_stage_table(profile), _throughput_table(profile), _step_table(profile)):
        console.print(table)
    for line in _sentences(profile):
        console.print(line, markup=False)


def _heading(profile: Profile) -> str:
    host = profile.host
    data = profile.config.data
    return (
        f"{profile.config.study}: {counted(profile.batch, 'image')} a batch, {data.image_width} x"
        f" {data.image_height} pixels, data.loading = '{profile.loading}'\n"
        f"{counted(host.cores, 'core')} here, {counted(host.workers_per_host, 'worker')} per host,"
        f" {counted(host.cores_per_worker, 'core')} for each\n"
    )


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _stage_table(profile: Profile) -> Table:
    title = "ms per image in one process, files in the page cache: median (5 % to 95 % of samples)"
    table = _table(title, "stage", *profile.stages)
    for stage in STAGES:
        if any(stage in times for times in profile.stages.values()):
            table.add_row(stage, *(_in_milliseconds(times.get(stage)) for times in profile.stages.values()))
    sums = [profile.seconds_per_image(loading) for loading in profile.stages]
    table.add_row("sum of medians", *(f"{seconds * 1000:.3f}" for seconds in sums), style="bold")
    return table


def _in_milliseconds(samples: Samples | None) -> str:
    if samples is None:
        return ""
    low, median, high = (seconds * 1000 for seconds in (samples.low, samples.median, samples.high))
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def _throughput_table(profile: Profile) -> Table:
    table = _table(
        f"loader processes, data.loading = '{profile.loading}': median (5 % to 95 % of rounds)",
        "processes",
        "images/s",
        "ms per batch",
    )
    for count in profile.throughput:
        speed = count.images_per_second
        table.add_row(
            str(count.processes),
            f"{speed.median:.1f} ({speed.low:.1f} to {speed.high:.1f})",
            f"{profile.batch / speed.median * 1000:.2f}",
        )
    return table


def _step_table(profile: Profile) -> Table:
    steps = profile.steps
    prefetch = counted(steps.loader_processes, "loader process", "es")
    title = f"ms per step of one process on {steps.device}, {counted(steps.threads, 'thread')}"
    table = _table(f"{title}: median (5 % to 95 %)", "part", "ms", "share")
    for name, samples in (
        ("data wait", steps.data_wait),
        ("host to device", steps.host_to_device),
        ("forward, backward, optimizer", steps.compute),
        ("whole step, no prefetch", steps.in_line),
        (f"whole step, {prefetch}", steps.prefetched),
    ):
        table.add_row(name, _in_milliseconds(samples), f"{samples.median / steps.in_line.median:.1%}")
    return table


def _sentences(profile: Profile) -> Iterator[str]:
    for note in profile.notes:
        yield f"note: {note}"
    conclusions = profile.conclusions
    for warning in conclusions.warnings:
        yield f"warning: {warning}"
    yield (
        f"dominant stage: {conclusions.dominant_stage}, {conclusions.dominant_share:.0%} of loading an image"
        f" ({as_milliseconds(profile.seconds_per_image(profile.loading))})"
    )
    bound = "yes" if conclusions.input_bound else "no"
    yield f"input-bound: {bound}; loading is {conclusions.loading_share:.1%} of a step"
    yield _prefetch_sentence(profile.steps.loader_processes, conclusions)
    yield f"recommended data.loader_workers with data.loading = 'decode': {conclusions.loader_processes}"
    yield f"advice: {conclusions.advice}"


def _prefetch_sentence(loader_processes: int, conclusions: Conclusions) -> str:
    noise = " (more than can be hidden: noise)"
    return (
        f"loader processes with cores of their own can hide {conclusions.hideable_share:.1%} of a step;"
        f" {loader_processes} on these cores hid {conclusions.hidden_share:.1%}"
        f"{noise if conclusions.hidden_share > conclusions.hideable_share else ''}"
    )
