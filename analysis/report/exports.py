"""The files of a report for other programs and for papers: JSON, LaTeX and BibTeX."""

from analysis.report.assemble import Report
from analysis.report.citation import citation_bibtex
from analysis.report.latex import summary_latex
from analysis.report.summary_json import summary_json


def export_files(report: Report) -> dict[str, bytes]:
    """Return the contents of summary.json, summary.tex and citation.bib, by file name."""
    return {
        "summary.json": summary_json(report).encode(),
        "summary.tex": summary_latex(report).encode(),
        "citation.bib": citation_bibtex(report.study.subject).encode(),
    }
