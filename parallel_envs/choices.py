"""The words that arguments may have, one `Literal` for each kind of choice.

    backend: Backend = "process"                          # an editor and mypy know the words
    arguments.choice("backend", backend, words(Backend))  # and the check at run time reads the same ones

Every argument, setting and option that is one of some words has its type from here. A new word is added here and to the
table that says what it does (such as `wrappers.STRATEGIES`); `tests/test_choices.py` compares the two.
"""

from __future__ import annotations

from typing import Literal, get_args

# Where environments and learners run. "auto": in processes, or where none can be started in threads, or in the caller.
Backend = Literal["process", "thread", "serial", "auto"]
# The same where nothing else takes the place of one that cannot be started.
FixedBackend = Literal["process", "thread", "serial"]
# How worker processes are started.
StartMethod = Literal["forkserver", "spawn", "fork"]
# What follows when an environment raises or hangs, or its worker dies.
OnFailure = Literal["raise", "restart"]
# Whether the observation spaces of all environments are equal, or differ in their bounds.
ObservationMode = Literal["same", "different"]
# When an environment is reset whose episode has ended: the values of `gymnasium.vector.AutoresetMode`.
Autoreset = Literal["NextStep", "SameStep", "Disabled"]
# How AEC environments are played.
Turns = Literal["simultaneous", "sequential"]
# How the policies of several agents are computed.
Strategy = Literal["sequential", "thread", "process", "batch", "gpu", "auto"]
# What follows when a policy raises: its error, or the default action.
OnError = Literal["raise", "default"]
# How the updates of several agents are run. "fused_or_process": fused where that is quicker, else in processes.
UpdateModeName = Literal[
    "sequential", "thread", "process", "fused", "auto", "fused_or_sequential", "fused_or_thread", "fused_or_process"
]
# What follows an update that is not finite, once it is undone.
OnDivergence = Literal["skip", "raise"]
# How collecting and learning go together.
LoopMode = Literal["sync", "overlap", "free"]
# Where learning runs while environments are stepped.
LearnIn = FixedBackend
# Which agent learns first.
ScheduleName = Literal["round_robin", "most_data", "slowest"]
# The algorithms that come with the package.
AlgorithmName = Literal["ppo", "dqn", "sac"]
# What stands between the hidden layers of a network.
Activation = Literal["tanh", "relu"]
# Networks of PPO: for numbers, for pictures, with a memory.
PpoNetwork = Literal["mlp", "cnn", "gru"]
# Networks of DQN: for numbers, for pictures.
DqnNetwork = Literal["mlp", "cnn"]
# What draws steps by their priorities.
Sampler = Literal["tree", "cpprb"]
# Which episodes of an evaluation are filmed.
Recorded = Literal["best", "worst", "median", "all"]
# Which groups an `EnvStateManager` plays.
GroupMode = Literal["train", "val"]
# Cells of recurrent networks that act.
RecurrentCell = Literal["gru", "lstm"]
# What a broken environment of a group is: an entry that says so, or an exception.
GroupFailure = Literal["entry", "raise"]
# Where the environments of a group live.
Where = Literal["auto", "process", "caller", "both"]
# How rooms of tiles are told.
TileFormat = Literal["grid", "coord", "grid_coord"]
# Whether rooms of tiles are shown as text or as pictures.
RenderMode = Literal["text", "rgb_array"]
# The same for environments that have text alone.
TextMode = Literal["text"]
# What is paid for in a shop.
ShopReward = Literal["dense", "sparse"]
# How the pages of a shop are told.
PageText = Literal["text", "text_rich"]
# How often a puzzle's numbers may stand in an answer.
NumberUse = Literal["exactly_once", "at_most_once"]
# Which names of arms are drawn.
ArmSplit = Literal["auto", "train", "test"]

# The words of a `Literal`, in the order in which they stand there.
words = get_args
