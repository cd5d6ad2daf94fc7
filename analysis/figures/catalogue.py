"""All figures of a report in reading order: a new figure is a new module and its name here."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.style import STYLE
