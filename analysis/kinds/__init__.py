"""What a report says of a study, by what kind of study it is."""
