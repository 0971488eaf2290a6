"""The environments that come with `EnvStateManager`, by `env_type`.

| env_type | an episode |
|---|---|
| `bandit` | two arms with telling names, one of which pays better |
| `frozen_lake` | Gymnasium's FrozenLake on a random map that can be crossed |
| `sokoban` | a random room of boxes that can be solved |
| `countdown` | numbers to be combined into a target |
| `metamathqa` | a question from a file, and a limited number of answers |
| `webshop` | a product to be searched, chosen and bought |

The module or package of an `env_type` has its name, with an env and its config, `SokobanEnv` and `SokobanConfig`. The
envs have the methods of `parallel_envs.groups.interface`: everything random in an episode follows from the seed and the
mode of `reset` alone. A process reads each data file once.

An invalid action changes nothing but the number of steps: the step's info has `action_is_valid` False. Every info has
`success`, `action_is_valid` and `action_is_effective`. A step after the end of an episode is a RuntimeError.
"""
