"""The console of a program: no text of others steers the terminal that shows it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from unet_scaling.base.texts import clean


class CleanConsole(Console):
    """A console that leaves out control characters of what it is given; its own colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return what is shown, all of which comes through here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment("\n".join(map(clean, segment.text.split("\n"))), segment.style)
