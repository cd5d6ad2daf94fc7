"""Pictures of a study: tables in, figures out. Nothing outside this folder draws.

`album` says which figures there are, `series.Inputs` what they are drawn from, `words` what stands beside.
"""
