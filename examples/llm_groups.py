"""Groups of mixed environments for a language model that learns: what happens between the model and its optimiser.

    python examples/llm_groups.py                     6 kinds of environments, groups of 8, 8 rounds on the same tasks
    python examples/llm_groups.py --rounds 20 --group-size 16

In place of a language model stands a script. It sees prompts and writes answers as a model would, thoughts first. What
it writes it draws at random, or else it is what did well in that very state in an earlier round: in the last round
whenever it knows of any. So it gets better at these tasks, as a model that is trained on groups does, and at no others.

The members of a group have the same task, and each its own try: `pass@8` is the share of groups in which anybody
succeeded. At the end the last round is played once more without worker processes, and must be the same to the letter.
"""

from __future__ import annotations

import argparse
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from parallel_envs.groups import EnvStateManager

Entry = dict[str, Any]

ENVS = {
    "Arms": {
        "env_type": "bandit",
        "env_instruction": "Choose the arm that pays more.",
        "max_actions_per_traj": 1,
    },
    "Boxes": {
        "env_type": "sokoban",
        "env_instruction": "Push the boxes X onto the targets O: Up, Down, Left or Right.",
        "max_actions_per_traj": 12,
        "env_config": {"dim_room": [6, 6], "num_boxes": 1, "search_depth": 8},
    },
    "Ice": {
        "env_type": "frozen_lake",
        "env_instruction": "Walk to the goal G and into no hole O: Up, Down, Left or Right.",
        "max_actions_per_traj": 12,
        "env_config": {"size": 4, "is_slippery": False},
    },
    "Numbers": {
        "env_type": "countdown",
        "env_instruction": "Combine the numbers into the target.",
        "max_actions_per_traj": 1,
        "env_config": {"num_numbers": [2, 3], "number_range": [1, 12], "target_range": [2, 40]},
    },
    "Stories": {
        "env_type": "metamathqa",
        "env_instruction": "Answer the question.",
        "max_actions_per_traj": 3,
    },
    "Shop": {
        "env_type": "webshop",
        "env_instruction": "Buy what is asked for.",
        "max_actions_per_traj": 8,
        "env_config": {"observation_mode": "text_rich"},
    },
}


def configuration(group_size: int, groups_per_kind: int) -> dict[str, Any]:
    tags = list(ENVS)
    block = {
        "env_groups": groups_per_kind * len(tags),
        "group_size": group_size,
        "env_configs": {"tags": tags, "n_groups": [groups_per_kind] * len(tags)},
    }
    return {
        "es_manager": {"max_workers": 2, "sequential_env_types": ["bandit"], "format_penalty": -0.1, "train": block},
        "custom_envs": ENVS,
    }


# ---- the stand-in for a language model -------------------------------------------------------------


def arms(state: str, draw: random.Random) -> str:
    first, second = re.findall(r"do you pull, (\w+) or (\w+)\?", state)[0]
    return str(draw.choice([first, second]))


def ways(state: str, draw: random.Random) -> str:
    return " || ".join(draw.choices(["Up", "Down", "Left", "Right"], k=2))


def expressions(state: str, draw: random.Random) -> str:
    """All numbers behind the target, in any order and with any signs."""
    numbers: list[str] = re.findall(r"\d+", state)[1:]
    draw.shuffle(numbers)
    return "".join(f"{number} {draw.choice('+-*')} " for number in numbers[:-1]) + numbers[-1]


def results(state: str, draw: random.Random) -> str:
    """Three numbers of the question, put together somehow."""
    figures = [int(number) for number in re.findall(r"\d+", state)]
    first, second, third = draw.sample([*figures, 1, 2, 3][: max(len(figures), 3)], 3)
    return str(draw.choice([third - first * second, first + second * third, first // 2 - second, first % second]))


def clicks(state: str, draw: random.Random) -> str:
    """Searches for what is asked; of what can be clicked, what the instruction names."""
    asked, can = str(re.findall(r"Instruction:\n(.+)", state)[0]), actions_in(state)
    if "search[<content>]" in can:
        return f"search[{asked}]"
    named = [action for action in can if action[6:-1] in asked or action == "click[buy now]"]
    return draw.choice(named or [action for action in can if action.startswith("click[b0")])


def actions_in(state: str) -> list[str]:
    return state.rpartition("Available actions: ")[2].split(", ")


WRITERS: dict[str, Callable[[str, random.Random], str]] = {
    "Arms": arms,
    "Boxes": ways,
    "Ice": ways,
    "Numbers": expressions,
    "Stories": results,
    "Shop": clicks,
}


class StandIn:
    """Writes answers, and remembers the best one that it knows of for each state."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.curiosity = 1.0
        self.known: dict[str, tuple[float, str]] = {}

    def write(self, tag: str, history: Sequence[Entry]) -> str:
        state = self.context(history)
        if state in self.known and self.draw.random() >= self.curiosity:
            answer = self.known[state][1]
        elif self.draw.random() < 0.03:
            answer = "I am not sure."  # models do not keep to the form all the time
        else:
            answer = WRITERS[tag](history[0]["state"] if tag == "Stories" else history[-1]["state"], self.draw)
        return f"<think>Turn {len(history)}: let me see.</think><answer>{answer}</answer>"

    def learn(self, entries: Sequence[Entry]) -> None:
        """Of all answers that were given in a state, keep the one after which most was gained."""
        for entry in well(entries):
            *turns, _ = entry["history"]
            gained = 0.0
            for number in reversed(range(len(turns))):
                gained += turns[number]["reward"]
                state, answer = self.context(turns[: number + 1]), answer_in(turns[number]["llm_response"])
                if gained > max(0.0, self.known.get(state, (0.0, ""))[0]):
                    self.known[state] = (gained, answer)

    def context(self, history: Sequence[Entry]) -> str:
        """What a model would have in view: the first state, which tells the task, and the latest."""
        return f"{history[0]['state']}\n{history[-1]['state']}"


def answer_in(response: str) -> str:
    found = re.search(r"<answer>(.*?)</answer>", response, re.DOTALL)
    return found[1] if found else ""


def prompt(instruction: str, history: Sequence[Entry]) -> str:
    """What a model is shown at its next turn: the instruction, what happened, and what to do."""
    lines = [instruction, *(f"{past['state']}\n{past['llm_response']}" for past in history[:-1]), history[-1]["state"]]
    left = history[-1]["actions_left"]
    return "\n".join([*lines, f"You have {left} actions left. Write <think>...</think><answer>a || b</answer>."])


# ---- a round ---------------------------------------------------------------------------------------


def play(manager: EnvStateManager, model: StandIn, seed: int) -> list[Entry]:
    """One episode in every environment. Returns all histories, each with its metrics."""
    entries = well(manager.reset(seed))
    while entries:
        entries = well(manager.step([turn(entry, model.write(entry["tag"], entry["history"])) for entry in entries]))
    return manager.get_rollout_states()


def well(entries: Sequence[Entry]) -> list[Entry]:
    """Without those whose environments broke: there is nothing more to be said in them."""
    return [entry for entry in entries if "failure" not in entry]


def turn(entry: Entry, response: str) -> Entry:
    actions = answer_in(response).split(" || ")
    return {"env_id": entry["env_id"], "llm_response": response, "llm_raw_response": response, "actions": actions}


def conversation(manager: EnvStateManager, entries: Sequence[Entry]) -> str:
    """What the model saw and said in the second turn of some episode that had one."""
    entry = next(entry for entry in entries if len(entry["history"]) > 2)
    history = entry["history"][:2]
    return f"{prompt(manager.envs[entry['env_id']].env_instruction, history)}\n{history[-1]['llm_response']}"


def row(figures: dict[str, float], group_size: int) -> list[str]:
    return [f"{figures[f'{tag}/success']:.2f} / {figures[f'{tag}/pass@{group_size}']:.2f}" for tag in ENVS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="of each kind of environment")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    config, model = configuration(arguments.group_size, arguments.groups), StandIn(arguments.seed)

    table = Table("round", *ENVS, title=f"success / pass@{arguments.group_size}")
    warnings.filterwarnings("ignore", "env_type .* that come with the package")  # sample data will do here
    with EnvStateManager(config) as manager:
        for number in range(arguments.rounds):
            model.curiosity = 1.0 - (number + 1) / arguments.rounds
            before = model.draw.getstate(), dict(model.known)
            entries = play(manager, model, arguments.seed)
            if number == 0:
                print(conversation(manager, entries), end="\n\n")
            table.add_row(str(number + 1), *row(manager.metrics(), arguments.group_size))
            model.learn(entries)
        told = manager.stats()
    Console(width=110).print(table)
    print(f"{told.num_workers} workers, {told.restarts} restarts; in the caller: {', '.join(told.in_caller)}")

    model.draw.setstate(before[0])
    model.known = before[1]
    config["es_manager"]["use_multiprocessing"] = False
    with EnvStateManager(config) as manager:
        print("the same without workers:", "yes" if play(manager, model, arguments.seed) == entries else "no")


if __name__ == "__main__":
    main()
