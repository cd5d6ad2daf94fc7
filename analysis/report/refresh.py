"""Let the page load itself again, as long as its report is being watched."""

import re

REFRESH = re.compile(rb'<meta http-equiv="refresh" content="\d+">\n')


def with_refresh(page: bytes, seconds: int) -> bytes:
    """Return the page with a line that lets the browser load it again after so many seconds."""
    return page.replace(b"<head>\n", f'<head>\n<meta http-equiv="refresh" content="{seconds}">\n'.encode(), 1)


def without_refresh(page: bytes) -> bytes:
    """Return the page without that line."""
    return REFRESH.sub(b"", page)
