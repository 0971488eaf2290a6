"""Torch policies: stacked, on a device, recurrent, masked; the same actions whatever computes them."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs import wrappers
from parallel_envs.errors import PolicyError
from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import PerAgentGPUWrapper, PerAgentSequentialWrapper, PolicyPool, Rules
from parallel_envs.wrappers.sharing import sharers
from tests.wrappers.agents import Drawing
from tests.wrappers.conftest import CLOSE_SECONDS, ELSEWHERE, Seat, Wrap, made

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from parallel_envs.policies.torch_policy import Stack, TorchPolicy, signature  # noqa: E402  # as above
from parallel_envs.rollouts.networks import Mlp as OurMlp  # noqa: E402  # as above
from tests.wrappers import networks  # noqa: E402  # as above
from tests.wrappers.networks import BOX, FOUR, discrete, mixed, mlp, observed, plain, several  # noqa: E402  # as above

NUM_ROWS = 3
AGENTS = "abcdefghi"

here = pytest.mark.parametrize("strategy", ["batch", "gpu"])


@pytest.fixture(scope="module")
def workers() -> Iterator[PolicyPool]:
    """Two worker processes for all tests here: each has to load torch, which takes longer than any of them."""
    pool = PolicyPool(2)
    processes = pool.processes()
    for worker in range(2):  # until they have begun: the check for leaks looks at what is here before a test
        processes.wait(processes.call_all(worker, "build", processes.new_key(), dict))
    yield pool
    pool.close(CLOSE_SECONDS)


@pytest.fixture
def pool(request: pytest.FixtureRequest, workers: PolicyPool) -> Iterator[PolicyPool]:
    """These workers where processes are tested, else a pool of this test."""
    if "process" in request.node.name:
        yield workers
        return
    pool = PolicyPool(2)
    yield pool
    pool.close(CLOSE_SECONDS)


def reference(policy: Any) -> Any:
    """A policy that computes where its network is."""
    twin = copy.copy(policy)
    twin.act_on(None)
    return twin


def stepped_alone(policies: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    return {agent: one.step(seen[agent]) for agent, one in policies.items()}


# ---- parity --------------------------------------------------------------------------------------

agents = st.sets(st.sampled_from(AGENTS), min_size=1).map(sorted)
happenings = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["turn", "rows"]), agents, st.integers(0, 2**31)),
        st.tuples(st.just("reset"), st.one_of(st.none(), agents), st.one_of(st.none(), st.just([0, 2]))),
    ),
    max_size=10,
)


def played(strategy: str, happening: Any, pool: PolicyPool) -> Any:
    with made(strategy, mixed(), None, pool) as wrapper:
        said: list[Any] = []
        for what, some, more in happening:
            if what == "reset":
                wrapper.reset(some, more)
                continue
            rows = NUM_ROWS if what == "rows" else None
            alive = np.random.default_rng(more).random((9, NUM_ROWS)) < 0.7
            masks = {agent: alive[AGENTS.index(agent)] for agent in some} if rows else None
            said.append(wrapper.step({agent: observed(agent, more, rows) for agent in some}, masks))
        return said, {agent: own for agent, (own, _) in wrapper.get_states().items()}


def check(strategy: str, happening: Any, pool: PolicyPool) -> None:
    said, states = played(strategy, happening, pool)
    expected_said, expected_states = played("sequential", happening, pool)
    for one, expected in zip(said, expected_said, strict=True):
        for agent in one:
            if agent in "gh":
                actual, wanted = (np.nan if told[agent] is None else told[agent] for told in (one, expected))
                np.testing.assert_allclose(actual, wanted, atol=1e-5)
            else:
                assert_same_batch(one[agent], expected[agent])
    assert_same_batch(states, expected_states)


@pytest.mark.parametrize("num_examples", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["thread", "batch", "gpu", "auto", "process"])
def test_actions_and_states_are_those_of_the_sequential_strategy(
    strategy: str, num_examples: int, pool: PolicyPool
) -> None:
    @settings(max_examples=num_examples // (3 if strategy == "process" else 1))
    @given(happening=happenings)
    def on(happening: Any) -> None:
        check(strategy, happening, pool)

    on()


# ---- stacks --------------------------------------------------------------------------------------


def outputs(modules: list[Any], features: Any) -> Any:
    with torch.inference_mode():
        return torch.stack([module(own) for module, own in zip(modules, features, strict=True)])


def _hooked(module: Any) -> Any:
    module[0].register_forward_hook(_doubled)
    return module


def _doubled(module: Any, given: Any, out: Any) -> Any:
    return out * 2


MODULES: dict[str, Any] = {
    "a chain": mlp,
    "ours": lambda seed: OurMlp(6, 4),
    "a chain in a chain": lambda seed: nn.Sequential(mlp(seed), nn.ReLU(), nn.Sequential(nn.Linear(4, 4))),
    "without biases": lambda seed: nn.Linear(6, 4, bias=False),
    "of the name of ours": networks.Mlp,
    "with a norm": lambda seed: nn.Sequential(mlp(seed), nn.LayerNorm(4)),
    "a layer that does more": lambda seed: nn.Sequential(networks.Noisy(6, 4)),
    "with an attribute": lambda seed: networks.Scaled(seed, 2.0),
    "with a hook": lambda seed: _hooked(mlp(seed)),
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_stack_computes_what_its_modules_compute(kind: str) -> None:
    modules = [MODULES[kind](seed) for seed in range(3)]
    assert len({signature(module) for module in modules}) == 1
    features = torch.randn(3, 5, 6)
    for stack in (Stack(modules), Stack(modules, ELSEWHERE)):
        for _ in range(2):
            torch.testing.assert_close(stack(features), outputs(modules, features), atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            next(modules[1].parameters()).add_(1.0)  # as training does
        torch.testing.assert_close(stack(features), outputs(modules, features), atol=1e-5, rtol=1e-5)


def test_networks_that_compute_something_else_are_not_stacked() -> None:
    for one, other in (
        (mlp(0), mlp(0, hidden=5)),
        (networks.Scaled(0, 1.0), networks.Scaled(0, 2.0)),
        (nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.1)), nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.2))),
        (nn.Linear(6, 4), nn.Linear(6, 4).double()),
        (nn.Linear(6, 4), networks.Noisy(6, 4)),
        (mlp(0), _hooked(mlp(0))),
        (nn.Linear(6, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))),
    ):
        assert signature(one) == signature(copy.deepcopy(one))
        assert signature(one) != signature(other)


# ---- networks that change ------------------------------------------------------------------------


def _optimised(policy: Any, kind: Any) -> None:
    optimiser = kind(policy.module.parameters(), lr=0.1)
    policy.module(torch.ones(1, 6)).sum().backward()
    optimiser.step()


def _written(policy: Any) -> None:
    with torch.no_grad():
        policy.module[0].weight[0] += 1.0


def _with_another_weight(policy: Any) -> None:
    policy.module[0].weight = nn.Parameter(policy.module[0].weight.detach() + 1.0)


CHANGES: dict[str, Any] = {
    "trained": lambda policy: _optimised(policy, torch.optim.Adam),
    "loaded": lambda policy: policy.module.load_state_dict(mlp(9).state_dict()),
    "written in place": _written,
    "assigned": lambda policy: policy.module.load_state_dict(mlp(9).state_dict(), assign=True),
    "a parameter replaced": _with_another_weight,
    "a layer replaced": lambda policy: policy.module.__setitem__(2, nn.Linear(16, 4)),
    "an activation replaced": lambda policy: policy.module.__setitem__(1, nn.ReLU()),
    "another network": lambda policy: setattr(policy, "module", mlp(20)),
}


@pytest.mark.parametrize("way", CHANGES)
@pytest.mark.parametrize("strategy", ["batch", "gpu", "auto"])
def test_a_change_of_a_network_is_seen_from_the_next_turn_on(seat: Seat, strategy: str, way: str) -> None:
    """Also in a turn that was sent and not received, where policies act in `recv`."""
    policies = several(deterministic=True)
    wrapper = seat(strategy, policies)
    for number in range(12):
        seen = plain("abc", number)
        if number % 2 and strategy != "auto":
            wrapper.send(seen)
        CHANGES[way](policies["abc"[number % 3]])
        if number in (5, 10):
            _written(policies["b"])
        said = wrapper.recv() if number % 2 and strategy != "auto" else wrapper.step(seen)
        assert said == {agent: reference(one).step(seen[agent]) for agent, one in policies.items()}


@here
def test_a_change_of_an_attribute_is_seen_from_the_next_turn_on(seat: Seat, strategy: str) -> None:
    policies: dict[str, Any] = {
        agent: TorchPolicy(networks.Scaled(seed, 1.0), FOUR, seed=seed, deterministic=True)
        for seed, agent in enumerate("ab")
    }
    wrapper = seat(strategy, policies)
    for number, scales in enumerate([(1.0, 1.0), (-1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0)]):
        for agent, scale in zip("ab", scales, strict=True):
            policies[agent].module.scale = scale
        seen = plain("ab", number)
        assert wrapper.step(seen) == {agent: reference(policies[agent]).step(seen[agent]) for agent in "ab"}
    policies["a"].deterministic = False
    assert len({wrapper.step(seen)["a"] for _ in range(50)}) > 1
    policies["a"].deterministic = True
    assert len({wrapper.step(seen)["a"] for _ in range(20)}) == 1


# ---- what is computed together -------------------------------------------------------------------


def test_what_cannot_be_stacked_is_computed_one_by_one_and_not_tried_for_ever(seat: Seat) -> None:
    policies = {agent: TorchPolicy(networks.Reading(seed), FOUR, seed=seed) for seed, agent in enumerate("ab")}
    wrapper, alone = seat("batch", policies), copy.deepcopy(policies)
    for number in range(6):
        seen = plain("ab", number)
        assert wrapper.step(seen) == stepped_alone(alone, seen)
    [[stacked]] = wrapper._groupings.values()
    assert stacked._failures == 3


@here
def test_masks_of_some_agents_only_are_heeded_also_where_none_is_legal(seat: Seat, strategy: str) -> None:
    only = {"observation": np.ones(6, np.float32), "action_mask": np.array([0, 0, 1, 0], np.int8)}
    seen = {"a": np.ones(6, np.float32), "b": only}
    wrapper, alone = seat(strategy, several("ab")), several("ab")
    for _ in range(10):
        said = wrapper.step(seen)
        assert said == stepped_alone(alone, seen)
        assert said["b"] == 2 + FOUR.start
    batch = {"observation": np.zeros((3, 6)), "action_mask": np.array([[0] * 4, [0, 1, 0, 0], [0] * 4], np.int8)}
    for one in (wrapper, seat("sequential", several("ab"))):
        for alive in (np.array([False, True, False]), np.ones(3, bool)):  # without a warning
            actions = one.step({"a": batch, "b": batch}, {"a": alive, "b": alive})
            assert actions["a"][1] == actions["b"][1] == 1 + FOUR.start


def test_batches_of_different_lengths_share_a_pass_on_any_device(seat: Seat) -> None:
    for wrapper in (seat("batch", several()), seat("gpu", several())):
        alone = seat("sequential", several())
        for turn in range(6):
            rows = {agent: (turn * place) % 4 + 1 for place, agent in enumerate("abc")}
            seen = {agent: observed("a" if turn % 2 else "b", turn, count) for agent, count in rows.items()}
            alive = {agent: np.random.default_rng(turn).random(count) < 0.7 for agent, count in rows.items()}
            assert_same_batch(wrapper.step(seen, alive), alone.step(seen, alive))
        [[stacked]] = wrapper._groupings.values()
        assert stacked._failures == 0


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("rows", [None, 3])
def test_numbers_of_every_kind_are_seen_as_they_are(seat: Seat, kind: Any, rows: int | None) -> None:
    wrapper, alone = seat("batch", several("ab")), seat("sequential", several("ab"))
    shape = (6,) if rows is None else (rows, 2, 3)
    seen = {agent: (np.random.default_rng(ord(agent)).random(shape) * 3).astype(kind) for agent in "ab"}
    alive = None if rows is None else dict.fromkeys("ab", np.array([True, False, True]))
    for _ in range(3):
        assert_same_batch(wrapper.step(seen, alive), alone.step(seen, alive))


def test_a_subclass_that_explores_goes_on_exploring(seat: Seat) -> None:
    policies, alone = ({a: Exploring(mlp(s), FOUR, seed=s) for s, a in enumerate("ab")} for _ in range(2))
    wrapper, seen = seat("batch", policies), {agent: np.zeros((2, 6)) for agent in "ab"}
    assert wrapper.step(seen, dict.fromkeys("ab", np.ones(2, bool)))["a"].tolist() == [99, 99]
    for number in range(10):
        one = plain("ab", number)
        assert wrapper.step(one) == stepped_alone(alone, one)


class Exploring(TorchPolicy):
    turn = 0

    def step(self, observation: Any) -> Any:
        self.turn += 1
        return 99 if self.turn < 5 else super().step(observation)


# ---- what may go wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "batch", "thread", "process"])
def test_a_bad_observation_is_an_error_of_its_agent_only(seat: Seat, strategy: str) -> None:
    good = np.zeros(6, np.float32)
    with pytest.raises(RuntimeError, match="policy of 'b' raised RuntimeError: mat1 and mat2") as caught:
        seat(strategy, several()).step({"a": good, "b": np.zeros(5, np.float32), "c": good})
    assert isinstance(caught.value, PolicyError)
    assert set(caught.value.actions) == {"a", "c"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("strategy", ["thread", "batch", "gpu"])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_observation_that_is_no_number_is_that_of_its_agent_only(seat: Seat, strategy: str, value: float) -> None:
    def made() -> dict[str, Any]:
        boxes = {agent: TorchPolicy(networks.WithStd(seed), BOX, seed=seed) for seed, agent in enumerate("gh")}
        return several() | boxes

    wrapper, reference = seat(strategy, made()), seat("sequential", made())
    for turn in range(4):
        seen = plain("abcgh", turn)
        seen["b"][2] = seen["h"][1] = value
        said, expected = wrapper.step(seen), reference.step(seen)
        assert [said[agent] for agent in "abc"] == [expected[agent] for agent in "abc"]
        for agent in "gh":
            np.testing.assert_allclose(said[agent], expected[agent], atol=1e-5)
    assert_same_batch(wrapper.get_states(), reference.get_states())


def test_a_network_that_returns_a_wrong_shape_is_named(seat: Seat) -> None:
    state = r"policy of 'a' .*initial_state\(3\) of Misshapen returned \[\(1, 3, 8\)\]"
    wrong = r"'a' .*Forgetful returned a state of {} for one of \[\(1, 8\)\]"
    one, rows = (np.zeros(6), None), (np.zeros((3, 6)), {"a": np.ones(3, bool)})
    for network, space, (seen, alive), text in (
        (networks.Misshapen(0), FOUR, rows, state),
        (networks.Forgetful(0, None), FOUR, one, wrong.format("NoneType")),
        (networks.Forgetful(0, ()), FOUR, one, wrong.format(r"\[\]")),
        (networks.Forgetful(0, (torch.zeros(2, 8),)), FOUR, one, wrong.format(r"\[\(2, 8\)\]")),
        (mlp(0), spaces.Discrete(3), one, r"policy of 'a' .*4 logits for the actions of Discrete\(3\)"),
    ):
        for strategy in ("sequential", "thread", "batch", "gpu"):
            with pytest.raises(ValueError, match=text):
                seat(strategy, {"a": TorchPolicy(network, space)}).step({"a": seen}, alive)


@here
def test_a_pass_that_takes_too_long_is_late_for_all_in_it(seat: Seat, strategy: str) -> None:
    slow = {agent: nn.Sequential(networks.Slow(), nn.Linear(6, 4)) for agent in "ab"}
    policies = {agent: TorchPolicy(module, FOUR) for agent, module in slow.items()}
    wrapper = seat(strategy, policies, Rules(action_timeout=0.02, default_action=-1))
    assert wrapper.step(dict.fromkeys("ab", np.zeros(6))) == {"a": -1, "b": -1}
    assert [wrapper.tallies[agent].late for agent in "ab"] == [1, 1]


def test_a_bare_network_is_told_of_torch_policy_which_is_found_beside_the_wrappers(wrap: Wrap) -> None:
    with pytest.raises(TypeError, match=r"Linear.*parallel_envs\.wrappers\.TorchPolicy"):
        wrap({"a": nn.Linear(2, 4)}, "batch")
    assert wrappers.TorchPolicy is TorchPolicy
    assert "TorchPolicy" in dir(wrappers)
    with pytest.raises(TypeError, match="acts in Discrete and Box spaces only"):
        TorchPolicy(mlp(0), spaces.MultiBinary(4))
    policies: dict[Any, Any] = {**several("abcd")}
    assert sharers(policies) == [["a"], ["b"], ["c"], ["d"]]  # of one action space


# ---- the policy itself ---------------------------------------------------------------------------


def test_rows_of_a_recurrent_policy_remember_apart_and_are_reset_apart() -> None:
    policy, reference = (TorchPolicy(networks.Recurrent(0), FOUR, deterministic=True) for _ in range(2))
    batch = np.random.default_rng(0).standard_normal((3, 6))
    for _ in range(3):
        policy.step_batch(batch, rows=np.arange(3))
        reference.step_batch(batch, rows=np.arange(3))
    policy.reset(rows=np.array([1]))
    memory = policy.get_state()["memory"][0]
    assert not memory[1].any()
    np.testing.assert_array_equal(memory[[0, 2]], reference.get_state()["memory"][0][[0, 2]])
    kept = policy.get_state()
    policy.reset()
    policy.set_state(kept)
    policy.step_batch(batch[:1], rows=np.array([2]))
    np.testing.assert_array_equal(policy.get_state()["memory"][0][:2], memory[:2])


# ---- new weights ---------------------------------------------------------------------------------


def test_new_weights_reach_running_workers_and_come_home_all_or_none(wrap: Wrap, strategy: str) -> None:
    given, alone = several("ab", deterministic=True), several("ab", deterministic=True)
    policy, new = wrap(given, strategy), mlp(30).state_dict()
    missing = {name: value for name, value in new.items() if name != "2.bias"}
    misfits = [missing, {**new, "3.bias": new["2.bias"]}, {**new, "2.bias": new["2.bias"][:2]}]
    for misfit in misfits:
        for weights in ({"b": misfit}, {"a": new, "b": {name: value.numpy() for name, value in misfit.items()}}):
            with pytest.raises(ValueError, match="policy of 'b' raised ValueError: The weights do not fit") as caught:
                policy.load_state_dict(weights)
            assert isinstance(caught.value, PolicyError)
    for number in range(20):
        seen = plain("ab", number)
        assert policy.step(seen) == stepped_alone(alone, seen)
    policy.sync()
    assert not torch.equal(given["a"].module.state_dict()["2.bias"], new["2.bias"])
    for number in range(8):
        new = mlp(30 + number).state_dict()
        policy.load_state_dict({"a": new})
        alone["a"].module.load_state_dict(new)
        seen = plain("ab", number)
        assert policy.step(seen) == stepped_alone(alone, seen)
    policy.sync()
    assert all(torch.equal(own, new[name]) for name, own in given["a"].module.state_dict().items())
    assert (given["a"].version > 0, policy.versions) == (True, {"a": 8, "b": 0})


# ---- devices -------------------------------------------------------------------------------------


BAD_SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"device": "tpu-of-mine"}, ValueError, "device='tpu-of-mine' is unknown. Torch has here: cpu"),
    ({"most_turns": 0}, ValueError, "most_turns=0 is too small"),
    ({"most_turns": True}, TypeError, "most_turns=True is not a whole number"),
    ({"gather_seconds": -1.0}, ValueError, "gather_seconds=-1.0 is not a number of seconds"),
]


def test_settings_of_a_device_that_make_no_sense_are_refused(wrap: Wrap) -> None:
    if not torch.cuda.is_available():
        missing = "device='cuda:0' was requested, but torch finds no CUDA device here"
        BAD_SETTINGS.append(({"device": "cuda:0"}, ValueError, missing))
        with pytest.raises(ValueError, match=missing):  # the settings reach the wrapper from here too
            wrap(several("a"), "gpu", device="cuda:0")
    for settings_, error, text in BAD_SETTINGS:
        with pytest.raises(error, match=text):
            PerAgentGPUWrapper({"a": discrete(0)}, **settings_)
    with pytest.raises(ValueError, match="no agent has the strategy 'gpu'"):
        wrap(several("a"), "batch", device="cpu")


class Own(TorchPolicy):
    """Has a `step_batch` of its own."""

    def step_batch(self, observations: Any, rows: Any = None) -> Any:
        return self.compute(self.encode(observations)[0], rows).argmax(-1)


class Here(Own):
    """Computes its network in its own way, where the network is."""

    def compute(self, features: Any, rows: Any = None) -> Any:
        with torch.inference_mode():
            return self.module(torch.as_tensor(features)).numpy()


class Networked:
    """Has a network and is no `TorchPolicy`."""

    def __init__(self) -> None:
        self.network = mlp(0)

    def step(self, observation: Any) -> Any:
        return int(self.network(torch.as_tensor(observation)).argmax())


ON_A_DEVICE: dict[str, Any] = {
    "one": lambda: several("a"),
    "stacked": several,
    "of unequal shapes": lambda: {"a": discrete(0), "b": TorchPolicy(mlp(1, hidden=5), FOUR)},
    "recurrent": lambda: {"a": TorchPolicy(networks.Recurrent(0), FOUR)},
    "with step_batch": lambda: {"a": Own(mlp(0), FOUR)},
    "no chain": lambda: {agent: TorchPolicy(networks.Scaled(0, 1.0), FOUR) for agent in "ab"},
}


@pytest.mark.usefixtures("meta_device")
@pytest.mark.parametrize("kind", ON_A_DEVICE)
@pytest.mark.parametrize("rows", [None, 2])
def test_every_network_is_computed_on_the_device(kind: str, rows: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """From "meta" no number comes back: what is computed elsewhere would give actions."""
    policies = ON_A_DEVICE[kind]()
    seen = {agent: observed("b", 1, rows) for agent in policies}
    alive = None if rows is None else dict.fromkeys(policies, np.ones(rows, bool))
    with PerAgentGPUWrapper(policies, device="meta") as wrapper:
        with pytest.raises(PolicyError, match="Cannot copy out of meta tensor") as caught:
            wrapper.step(seen, alive)
        assert set(caught.value.agents) == set(policies)
    assert "not computed on the device" not in caplog.text
    given, expected = ON_A_DEVICE[kind](), PerAgentSequentialWrapper(ON_A_DEVICE[kind]())
    with gpu(given) as wrapper:
        for _ in range(3):
            assert_same_batch(wrapper.step(seen, alive), expected.step(seen, alive))
    places = [parameter.device for one in given.values() for parameter in one.module.parameters()]
    assert set(places) == {torch.device("cpu")}, "what was given stays where it was"


@pytest.mark.parametrize("policy", [Networked(), Here(mlp(0), FOUR)], ids=lambda policy: type(policy).__name__)
def test_a_network_that_is_computed_elsewhere_is_named_in_a_warning(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with gpu({"a": policy, "b": discrete(0), "c": len}) as wrapper:
        for _ in range(2):
            wrapper.step(dict.fromkeys("abc", np.zeros(6, np.float32)))
    (record,) = caplog.records
    assert f"the policy of 'a', {type(policy).__name__}, has a network that is not computed on" in record.getMessage()


def test_without_a_device_a_warning_says_that_the_cpu_computes(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    PerAgentGPUWrapper(several()).close()
    assert "torch finds no CUDA device here, so networks are computed on the CPU" in caplog.text
    caplog.clear()
    PerAgentGPUWrapper(several(), device="cpu").close()
    assert not caplog.records


@pytest.mark.parametrize("recurrent", [False, True])
def test_tensors_stay_where_the_network_is(recurrent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = (networks.Recurrent(0) if recurrent else mlp(0)).to("meta")
    policy, back = TorchPolicy(network, FOUR, deterministic=True), []

    def noted(tensor: Any) -> Any:
        back.append(tensor.device.type)
        return torch.zeros(tensor.shape)

    monkeypatch.setattr(torch.Tensor, "cpu", noted)
    for _ in range(2):
        assert policy.step_batch(np.zeros((2, 6)), rows=np.arange(2)).tolist() == [2, 2]
    policy.reset(np.array([1]))
    assert back == ["meta", "meta"]
    if recurrent:
        assert [part.device.type for part in policy._memory or ()] == ["meta"]


# ---- what waits for a device -------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    compute = Stack.__call__

    def noted(stack: Any, features: Any) -> Any:
        shapes.append(tuple(features.shape))
        return compute(stack, features)

    monkeypatch.setattr(Stack, "__call__", noted)
    return shapes


def gpu(policies: Any, rules: Any = None, **settings: Any) -> PerAgentGPUWrapper:
    return PerAgentGPUWrapper(policies, rules, device=ELSEWHERE, **settings)


def seen_at(turn: int, agents: str = "abc") -> dict[str, Any]:
    return {agent: observed("b", turn * 100 + ord(agent)) for agent in agents}


def test_agents_that_are_asked_one_by_one_share_a_pass(passes: list[Any]) -> None:
    with gpu(several()) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        for turn in range(4):
            seen = seen_at(turn)
            agents = {agent: wrapper.agent_policy(agent) for agent in seen}
            for agent, one in agents.items():
                one.send(seen[agent])
            assert {agent: one.recv() for agent, one in agents.items()} == reference.step(seen)
    assert passes == [(3, 1, 6)] * 4


def test_successive_turns_share_a_pass_and_are_received_in_their_order(passes: list[Any]) -> None:
    with gpu(several(), most_turns=3) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        for first in range(0, 12, 3):
            for turn in range(first, first + 3):
                wrapper.send(seen_at(turn))
            with pytest.raises(RuntimeError, match="Call recv first"):
                wrapper.send(seen_at(0))
            told = [wrapper.recv() for _ in range(3)]
            assert told == [reference.step(seen_at(turn)) for turn in range(first, first + 3)]
        assert_same_batch(wrapper.get_states(), reference.get_states())
    assert passes == [(3, 3, 6)] * 4


@pytest.mark.parametrize("seed", range(3))
def test_whatever_waits_all_is_as_if_one_turn_came_after_another(seed: int) -> None:
    generator = np.random.default_rng(seed)
    with gpu(mixed() | {"x": Drawing(1)}, most_turns=4) as wrapper:
        reference = PerAgentSequentialWrapper(mixed() | {"x": Drawing(1)})
        for _ in range(6):
            turns = [_drawn_turn(generator) for _ in range(4)]
            for turn in turns:
                wrapper.send(*turn)
            for turn in turns:
                _assert_close(wrapper.recv(), reference.step(*turn))
        states = [{a: own for a, own in one.get_states().items() if a not in "dx"} for one in (wrapper, reference)]
        assert_same_batch(*states)


def _drawn_turn(generator: Any) -> Any:
    """Some agents, with one observation each or with rows of which some are alive."""
    agents = [agent for agent in AGENTS + "x" if generator.random() < 0.7] or ["a"]
    rows = None if generator.random() < 0.5 else int(generator.integers(1, 4))
    seed = int(generator.integers(1 << 30))
    alive = None if rows is None else {agent: generator.random(rows) < 0.6 for agent in agents}
    return {agent: observed(agent, seed, rows) for agent in agents}, alive


def _assert_close(said: Any, expected: Any) -> None:
    assert said.keys() == expected.keys()
    for agent, action in said.items():
        if agent in "gh" and action is not None:
            np.testing.assert_allclose(action, expected[agent], atol=1e-5)
        else:
            assert_same_batch(action, expected[agent])


@pytest.mark.parametrize("rows", [1, 3])
def test_one_observation_and_rows_share_a_pass(passes: list[Any], rows: int) -> None:
    seen, alive = {"a": observed("b", 1, rows)}, {"a": np.ones(rows, bool)}
    with gpu(several()) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        other = wrapper.agent_policy("b")
        for _ in range(3):
            wrapper.send(seen, alive)
            other.send(observed("b", 2))
            assert_same_batch(wrapper.recv(), reference.step(seen, alive))
            assert_same_batch(other.recv(), reference.agent_policy("b").step(observed("b", 2)))
    assert passes == [(2, rows, 6)] * 3


def test_a_bad_observation_is_an_error_of_its_agent_and_its_turn_only() -> None:
    with gpu(several(), most_turns=2) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        good, bad = seen_at(0), {**seen_at(1), "b": np.zeros(5, np.float32)}
        wrapper.send(good)
        wrapper.send(bad)
        assert wrapper.recv() == reference.step(good)
        with pytest.raises(RuntimeError, match="policy of 'b' raised RuntimeError: mat1 and mat2") as caught:
            wrapper.recv()
        assert set(caught.value.actions) == {"a", "c"}  # type: ignore[attr-defined]  # a PolicyError


def test_a_turn_waits_for_others_until_all_have_been_asked(passes: list[Any]) -> None:
    """From three threads: each waits for the other two, and none until the time is up."""
    with gpu(several(), gather_seconds=60.0) as wrapper:
        said: dict[str, Any] = {}
        began = time.monotonic()
        threads = [threading.Thread(target=_stepped, args=(wrapper, agent, said)) for agent in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert time.monotonic() - began < 30.0
        with PerAgentSequentialWrapper(several()) as reference:
            assert said == reference.step(seen_at(0))
    assert passes == [(3, 1, 6)]


def _stepped(wrapper: PerAgentGPUWrapper, agent: str, said: dict[str, Any]) -> None:
    said[agent] = wrapper.agent_policy(agent).step(seen_at(0)[agent])


def test_a_turn_waits_for_others_so_long_and_no_longer() -> None:
    rules = Rules(action_timeout=0.05, default_action=0)
    for its_rules, seconds in ((None, 0.05), (rules, 60.0)):
        with gpu(several(), its_rules, gather_seconds=seconds) as wrapper:
            began = time.monotonic()
            wrapper.step(seen_at(0, "a"))
            assert 0.05 <= time.monotonic() - began < 5.0


def test_a_turn_that_is_given_up_is_not_computed_and_ctrl_c_leaves_none_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gpu({"x": Drawing(1), "y": Drawing(2)}) as wrapper:
        one, other = wrapper.agent_policy("x"), wrapper.agent_policy("y")
        wrapper.send({"x": np.zeros(2)})
        wrapper.abandon()  # a turn that is given up is not computed
        assert wrapper.step({"x": np.zeros(2)})["x"] // 1000 == 1
        one.send(np.zeros(2))
        other.send(np.zeros(2))
        monkeypatch.setattr(wrapper.policies["y"], "step", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.recv()
        with pytest.raises(PolicyError, match="policy of 'y' raised KeyboardInterrupt"):
            other.recv()


def _interrupted(_: Any) -> Any:
    raise KeyboardInterrupt
