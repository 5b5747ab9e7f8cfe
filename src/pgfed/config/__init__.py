"""The experiment file: its tables, their checks, the settings of methods."""
