"""Whose an exception is that was caught along with all others."""

from __future__ import annotations

import signal
import threading

from parallel_envs.engine.forks import leave_if_forked


def let_ctrl_c_through(error: BaseException) -> None:
    """Raise the user's Ctrl-C, wherever it happened to strike; return if `error` is anything else.

    In a process that was forked from a worker it does not return: whatever was raised there is not the worker's affair.

    Only the thread that runs signal handlers can have been struck. Processes of workers ignore the signal, so there it
    is an exception like any other, which the object that was asked has raised.
    """
    leave_if_forked(error)
    in_main = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error
