"""Recordings of evaluated episodes: trajectories as archives of arrays, and videos.

An array has a row for each step in which the agent was present; `steps/...` has the numbers of these steps if the agent
was not present in all of them. Observations and actions that are dicts or tuples have an array for each part:
`observations/agent_0/camera`. Values whose shape changes from step to step are kept as text.

Rendering costs time and may need a display, so it is no part of the evaluation: each episode is played again from its
seed, in a worker process of its own. Videos need moviepy (extra `video`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from parallel_envs.choices import Backend, Recorded, words
from parallel_envs.engine import HOST, Call, PoolSettings, open_pool
from parallel_envs.evaluation.determinism import one_thread
from parallel_envs.evaluation.episode import EpisodeContext, EpisodeSpec, play_episode
from parallel_envs.evaluation.missions import EnvMaker, Mission, missions_of
from parallel_envs.evaluation.policies import Candidate, PolicyTemplates, candidates_of, held_checkpoints
from parallel_envs.evaluation.records import (
    BadDocument,
    BadEvaluation,
    EpisodeRecord,
    EvaluationConfig,
    EvaluationResult,
    Trajectory,
    check_word,
    names_of,
    read_as,
    record_values,
)
from parallel_envs.extras import install_line, is_installed
from parallel_envs.files import private_folder, short_name
from parallel_envs.rollouts.replay import read_archive, write_archive
from parallel_envs.vector.registry import Registrations

Array = npt.NDArray[Any]

KIND = "parallel_envs episode"
SCHEMA = 1

_PARTS = ("observations", "actions", "rewards", "terminations", "truncations")
_PLAIN_KINDS = "biufcUS"  # numbers, flags and text: arrays that need no pickle


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode from a file: its record, without trajectory, and the trajectory as arrays by name."""

    record: EpisodeRecord
    arrays: Mapping[str, Array]


def save_episode(folder: str | Path, record: EpisodeRecord) -> Path:
    """Write an episode to the folder, which is created if it is missing. Return the path of the file."""
    if record.trajectory is None:
        raise ValueError(f"{record.key} has no trajectory. Evaluate with trajectories=True.")
    path = episode_file(folder, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"kind": KIND, "schema": SCHEMA, "record": record_values(record)}
    write_archive(path, header, _trajectory_arrays(record.trajectory))
    return path


def read_episode(path: str | Path) -> SavedEpisode:
    """Return the episode in a file that `save_episode` wrote. Raise BadDocument, naming the file, for another file."""
    try:
        header, arrays = read_archive(path)
    except (OSError, ValueError) as error:
        raise BadDocument(f"{path} is not a saved episode: {error}") from error
    if header.get("kind") != KIND or header.get("schema") != SCHEMA:
        raise BadDocument(f"{path} is not a saved episode, or one of another version.")
    return SavedEpisode(read_as(EpisodeRecord, header.get("record"), str(path), "record"), arrays)


def episode_file(folder: str | Path, record: EpisodeRecord, suffix: str = ".npz") -> Path:
    """Return the path for an episode: its mission, quoted as in a URL, the policy if it played alone, and its number.

    A name that is too long for a file is cut, with a checksum at the end.
    """
    parts = [record.mission, record.alone] if record.alone else [record.mission]
    name = short_name("-".join(quote(part, safe=",=+", errors="surrogatepass") for part in parts), 200)
    return Path(folder) / f"{name}-{record.episode:04d}{suffix}"


def _trajectory_arrays(trajectory: Trajectory) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    names = names_of(dict.fromkeys(agent for step in trajectory.observations for agent in step))
    for part in _PARTS:
        steps: Sequence[Mapping[Any, Any]] = getattr(trajectory, part)
        for agent in dict.fromkeys(agent for step in steps for agent in step):
            rows = [number for number, step in enumerate(steps) if agent in step]
            name = names.get(agent, str(agent))
            if len(rows) < len(steps):
                arrays[f"steps/{part}/{name}"] = np.array(rows)
            arrays.update(_columns(f"{part}/{name}", [steps[number][agent] for number in rows]))
    return arrays


def _columns(name: str, values: Sequence[Any]) -> dict[str, Array]:
    """Return the values as rows of one array, or of an array for each of their parts."""
    if all(isinstance(value, Mapping) for value in values) and len({tuple(value) for value in values}) == 1:
        parts = {f"{name}/{key}": [value[key] for value in values] for key in values[0]}
    elif all(isinstance(value, tuple) for value in values) and len({len(value) for value in values}) == 1:
        parts = {f"{name}/{place}": [value[place] for value in values] for place in range(len(values[0]))}
    else:
        try:
            rows = np.stack([np.asarray(value) for value in values])
        except ValueError:  # of different shapes
            rows = np.array([], object)
        if rows.dtype.kind not in _PLAIN_KINDS:
            rows = np.array([repr(value) for value in values])
        return {name: rows}
    return {column: array for part, inner in parts.items() for column, array in _columns(part, inner).items()}


_FRAMES_PER_SECOND = 30.0  # if the environment has no `render_fps`


class CannotRender(RuntimeError):
    """The environment renders no images."""


@dataclass(frozen=True, slots=True)
class Video:
    """A video of an episode, or the problem that prevented it."""

    path: Path | None
    record: EpisodeRecord  # the episode as it was evaluated
    problem: str = ""
    """Why there is no video, or why it may not show what was evaluated. Empty if all is well."""


def check_can_record(which: str) -> None:
    """Raise BadEvaluation if videos of these episodes cannot be made here. Call it before anything is played."""
    check_word(f"record={which!r}", which, words(Recorded))
    if not is_installed("moviepy"):
        raise BadEvaluation(f"Videos need moviepy, which is not installed: {install_line('moviepy')}.")


def chosen_records(result: EvaluationResult, which: Recorded) -> list[EpisodeRecord]:
    """Return the episode with the best, worst or (lower) median score of each mission, or all episodes.

    Where each policy played on its own, each has an episode of its own. Failed episodes have no score and are left out.
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
    """Record the chosen episodes ("best", "worst", "median" or "all") in a folder, one at a time.

    `missions`, `policies`, `proportions` and `trust` are those of the evaluation. Of a training run the checkpoint that
    was evaluated is taken; if it is gone or has changed, that is a BadEvaluation. The backend "serial" is for missions
    and policies that cannot be pickled.
    """
    check_can_record(which)
    by_name = {mission.name: mission for mission in missions_of(missions)}
    candidates = candidates_of(policies, proportions, trust)
    Path(folder).mkdir(parents=True, exist_ok=True)
    seed, max_steps = result.settings.get("seed", 42), result.settings.get("max_steps", 1000)
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(held_checkpoints(candidates, result.settings))
        pool = open_pool(1, PoolSettings(backend=backend, name="film"))
        stack.callback(pool.close)
        for record in chosen_records(result, which):
            if pool.death(0) is not None:
                pool.restart(0)
            key, path = pool.new_key(), episode_file(folder, record, ".mp4")
            spec = EpisodeSpec(record.mission, record.episode, seed, record.alone)
            arguments = held, max_steps, Registrations.here(), pool.backend == "process"
            pool.wait(pool.send({0: Call(HOST, "build", (key, VideoWorker, *arguments))}))
            with private_folder(path) as private:  # ffmpeg opens its file itself, and would follow links
                draft = private / f"film{path.suffix}"
                request = pool.send({0: Call(key, "record", (spec, by_name[record.mission], draft))})
                pool.wait(request)
                reply = request.replies[0]
                if reply.failure is None and reply.death is None:
                    draft.replace(path)
            problem = "" if reply.failure or reply.death else _difference(record, reply.value)
            if reply.death is not None:
                problem = f"rendering ended its process (exit code {reply.death.exitcode})"
            elif reply.failure is not None:
                text, error = reply.failure.message, reply.failure.type_name
                if "'render_mode'" in text:
                    text += ". Videos need an environment that takes render_mode='rgb_array'."
                elif any(word in text for word in ("OpenGL", "EGL", "glGetError")) and "MUJOCO_GL" not in os.environ:
                    text += ". There is no display, and EGL was tried: install it (libegl1), or set MUJOCO_GL=osmesa."
                problem = text if error.endswith(CannotRender.__name__) else f"{error}: {text}"
            yield Video(None if reply.failure or reply.death else path, record, problem)


def _difference(evaluated: EpisodeRecord, replayed: EpisodeRecord) -> str:
    """Return how the replay differs from the evaluated episode. Empty if it does not."""
    if replayed.failure is not None:
        return f"played again, it failed: {replayed.failure.error_type}: {replayed.failure.message}"
    if evaluated.timeouts:
        return "actions were late in the evaluation, and none was late in the replay"
    before, now = ({str(agent): value for agent, value in one.returns.items()} for one in (evaluated, replayed))
    if before == now and evaluated.length == replayed.length:
        return ""
    return (
        f"played again, it was another episode ({replayed.length} steps, and {evaluated.length} before): its "
        "environment or a policy depends on more than the seed"
    )


class VideoWorker:
    """Plays episodes in a worker process and records them.

    With `own_process` it may set the environment variables that make SDL and MuJoCo render without a display.
    """

    def __init__(
        self, candidates: Sequence[Candidate], max_steps: int, registrations: Registrations, own_process: bool
    ) -> None:
        self._candidates = candidates
        # There are no deadlines: recording takes time.
        self._config = EvaluationConfig(lateness_budget=None, max_steps=max_steps)
        registrations.install()
        if own_process and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            os.environ.setdefault("MUJOCO_GL", "egl")

    def record(self, spec: EpisodeSpec, mission: Mission, path: Path) -> EpisodeRecord:
        """Play the episode and write the video. Raise CannotRender if there were no images."""
        shown = EnvMaker(dataclasses.replace(mission, kwargs={**mission.kwargs, "render_mode": "rgb_array"}))
        templates = PolicyTemplates(self._candidates, spec.root, alone=bool(spec.alone))
        with contextlib.ExitStack() as stack:
            writer: Any = None

            def add_frame(env: Any) -> None:
                nonlocal writer
                frame = env.render()
                if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[-1] != 3:
                    raise CannotRender(
                        f"{type(frame).__name__} was rendered with render_mode='rgb_array', not an image"
                    )
                if writer is None:  # the first frame has the size
                    from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

                    height, width = frame.shape[:2]
                    fps = float((getattr(env, "metadata", None) or {}).get("render_fps") or _FRAMES_PER_SECOND)
                    writer = FFMPEG_VideoWriter(str(path), (width, height), fps, codec="libx264")
                    stack.callback(writer.close)
                writer.write_frame(np.ascontiguousarray(frame, np.uint8))

            stack.enter_context(one_thread())
            stack.callback(templates.close)
            context = EpisodeContext(maker=shown, templates=templates, config=self._config, watch=add_frame)
            record = play_episode(spec, context)
        if not path.exists():
            failure = record.failure
            raise CannotRender("nothing was rendered" if failure is None else f"{failure.where}: {failure.message}")
        return record
