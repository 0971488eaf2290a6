"""Videos of episodes that were evaluated: each is played again from its seed, this time with somebody watching.

    for video in record_videos(result, missions, policies, "worst", "videos"): ...

Rendering costs time and may need a display, so it stays out of the evaluation itself. Episodes are filmed one after
another in a worker of their own, where nothing that a renderer does can harm what has been measured. Needs moviepy
(extra `video`), which Gymnasium records with, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.choices import Backend, Recorded, words
from parallel_envs.engine import HOST, Call, Failure, PoolSettings, WorkerPool, open_pool
from parallel_envs.evaluation.candidates import Candidate, candidates_of
from parallel_envs.evaluation.checkpoints import holding
from parallel_envs.evaluation.episode import Stage, play
from parallel_envs.evaluation.mission_names import missions_of
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.evaluation.team import Originals
from parallel_envs.evaluation.threads import one_thread
from parallel_envs.evaluation.trajectories import episode_file
from parallel_envs.evaluation.work import Order
from parallel_envs.extras import install_line, is_installed
from parallel_envs.files import private_folder
from parallel_envs.spelling import hint
from parallel_envs.vector.registry import Registrations

WHICH: tuple[Recorded, ...] = words(Recorded)

_FRAMES_PER_SECOND = 30.0  # where the environment does not say


class CannotFilm(RuntimeError):
    """An episode cannot be filmed: its environment shows nothing, or nothing is there to film with."""


@dataclass(frozen=True, slots=True)
class Video:
    """A film of an episode.

    Args:
        path: The file; None if there is none.
        record: The episode, as it was evaluated.
        problem: Why there is no film, or why it may not show what was evaluated; empty if all is well.
    """

    path: Path | None
    record: EpisodeRecord
    problem: str = ""


def check_can_record(which: str) -> None:
    """Raise BadEvaluation if videos of these episodes cannot be made here, before anything has been played."""
    if which not in WHICH:
        raise BadEvaluation(f"record={which!r} is unknown. Choose one of {', '.join(WHICH)}.{hint(which, WHICH)}")
    if not is_installed("moviepy"):
        raise BadEvaluation(f"Videos need moviepy, which is not installed: {install_line('moviepy')}.")


def chosen(result: EvaluationResult, which: Recorded) -> list[EpisodeRecord]:
    """Of each mission the episode with the best, worst or median score (the lower of two), or all of them; of each
    policy's, where policies played one by one.

    Episodes that failed have no score and are left out.
    """
    found = []
    for part in dict.fromkeys((one.mission, one.alone) for one in result.episodes):
        played = [one for one in result.episodes if (one.mission, one.alone) == part and one.score is not None]
        ranked = sorted(played, key=lambda one: one.score or 0.0)
        places = {"best": len(ranked) - 1, "worst": 0, "median": (len(ranked) - 1) // 2}
        found += played if which == "all" else [ranked[places[which]]] if ranked else []
    return found


def record_videos(
    result: EvaluationResult,
    missions: Any,
    policies: Any,
    which: Recorded,
    folder: str | Path,
    *,
    proportions: Sequence[float] | Mapping[str, float] | None = None,
    backend: Backend = "process",
    trust: Sequence[str] = (),
) -> Iterator[Video]:
    """Film the chosen episodes, one at a time.

    Args:
        result: The evaluation.
        missions: As `evaluate` was given them.
        policies: The same. Of a training run the checkpoint that was evaluated is taken: if it is gone or has changed,
            that is a BadEvaluation.
        which: Recorded episodes.
        folder: Where the videos go, named by mission and number.
        proportions: As `evaluate` was given them.
        backend: Where to play: "process", or "serial" for what cannot travel.
        trust: As `evaluate` was given it.
    """
    check_can_record(which)
    by_name = {mission.name: mission for mission in missions_of(missions)}
    candidates = candidates_of(policies, proportions, trust)
    Path(folder).mkdir(parents=True, exist_ok=True)
    seed, max_steps = result.settings.get("seed", 42), result.settings.get("max_steps", 1000)
    with holding(candidates, result.settings) as held:
        pool = open_pool(1, PoolSettings(backend=backend, name="film"))
        try:
            for record in chosen(result, which):
                path = episode_file(folder, record, ".mp4")
                order, mission = Order(record.mission, record.episode, seed, record.alone), by_name[record.mission]
                script = _Script(order, mission, tuple(held), max_steps, Registrations.here())
                yield _filmed(pool, record, path, script)
        finally:
            pool.close()


@dataclass(frozen=True, slots=True)
class _Script:
    """What is to be played."""

    order: Order
    mission: Mission
    candidates: tuple[Candidate, ...]
    max_steps: int
    registrations: Registrations


def _filmed(pool: WorkerPool, record: EpisodeRecord, path: Path, script: _Script) -> Video:
    if pool.death(0) is not None:
        pool.restart(0)
    key = pool.new_key()
    pool.wait(pool.send({0: Call(HOST, "build", (key, Film, pool.backend == "process"))}))
    with private_folder(path) as private:  # ffmpeg opens its file itself, and would follow links
        draft = private / f"film{path.suffix}"
        ticket = pool.send({0: Call(key, "shoot", (script, draft))})
        pool.wait(ticket)
        reply = ticket.replies[0]
        if reply.failure is None and reply.death is None:
            draft.replace(path)
    if reply.failure is not None:
        return Video(None, record, _told(reply.failure))
    if reply.death is not None:
        return Video(None, record, f"rendering ended its process (exit code {reply.death.exitcode})")
    return Video(path, record, _difference(record, reply.value))


def _told(failure: Failure) -> str:
    text = failure.message + _hint(failure.message)
    return text if failure.type_name.endswith(CannotFilm.__name__) else f"{failure.type_name}: {text}"


def _hint(message: str) -> str:
    """What may help where a renderer finds nothing to draw on."""
    if "'render_mode'" in message:
        return ". Films need an environment that takes render_mode='rgb_array'."
    if any(word in message for word in ("OpenGL", "EGL", "glGetError")) and "MUJOCO_GL" not in os.environ:
        return ". There is no display, and EGL was tried: install it (libegl1), or set MUJOCO_GL=osmesa."
    return ""


def _difference(told: EpisodeRecord, again: EpisodeRecord) -> str:
    """What went another way this time."""
    if again.failure is not None:
        return f"played again, it failed: {again.failure.error_type}: {again.failure.message}"
    if told.timeouts:
        return "actions were late when it was evaluated, and none was when it was filmed"
    before, now = ({str(agent): value for agent, value in one.returns.items()} for one in (told, again))
    if before == now and told.length == again.length:
        return ""
    return (
        f"played again, it went another way ({again.length} steps for {told.length}): its environment or a policy "
        "depends on more than the seed"
    )


class Film:
    """Hosted by a worker: plays an episode and films it.

    Args:
        own_process: Whether it may be arranged for this process that SDL and MuJoCo do without a screen, if there is
            none.
    """

    def __init__(self, own_process: bool) -> None:
        if own_process and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            os.environ.setdefault("MUJOCO_GL", "egl")

    def shoot(self, script: _Script, path: Path) -> EpisodeRecord:
        """Play the episode. The film is in the file afterwards; if nothing could be shown, that is raised."""
        script.registrations.install()
        with contextlib.closing(_Camera(path)) as camera:
            record = _replayed(script, camera.look)
        if not path.exists():
            failure = record.failure
            raise CannotFilm("nothing was shown" if failure is None else f"{failure.where}: {failure.message}")
        return record


def _replayed(script: _Script, watch: Callable[[Any], None]) -> EpisodeRecord:
    """The episode again, without deadlines: nobody is late because of a camera."""
    shown = dataclasses.replace(script.mission, kwargs={**script.mission.kwargs, "render_mode": "rgb_array"})
    free = PlaySettings(action_timeout=None, lateness_budget=None, episode_timeout=None, max_steps=script.max_steps)
    made = Originals(script.candidates, script.order.root, alone=bool(script.order.alone))
    with one_thread(), contextlib.closing(made) as originals:
        return play(script.order, Stage(maker=EnvMaker(shown), originals=originals, settings=free, watch=watch))


class _Camera:
    """Writes what it is shown to a video, frame by frame. The file is opened with the first: it tells the size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def look(self, env: Any) -> None:
        frame = env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[-1] != 3:
            raise CannotFilm(
                f"With render_mode='rgb_array' the environment renders {type(frame).__name__}, not an image in colour "
                "(an array of height, width and 3)."
            )
        if self._writer is None:
            self._writer = self._opened(frame, env)
        self._writer.write_frame(np.ascontiguousarray(frame, np.uint8))

    def _opened(self, frame: Any, env: Any) -> Any:
        from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

        height, width = frame.shape[:2]
        fps = float((getattr(env, "metadata", None) or {}).get("render_fps") or _FRAMES_PER_SECOND)
        return FFMPEG_VideoWriter(str(self._path), (width, height), fps, codec="libx264")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
