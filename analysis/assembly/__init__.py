"""All that a report says of a study, computed in order, whatever kind of study it is."""
