"""Reports on runs: one HTML page, tables for papers and scripts, figures as files."""
