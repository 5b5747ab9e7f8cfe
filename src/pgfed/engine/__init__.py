"""Running a federation: rounds, cohorts, scoring, and where the clients' work is done."""
