"""From files to the tables of a study: what each record holds, and why a run cannot be used."""
