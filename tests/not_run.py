"""Print at the end of a test session which groups of tests it left out, and the command that runs them."""

from collections import Counter
from collections.abc import Sequence

import pytest

GROUPS = {
    "soak": "tests under drawn faults on a virtual cluster",
    "verify": "tests of faults and accounting on a virtual cluster",
    "timing": "tests that compare measured times",
    "slow": "tests that start training processes or a cluster",
}
COMMANDS = {"soak": "make soak", "verify": "make verify", "timing": "make verify", "slow": "make test"}
NO_GPU = "no test runs on a GPU; environment/check.py verifies the build there, a study the rest"
KEY = "tests_not_run"


class NotRun:
    """A pytest plugin that counts deselected tests; the processes of pytest-xdist all collect the same."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._deselected: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            groups = [group for group in GROUPS if item.get_closest_marker(group)]
            self._deselected.update(groups[:1])

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[KEY] = dict(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        counted = getattr(node, "workeroutput", {}).get(KEY)
        if counted is not None:
            self._deselected = Counter(counted)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("not run")
        for line in lines(self._deselected, len(terminalreporter.stats.get("skipped", []))):
            terminalreporter.line(line)


def lines(deselected: Counter[str], skipped: int) -> list[str]:
    """Return one line for each group that was left out, with its command."""
    left_out = [
        f"{deselected[group]} {GROUPS[group]}: `{COMMANDS[group]}` runs them"
        for group in GROUPS
        if deselected[group]
    ]
    if skipped:
        left_out.append(f"{skipped} skipped tests: the reason of each stands below (SKIPPED)")
    return [*left_out, NO_GPU]
