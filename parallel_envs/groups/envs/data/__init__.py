"""The files that are shipped, and the programs that made them; nothing here is imported by an env.

python -m parallel_envs.groups.envs.data.arithmetic      writes arithmetic.jsonl
python -m parallel_envs.groups.envs.data.catalogue       writes the three files of the shop
"""
