"""The words that arguments may have, one `Literal` for each kind of choice.

    backend: Backend = "process"                          # an editor and mypy know the words
    arguments.choice("backend", backend, words(Backend))  # and the check at run time reads the same ones

Every argument, setting and option that is one of some words has its type from here. A new word is added here and to the
table that says what it does (such as `wrappers.STRATEGIES`); `tests/test_choices.py` compares the two.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

__all__ = [
    "Activation",
    "AlgorithmName",
    "ArmSplit",
    "Autoreset",
    "Backend",
    "DqnNetwork",
    "FixedBackend",
    "GroupFailure",
    "GroupMode",
    "LearnIn",
    "LoopMode",
    "NumberUse",
    "ObservationMode",
    "OnDivergence",
    "OnError",
    "OnFailure",
    "PageText",
    "PpoNetwork",
    "Recorded",
    "RecurrentCell",
    "RenderMode",
    "Sampler",
    "ScheduleName",
    "ShopReward",
    "StartMethod",
    "Strategy",
    "TextMode",
    "TileFormat",
    "Turns",
    "UpdateModeName",
    "Where",
    "words",
]

Backend = Literal["process", "thread", "serial", "auto"]
"""Where environments and learners run. "auto": in processes; where none can be started in threads, else in the
caller."""

FixedBackend = Literal["process", "thread", "serial"]
"""The same where nothing else takes the place of one that cannot be started."""

StartMethod = Literal["forkserver", "spawn", "fork"]
"""How worker processes are started."""

OnFailure = Literal["raise", "restart"]
"""What follows when an environment raises or hangs, or its worker dies."""

ObservationMode = Literal["same", "different"]
"""Whether the observation spaces of all environments are equal, or differ in their bounds."""

Autoreset = Literal["NextStep", "SameStep", "Disabled"]
"""When an environment is reset whose episode has ended: the values of `gymnasium.vector.AutoresetMode`."""

Turns = Literal["simultaneous", "sequential"]
"""How AEC environments are played."""

Strategy = Literal["sequential", "thread", "process", "batch", "gpu", "auto"]
"""How the policies of several agents are computed."""

OnError = Literal["raise", "default"]
"""What follows when a policy raises: its error, or the default action."""

UpdateModeName = Literal[
    "sequential", "thread", "process", "fused", "auto", "fused_or_sequential", "fused_or_thread", "fused_or_process"
]
"""How the updates of several agents are run. "fused_or_process": fused where that is quicker, else in processes."""

OnDivergence = Literal["skip", "raise"]
"""What follows an update that is not finite, once it is undone."""

LoopMode = Literal["sync", "overlap", "free"]
"""How collecting and learning go together."""

LearnIn = FixedBackend
"""Where learning runs while environments are stepped."""

ScheduleName = Literal["round_robin", "most_data", "slowest"]
"""Which agent learns first."""

AlgorithmName = Literal["ppo", "dqn", "sac"]
"""The algorithms that come with the package."""

Activation = Literal["tanh", "relu"]
"""What stands between the hidden layers of a network."""

PpoNetwork = Literal["mlp", "cnn", "gru"]
"""Networks of PPO: for numbers, for pictures, with a memory."""

DqnNetwork = Literal["mlp", "cnn"]
"""Networks of DQN: for numbers, for pictures."""

Sampler = Literal["tree", "cpprb"]
"""What draws steps by their priorities."""

Recorded = Literal["best", "worst", "median", "all"]
"""Which episodes of an evaluation are filmed."""

GroupMode = Literal["train", "val"]
"""Which groups an `EnvStateManager` plays."""

RecurrentCell = Literal["gru", "lstm"]
"""Cells of recurrent networks that act."""

GroupFailure = Literal["entry", "raise"]
"""What a broken environment of a group is: an entry that says so, or an exception."""

Where = Literal["auto", "process", "caller", "both"]
"""Where the environments of a group live."""

TileFormat = Literal["grid", "coord", "grid_coord"]
"""How rooms of tiles are told."""

RenderMode = Literal["text", "rgb_array"]
"""Whether rooms of tiles are shown as text or as pictures."""

TextMode = Literal["text"]
"""The same for environments that have text alone."""

ShopReward = Literal["dense", "sparse"]
"""What is paid for in a shop."""

PageText = Literal["text", "text_rich"]
"""How the pages of a shop are told."""

NumberUse = Literal["exactly_once", "at_most_once"]
"""How often a puzzle's numbers may stand in an answer."""

ArmSplit = Literal["auto", "train", "test"]
"""Which names of arms are drawn."""


def words(choice: Any) -> tuple[Any, ...]:
    """Return the words of a `Literal`, in the order in which they stand there."""
    return get_args(choice)
