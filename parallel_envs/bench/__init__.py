"""`python -m parallel_envs.bench`: our speed beside the peers', which settings suit your environment, and a soak.

    cli ──▶ step  rollouts  zoo  policies  learners  train  suggest  startup  memory  bars  soak    a module each
                │
                ▼
     turns, driver ──socket──▶ a process of its own for each contestant ──▶ that contestant's workers
                │                        │
             measure                contestants, peers              pure arithmetic; one class per library

A figure is worth something only beside another one: the machine's speed moves from minute to minute. So all
contestants are open at the same time, each in a process of its own (no one's imports, threads or forks touch
another's), and they run in turns: short warm slices, in an order that rotates from round to round. Medians,
quartiles and ratios of one run are reported.

One environment step is one call of an environment's `step`. A row of a vector step in which the environment
was only reset is not counted (`contestants`, `peers`: each library has its own way of resetting).

What `rollouts` compares are `collectors` of the same `works`; what `bars` measures are `experiments`. `zoo` steps
environments of many agents (`zoo_envs`) by its own contestants (`zoo_contestants`): a step is one of all agents
together. `policies`, `learners` and `train` compare ways of one library, so all are open in one process
(`policy_works`, `policy_report`); `train` also rebuilds the scheme that its subject grew from (`polling_scheme`).

`soak` compares with nobody: it breaks workers and environments for as long as it is told to, and says whether every
row was right all the same. Its parts are `soak_*` and `holdings`; `soak` draws how they fit together.

Nothing is imported here: workers that build an environment of `bench.envs` stay free of typer and rich.
"""
