"""The home of the per-agent dispatch strategies: sequential, thread, process, batch and device.

It is reserved and still empty: nothing is exported yet. The import name is `parallel_envs.wrappers`; the link
`wrappers` at the top of the repository leads here for people who browse, and is not installed.
"""

__all__: list[str] = []
