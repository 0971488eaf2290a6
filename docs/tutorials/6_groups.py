"""
Groups for language models
==========================

Groups of environments that begin alike. A script stands in the place of a language model.
"""

# sphinx_gallery_thumbnail_path = '_static/diagrams/groups.svg'

from parallel_envs import EnvStateManager

config = {
    "es_manager": {
        "train": {"env_groups": 2, "group_size": 3, "env_configs": {"tags": ["Ice"], "n_groups": [2]}},
        "format_penalty": -0.1,
    },
    "custom_envs": {
        "Ice": {
            "env_type": "frozen_lake",
            "max_actions_per_traj": 8,
            "env_config": {"size": 4, "is_slippery": False},
        }
    },
}
manager = EnvStateManager(config, mode="train")
entries = manager.reset(seed=3)
print(entries[0]["history"][0]["state"])

# %%
# The three members of a group have the same map. Each gets answers of its own: two ways over the ice, and a word that
# means nothing. An episode that has ended is left out.

plans = [
    [["Down", "Down"], ["Down", "Right"], ["Right", "Right"]],
    [["Right", "Down"], ["Down", "Down"], ["Right", "Right"]],
    [["Jump"], ["Jump"], ["Jump"]],
]
for turn in range(3):
    answers = [
        {
            "env_id": one["env_id"],
            "llm_response": "",
            "llm_raw_response": "",
            "actions": plans[one["env_id"] % 3][turn],
        }
        for one in entries
    ]
    entries = manager.step(answers)

# %%
# Every member has its history, its penalty and its metrics. ``pass@3`` is the share of groups in which a member
# succeeded.

for state in manager.get_rollout_states():
    history = " > ".join(item["state"].replace("\n", "/") for item in state["history"][:2])
    print(
        state["group_id"], state["env_id"], history, f"penalty {state['penalty']:.1f}", state["metrics"]["Ice/success"]
    )
print(manager.metrics()["Ice/pass@3"])
manager.close()
