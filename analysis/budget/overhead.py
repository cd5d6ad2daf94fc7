"""The three tables of where the time went, as report and figures take them."""

from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Overhead:
    """`budget_table`, `difference_table` and `network_table` of a study; empty where nothing was recorded."""

    budget: pd.DataFrame = field(default_factory=pd.DataFrame)
    differences: pd.DataFrame = field(default_factory=pd.DataFrame)
    network: pd.DataFrame = field(default_factory=pd.DataFrame)


NO_OVERHEAD = Overhead()
