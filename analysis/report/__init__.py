"""Everything that is written and printed of a study."""
