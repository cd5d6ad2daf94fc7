"""The workers of a study in words: GPUs where the records name them, else workers."""

from dataclasses import dataclass

from analysis.study import Study
from analysis.text import Row, count, number, with_interval

# From so many hours on a cost reads best in this unit: its name, and how many make an hour.
UNITS_HOURS = ((2.0, "hours", 1), (2 / 60, "minutes", 60), (0.0, "seconds", 3600))


@dataclass(frozen=True)
class DeviceWords:
    """What one worker is called: "GPU" or "worker"."""

    device: str

    def of(self, workers: int) -> str:
        """Return "8 GPUs", "1 worker"."""
        return count(workers, self.device)

    def cost(self, row: Row) -> str:
        """Return what one training costs: "12.3 GPU-hours"."""
        unit, of_hour = _unit(row["worker_hours"])
        return f"{number(row['worker_hours'] * of_hour, '~3')} {self.device}-{unit}"

    def cost_with_interval(self, row: Row) -> str:
        """Return "12.3 [12.1, 12.4] GPU-hours"."""
        unit, of_hour = _unit(row["worker_hours"])
        return f"{with_interval(row, 'worker_hours', '~3', 1 / of_hour)} {self.device}-{unit}"


def device_words(study: Study) -> DeviceWords:
    """Return GPUs only where the header of every used run names one for each worker."""
    devices = [worker.device for header in study.headers.values() for worker in header.workers]
    return DeviceWords("GPU" if devices and "cpu" not in devices else "worker")


def _unit(hours: float) -> tuple[str, int]:
    return next(((name, of_hour) for least, name, of_hour in UNITS_HOURS if hours >= least), ("hours", 1))
