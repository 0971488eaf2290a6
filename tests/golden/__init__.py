"""What the package computes, as numbers that stay.

`recorded.json` holds a fingerprint of every case in `cases.py`: trajectories, tasks, rollouts, updates, evaluations,
groups, errors and the names of files. `test_golden.py` computes each case again and compares. A change that alters one
of these numbers changes what users get: record the cases anew with

    python -m tests.golden

and say in CHANGELOG.md what changed and why. The command prints the names of the cases that differ.
"""
