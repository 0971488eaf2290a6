"""The worker engine: everything in the project that runs beside the caller runs here.

Workers host objects; a request names an object and what it is to do. The engine knows nothing of environments,
policies or learning. `pool` holds the one interface; `local` and `process` are its backends; `host` is what a worker
is on any of them. `keeper` is the process that starts the others and outlives none; the fork servers below it import
what workers need.
"""

from parallel_envs.engine.descriptors import advice_on_too_many_files
from parallel_envs.engine.factory import BACKENDS, PoolSettings, line_outside, open_pool
from parallel_envs.engine.fork_server import FORK_SERVER_NAME
from parallel_envs.engine.host import Ringable, load_modules
from parallel_envs.engine.interrupts import let_ctrl_c_through
from parallel_envs.engine.keeper_client import keeper_pid, start_keeper
from parallel_envs.engine.memory import SharedBlock
from parallel_envs.engine.messages import HOST, Call, Death, Failure, Reply
from parallel_envs.engine.pickling import (
    Inherited,
    Unpicklable,
    dump_reply,
    dump_request,
    load_reply,
    picklable,
    unpicklable_part,
)
from parallel_envs.engine.placement import cores_here, settle
from parallel_envs.engine.pool import Meters, Ticket, WorkerPool
from parallel_envs.engine.worker_process import START_METHODS

__all__ = [
    "BACKENDS",
    "FORK_SERVER_NAME",
    "HOST",
    "START_METHODS",
    "Call",
    "Death",
    "Failure",
    "Inherited",
    "Meters",
    "PoolSettings",
    "Reply",
    "Ringable",
    "SharedBlock",
    "Ticket",
    "Unpicklable",
    "WorkerPool",
    "advice_on_too_many_files",
    "cores_here",
    "dump_reply",
    "dump_request",
    "keeper_pid",
    "let_ctrl_c_through",
    "line_outside",
    "load_modules",
    "load_reply",
    "open_pool",
    "picklable",
    "settle",
    "start_keeper",
    "unpicklable_part",
]
