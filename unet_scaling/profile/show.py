"""A profile as tables for people."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from unet_scaling.profile.findings import counted, milliseconds
from unet_scaling.profile.results import LoaderCount, Loading, Profile, Spread, Stage
from unet_scaling.profile.stages import STAGES


def show(profile: Profile, console: Console) -> None:
    """Print everything: stages, loader processes, steps, notes, warnings, and the advice last."""
    host = profile.host
    console.print(
        f"{profile.study}: {counted(profile.batch, 'image')} a batch, {profile.image_width} x"
        f" {profile.image_height} pixels, data.loading = '{profile.loading}'\n"
        f"{counted(host.cores, 'core')} here, {counted(host.workers_per_host, 'worker')} per host,"
        f" {counted(host.cores_per_worker, 'core')} for each\n"
    )
    console.print(_stage_table(profile))
    console.print(_loader_table(profile))
    console.print(_step_table(profile))
    for kind, texts in (("note", profile.notes), ("warning", profile.verdict.warnings)):
        for text in texts:
            console.print(f"{kind}: {text}", markup=False)
    for line in _conclusions(profile):
        console.print(line, markup=False)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _stage_table(profile: Profile) -> Table:
    columns = [
        (f"{loading.loading}, {name}", stages)
        for loading in profile.loadings
        for name, stages in (("warm", loading.warm), ("cold", loading.cold))
        if stages is not None
    ]
    title = "ms per image in one process, 0 loader processes: median (5 % to 95 % of samples)"
    table = _table(title, "stage", *(name for name, _ in columns))
    for stage in STAGES:
        cells = [_cell(stages, stage) for _, stages in columns]
        if any(cells):
            table.add_row(stage, *cells)
    table.add_row("sum of medians", *(_sum(stages) for _, stages in columns), style="bold")
    table.add_row("undivided call", *_undivided(profile.loadings))
    return table


def _cell(stages: list[Stage], name: str) -> str:
    found = [stage.seconds_per_image for stage in stages if stage.stage == name]
    return _in_milliseconds(found[0]) if found else ""


def _sum(stages: list[Stage]) -> str:
    return f"{sum(stage.seconds_per_image.median for stage in stages) * 1000:.3f}"


def _undivided(loadings: list[Loading]) -> Iterator[str]:
    for loading in loadings:
        yield _in_milliseconds(loading.whole)
        if loading.cold is not None:
            yield ""


def _in_milliseconds(spread: Spread) -> str:
    low, middle, high = (value * 1000 for value in (spread.low, spread.median, spread.high))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _loader_table(profile: Profile) -> Table:
    table = _table(
        f"loader processes, data.loading = '{profile.loading}': median (lowest to highest round)",
        "processes",
        "images/s",
        "ms per batch",
        "involuntary switches per second and process",
    )
    for count in profile.loader_counts:
        speed = count.images_per_second
        table.add_row(
            str(count.processes),
            f"{speed.median:.1f} ({speed.low:.1f} to {speed.high:.1f})",
            f"{profile.batch / speed.median * 1000:.2f}",
            _rate(count),
        )
    return table


def _rate(count: LoaderCount) -> str:
    return "not known" if count.switches_per_second is None else f"{count.switches_per_second:.1f}"


def _step_table(profile: Profile) -> Table:
    steps = profile.steps
    images = counted(steps.measured_batch, "image")
    scaled = "" if steps.batch == steps.measured_batch else f", scaled up from {images}"
    title = f"ms per step of one plain process on {steps.device}, {counted(steps.threads, 'thread')}{scaled}:"
    table = _table(f"{title} median (5 % to 95 %)", "part", "ms", "share")
    whole = steps.in_line.median
    for name, spread in (
        ("gather", steps.gather),
        ("to device", steps.to_device),
        ("forward, backward, Adam", steps.compute),
        ("whole step, loading in line", steps.in_line),
        (f"whole step, {counted(steps.loader_processes, 'loader process', 'es')} ahead", steps.overlapped),
    ):
        table.add_row(name, _in_milliseconds(spread), f"{spread.median / whole:.1%}")
    return table


def _conclusions(profile: Profile) -> Iterator[str]:
    verdict, steps = profile.verdict, profile.steps
    yield (
        f"dominant stage: {verdict.dominant_stage}, {verdict.dominant_share:.0%} of loading an image"
        f" ({milliseconds(profile.chosen().median_sum())})"
    )
    bound = "yes" if verdict.input_bound else "no"
    yield f"input-bound: {bound}; loading is {verdict.loading_share:.1%} of a step"
    hidden = f"{counted(steps.loader_processes, 'loader process', 'es')} on these cores hid"
    if verdict.hidden_share > verdict.hideable_share:
        hidden = "the two kinds of step differ by more, which is noise:"
    yield (
        f"a loader with cores of its own can hide {verdict.hideable_share:.1%} of a step;"
        f" {hidden} {verdict.hidden_share:.1%}"
    )
    yield (
        f"sensible loader processes per worker: {verdict.loader_processes} (for a training with a DataLoader;"
        " this project's loads in line)"
    )
    yield f"advice: {verdict.advice}"
