"""Speed of an environment on this machine: `python -m parallel_envs.bench`, or `parallel-envs bench`.

    cli ──▶ step  machine                   what to measure; `cli` reports it
              │
           measure ──socket──▶ host: a process for each runner ──▶ the runner's workers
                                 │
                              runners       one class per way of stepping

A figure is meaningful only beside another one, because the speed of a machine changes from minute to minute. All
runners are open at the same time, each in a process of its own, so that their imports, threads and forks cannot touch
each other. They run in turns: short warm slices, in an order that rotates from round to round. The reports hold
medians, quartiles and ratios of one run.

One environment step is one call of an environment's `step`. A row of a vector step in which the environment was only
reset does not count.

Importing this package imports nothing: workers that build an environment of `bench.envs` load no typer and no rich.
Comparisons with other libraries are in the folder `benchmarks` of a checkout: `python -m benchmarks`.
"""
