"""`bench soak`: step a manager while its workers are killed, stopped and hung, its envs raise and flood the output, the
keeper is stopped, the caller forks, and evaluations and other programs run and break beside it.

    planner ──due──▶ leg ──calls, signals──▶ manager
                      │ ▲ rows, workers
          told of all │ │
                      ▼ │ wrong
                     model ──▶ a replay of every env        tally: counts and verdict

A leg is one manager's life; one follows the other, in every flavour, until the time is up.
"""
