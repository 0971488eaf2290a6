"""The environments that come with `EnvStateManager`, one module or package each.

| env_type | module | an episode |
|---|---|---|
| `bandit` | `bandit` | two arms with telling names, one of which pays better |
| `frozen_lake` | `frozen_lake` | Gymnasium's FrozenLake on a random map that can be crossed |
| `sokoban` | `sokoban` | a room of boxes that can be solved, made by playing backwards |
| `countdown` | `countdown` | numbers to be combined into a target |
| `metamathqa` | `metamathqa` | a question from a file, and as many answers as are allowed |
| `webshop` | `webshop` | a product to be searched, chosen and bought |

Each module has an env and its config, `SokobanEnv` and `SokobanConfig`, and fulfils `parallel_envs.groups.interface`:
what an episode holds follows from the seed and the mode of `reset` alone. Files with data are read once a process.

An action that says nothing the env knows changes nothing but the number of steps: the step's info has
`action_is_valid` False. Every info has `success`, `action_is_valid` and `action_is_effective`. A step after the end of
an episode is a RuntimeError.
"""
