"""The worker engine: runs every object of the project that does not run in the caller.

Workers host objects. A request names a hosted object and what to do with it. The engine knows nothing of environments,
policies or learning. `pool` holds the one interface and the backends inside this process, `process` the one of
processes; `worker` holds the hosted objects on every backend. The `supervisor` is the process that starts and ends
worker processes; the fork servers below it import the modules that workers need.
"""

from parallel_envs.engine.channel import advice_on_too_many_files as advice_on_too_many_files
from parallel_envs.engine.fork_server import FORK_SERVER_NAME as FORK_SERVER_NAME
from parallel_envs.engine.interrupts import reraise_ctrl_c as reraise_ctrl_c
from parallel_envs.engine.messages import HOST as HOST
from parallel_envs.engine.messages import Call as Call
from parallel_envs.engine.messages import Death as Death
from parallel_envs.engine.messages import Failure as Failure
from parallel_envs.engine.messages import Inherited as Inherited
from parallel_envs.engine.messages import Reply as Reply
from parallel_envs.engine.messages import Unpicklable as Unpicklable
from parallel_envs.engine.messages import dump_reply as dump_reply
from parallel_envs.engine.messages import dump_request as dump_request
from parallel_envs.engine.messages import load_reply as load_reply
from parallel_envs.engine.messages import picklable as picklable
from parallel_envs.engine.messages import unpicklable_part as unpicklable_part
from parallel_envs.engine.pool import BACKENDS as BACKENDS
from parallel_envs.engine.pool import START_METHODS as START_METHODS
from parallel_envs.engine.pool import Meters as Meters
from parallel_envs.engine.pool import PendingRequest as PendingRequest
from parallel_envs.engine.pool import PoolSettings as PoolSettings
from parallel_envs.engine.pool import WorkerPool as WorkerPool
from parallel_envs.engine.pool import open_pool as open_pool
from parallel_envs.engine.pool import user_stacklevel as user_stacklevel
from parallel_envs.engine.shared_arrays import ArrayLayout as ArrayLayout
from parallel_envs.engine.shared_arrays import SharedBlock as SharedBlock
from parallel_envs.engine.supervisor_client import start_supervisor as start_supervisor
from parallel_envs.engine.supervisor_client import supervisor_pid as supervisor_pid
from parallel_envs.engine.worker import load_modules as load_modules
from parallel_envs.engine.worker_process import pin_workers as pin_workers
from parallel_envs.threads import cores_here as cores_here
from parallel_envs.threads import num_cores as num_cores
