"""The figures of a report: one module each, and `catalogue`, which lists them in reading order.

A figure module has `TITLE`, `SECTION`, `draw`, `missing`, `caption` and `alternative`, as
`catalogue.FigureModule` describes them. What figures share is in `drawing`. Nothing outside this folder
imports matplotlib.
"""
