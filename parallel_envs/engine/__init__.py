"""The worker engine: runs every object of the project that does not run in the caller.

Workers host objects. A request names a hosted object and what to do with it. The engine knows nothing of environments,
policies or learning. `pool` holds the one interface; `local` and `process` are its backends; `worker` holds the hosted
objects on every backend. The `supervisor` is the process that starts and ends worker processes; the fork servers below
it import the modules that workers need.
"""

from parallel_envs.engine.channel import advice_on_too_many_files
from parallel_envs.engine.fork_server import FORK_SERVER_NAME
from parallel_envs.engine.interrupts import reraise_ctrl_c
from parallel_envs.engine.messages import (
    HOST,
    Call,
    Death,
    Failure,
    Inherited,
    Reply,
    SharedBlock,
    Unpicklable,
    dump_reply,
    dump_request,
    load_reply,
    picklable,
    unpicklable_part,
)
from parallel_envs.engine.pool import (
    BACKENDS,
    START_METHODS,
    Meters,
    PendingRequest,
    PoolSettings,
    WorkerPool,
    cores_here,
    open_pool,
    pin_workers,
    user_stacklevel,
)
from parallel_envs.engine.supervisor_client import start_supervisor, supervisor_pid
from parallel_envs.engine.worker import Ringable, load_modules

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
    "PendingRequest",
    "PoolSettings",
    "Reply",
    "Ringable",
    "SharedBlock",
    "Unpicklable",
    "WorkerPool",
    "advice_on_too_many_files",
    "cores_here",
    "dump_reply",
    "dump_request",
    "load_modules",
    "load_reply",
    "open_pool",
    "picklable",
    "pin_workers",
    "reraise_ctrl_c",
    "start_supervisor",
    "supervisor_pid",
    "unpicklable_part",
    "user_stacklevel",
]
