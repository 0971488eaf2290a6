"""Benchmarks of parallel_envs beside other libraries, speed targets, and a soak test. See README.md here."""
