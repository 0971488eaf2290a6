"""Tests of the meta-RL learner."""
