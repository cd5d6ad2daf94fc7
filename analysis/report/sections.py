"""The parts of the page that give the evidence, in reading order."""

from collections.abc import Iterator

from analysis.report.assemble import Report
from analysis.report.budget_sections import budget_section
from analysis.report.figure_files import FigureFiles
from analysis.report.learning_sections import cost_section, iou_section, loss_section
from analysis.report.speed_sections import against_section, points_section, prediction_section
from analysis.report.view import Section, grid, mark, text
from analysis.text import count, sentence

FEW = 12


def sections(report: Report, figures: FigureFiles) -> Iterator[Section]:
    """The evidence in reading order."""
    yield points_section(report, figures)
    yield against_section(report)
    yield budget_section(report, figures)
    yield iou_section(report, figures)
    yield loss_section(report, figures)
    yield cost_section(report, figures)
    yield prediction_section(report, figures)
    yield _fairness(report)
    if len(report.study.left_out):
        yield _left_out(report)
    if report.notes:
        yield _notes(report)


def _fairness(report: Report) -> Section:
    columns = [text("should be so", "check"), mark("found", "mark"), text("fact", "fact")]
    return Section(
        "fairness",
        "How fair is this comparison?",
        "Runs that differ in what must agree are refused and listed below. This is what the records say of "
        "the runs that are used.",
        grids=(grid("fairness", "What is equal in the runs compared", report.fairness, columns),),
    )


def _left_out(report: Report) -> Section:
    left_out = report.study.left_out
    columns = [text("run", "run"), text("state", "state"), text("reason", "reason")]
    caption = f"{count(len(left_out), 'run')} left out"
    table = grid("left-out", caption, left_out, columns, "left_out.csv")
    lead = "Nothing is dropped in silence: no number of this report uses these runs."
    return Section(
        "left-out",
        f"Left out: {count(len(left_out), 'run')}",
        lead,
        grids=(table,),
        folded=len(left_out) > FEW,
    )


def _notes(report: Report) -> Section:
    lead = "What to know before you use a number of this page."
    notes = tuple(sentence(note) for note in report.notes)
    return Section("notes", "Notes", lead, remarks=notes, folded=len(notes) > FEW)
