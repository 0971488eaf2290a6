"""`python -m benchmarks soak`: step a manager while faults are injected, and compare every row with a model.

Workers are killed, stopped and hung, envs raise and flood the output, the supervisor is stopped, the caller forks, and
evaluations and other programs run and break at the same time.

    planner ──due faults────────▶ leg ──calls, signals──▶ manager
                                  leg ◀──rows, workers─── manager
    model ◀──requests, faults──── leg
    model ──errors──────────────▶ leg ──counts──────────▶ tally, which gives the verdict

The model holds a replay of every env. A leg is the life of one manager. Legs run one after the other, in every flavour,
until the time is over.
"""
