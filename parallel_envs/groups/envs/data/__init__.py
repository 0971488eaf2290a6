"""The included data files, and the program that made them (`generate`); no env imports it."""
