"""Commands and code that this package promises to run, each in a test that quotes it."""
