"""Torch policies: stacked, on a device, recurrent, masked; the same actions whoever computes them."""

from __future__ import annotations

import copy
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
from parallel_envs.wrappers import STRATEGIES, PerAgentGPUWrapper, PolicyPool, Rules
from parallel_envs.wrappers.sharing import sharers
from tests.wrappers.conftest import CLOSE_SECONDS, Seat, Wrap

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from parallel_envs.rollouts.networks import Mlp as OurMlp  # noqa: E402  # as above
from parallel_envs.wrappers.stacked import DeviceStack, Stack, StagingBuffer, signature  # noqa: E402  # as above
from parallel_envs.wrappers.torch_policy import TorchPolicy  # noqa: E402  # as above
from tests.wrappers import networks  # noqa: E402  # as above

NUM_ROWS = 3
FOUR = spaces.Discrete(4, start=2)
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
AGENTS = "abcdefgh"
HERE = ("thread", "batch", "gpu", "auto")


@pytest.fixture(scope="module")
def workers() -> Iterator[PolicyPool]:
    """Two worker processes for all tests here: each has to load torch, which takes longer than any of them."""
    pool = PolicyPool(2)
    pool.processes()
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


def discrete(seed: int, **more: Any) -> TorchPolicy:
    return TorchPolicy(networks.mlp(seed), FOUR, seed=seed, **more)


def mixed() -> dict[str, Any]:
    """Equal shapes, another shape, a recurrent one, Box actions, a shared one, a deterministic one."""
    shared = discrete(4)
    return {
        "a": discrete(0),
        "b": TorchPolicy(networks.mlp(1, hidden=5), FOUR, seed=1),
        "c": discrete(2),
        "d": TorchPolicy(networks.Recurrent(3), FOUR, seed=3),
        "e": shared,
        "f": shared,
        "g": TorchPolicy(networks.WithStd(5), BOX, seed=5),
        "h": TorchPolicy(networks.WithStd(6), BOX, seed=6),
        "i": discrete(7, deterministic=True),
    }


def observed(agent: str, seed: int, rows: int | None) -> Any:
    generator = np.random.default_rng([seed, ord(agent)])
    shape = () if rows is None else (rows,)
    array = generator.standard_normal((*shape, 2, 3)).astype(np.float32)
    if agent not in "ac":
        return array
    mask = generator.integers(2, size=(*shape, 4), dtype=np.int8)
    mask[..., 1] = 1
    return {"observation": array, "action_mask": mask}


agents = st.sets(st.sampled_from("abcdefghi"), min_size=1).map(sorted)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), agents, st.integers(0, 2**31)),
        st.tuples(st.just("rows"), agents, st.integers(0, 2**31)),
        st.tuples(st.just("reset"), st.one_of(st.none(), agents), st.one_of(st.none(), st.just([0, 2]))),
    ),
    max_size=10,
)


def played(strategy: str, happening: Any, pool: PolicyPool) -> Any:
    with STRATEGIES[strategy](mixed(), None, pool) as wrapper:
        said: list[Any] = []
        for what, who, more in happening:
            if what == "reset":
                wrapper.reset(who, more)
                continue
            rows = NUM_ROWS if what == "rows" else None
            alive = np.random.default_rng(more).random((9, NUM_ROWS)) < 0.7
            masks = {agent: alive[ord(agent) - ord("a")] for agent in who} if rows else None
            said.append(wrapper.step({agent: observed(agent, more, rows) for agent in who}, masks))
        states = {agent: own for agent, (own, _) in wrapper.get_states().items()}
    memories = {agent: state.pop("memory") for agent, state in states.items()}
    return said, states, memories


def check(strategy: str, happening: Any, pool: PolicyPool) -> None:
    said, states, memories = played(strategy, happening, pool)
    expected_said, expected_states, expected_memories = played("sequential", happening, pool)
    for one, expected in zip(said, expected_said, strict=True):
        for agent in one or ():
            if agent in "gh":
                actual, wanted = (np.nan if told[agent] is None else told[agent] for told in (one, expected))
                np.testing.assert_allclose(actual, wanted, atol=1e-5)
            else:
                assert_same_batch(one[agent], expected[agent])
    assert_same_batch(states, expected_states)
    assert_same_batch(memories, expected_memories)


@pytest.mark.parametrize("strategy", HERE)
def test_actions_and_states_are_those_of_the_sequential_strategy(strategy: str, pool: PolicyPool) -> None:
    @settings(max_examples=20)
    @given(happening=happenings)
    def on(happening: Any) -> None:
        check(strategy, happening, pool)

    on()


def test_actions_and_states_in_processes_are_those_of_the_sequential_strategy(pool: PolicyPool) -> None:
    generator = np.random.default_rng(0)
    happening: list[Any] = []
    for number in range(12):
        who = [agent for agent in "abcdefghi" if generator.random() < 0.8] or ["a"]
        happening += [("turn", who, number), ("rows", who, number)]
        if number % 4 == 3:
            happening.append(("reset", None, [0, 2] if number == 3 else None))
    check("process", happening, pool)


# ---- stacks --------------------------------------------------------------------------------------


def outputs(modules: list[Any], features: Any) -> Any:
    with torch.inference_mode():
        return torch.stack([module(own) for module, own in zip(modules, features, strict=True)])


MODULES: dict[str, Any] = {
    "a chain": networks.mlp,
    "ours": lambda seed: OurMlp(6, 4),
    "a chain in a chain": lambda seed: nn.Sequential(networks.mlp(seed), nn.ReLU(), nn.Sequential(nn.Linear(4, 4))),
    "without biases": lambda seed: nn.Linear(6, 4, bias=False),
    "of the name of ours": networks.Mlp,
    "with a norm": lambda seed: nn.Sequential(networks.mlp(seed), nn.LayerNorm(4)),
    "a layer that does more": lambda seed: nn.Sequential(networks.Noisy(6, 4)),
    "with an attribute": lambda seed: networks.Scaled(seed, 2.0),
    "with a hook": lambda seed: _hooked(networks.mlp(seed)),
}


def _hooked(module: Any) -> Any:
    module[0].register_forward_hook(_doubled)
    return module


def _doubled(module: Any, given: Any, out: Any) -> Any:
    return out * 2


@pytest.mark.parametrize("kind", MODULES)
def test_a_stack_computes_what_its_modules_compute(kind: str) -> None:
    modules = [MODULES[kind](seed) for seed in range(3)]
    assert len({signature(module) for module in modules}) == 1
    features = torch.randn(3, 5, 6)
    for stack in (Stack(modules), DeviceStack(modules, "cpu")):
        for _ in range(2):
            torch.testing.assert_close(stack(features), outputs(modules, features), atol=1e-5, rtol=1e-5)


TRAINING: dict[str, Any] = {
    "an optimiser": lambda module: _optimised(module, torch.optim.SGD),
    "Adam": lambda module: _optimised(module, torch.optim.Adam),
    "load_state_dict": lambda module: module.load_state_dict(networks.mlp(9).state_dict()),
}


def _optimised(module: Any, kind: Any) -> None:
    optimiser = kind(module.parameters(), lr=0.1)
    module(torch.ones(1, 6)).sum().backward()
    optimiser.step()


def _written(module: Any) -> None:
    with torch.no_grad():
        module[0].weight[0] += 1.0


TRAINING["writing in place"] = _written


@pytest.mark.parametrize("way", TRAINING)
@pytest.mark.parametrize("strategy", ["batch", "gpu", "auto"])
def test_training_in_place_is_seen_from_the_next_turn_on(seat: Seat, strategy: str, way: str) -> None:
    policies = {agent: discrete(seed, deterministic=True) for seed, agent in enumerate("abc")}
    wrapper = seat(strategy, policies)
    for number in range(12):
        TRAINING[way](policies["abc"[number % 3]].module)
        seen = {agent: np.random.default_rng(number).standard_normal(6) for agent in "abc"}
        assert wrapper.step(seen) == {agent: one.step(seen[agent]) for agent, one in policies.items()}


def test_another_network_is_seen_from_the_next_turn_on(seat: Seat) -> None:
    policies = {agent: discrete(seed, deterministic=True) for seed, agent in enumerate("abc")}
    wrapper = seat("batch", policies)
    for number in range(6):
        policies["b"].module = networks.mlp(20 + number)
        seen = {agent: np.random.default_rng(number).standard_normal(6) for agent in "abc"}
        assert wrapper.step(seen) == {agent: one.step(seen[agent]) for agent, one in policies.items()}


@pytest.mark.parametrize(
    "modules",
    [
        (networks.mlp(0), networks.mlp(0, hidden=5)),
        (networks.Scaled(0, 1.0), networks.Scaled(0, 2.0)),
        (nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.1)), nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.2))),
        (nn.Linear(6, 4), nn.Linear(6, 4).double()),
        (nn.Linear(6, 4), networks.Noisy(6, 4)),
        (networks.mlp(0), _hooked(networks.mlp(0))),
        (nn.Linear(6, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))),
    ],
)
def test_networks_that_compute_something_else_are_not_stacked(modules: Any) -> None:
    one, other = modules
    assert signature(one) == signature(copy.deepcopy(one))
    assert signature(one) != signature(other)


def computed_as_alone(seat: Seat, policies: dict[str, Any], turns: int = 4, seen: Any = None) -> Any:
    """A batch wrapper, whose actions are those of the policies by themselves."""
    wrapper, alone = seat("batch", policies), copy.deepcopy(policies)
    for number in range(turns):
        given = seen or {agent: np.random.default_rng([number, ord(agent)]).standard_normal(6) for agent in policies}
        assert wrapper.step(given) == {agent: one.step(given[agent]) for agent, one in alone.items()}
    return wrapper


def test_an_attribute_that_changes_later_counts(seat: Seat) -> None:
    policies: dict[str, Any] = {
        a: TorchPolicy(networks.Scaled(s, 1.0), FOUR, seed=s, deterministic=True) for s, a in enumerate("ab")
    }
    computed_as_alone(seat, policies)
    wrapper = seat("batch", policies)
    seen = {agent: np.random.default_rng(1).standard_normal(6) for agent in "ab"}
    wrapper.step(seen)
    policies["b"].module.scale = -1.0
    assert wrapper.step(seen) == {agent: one.step(seen[agent]) for agent, one in policies.items()}


def test_a_policy_that_turns_deterministic_is_so_from_the_next_turn_on(seat: Seat) -> None:
    policies = {agent: discrete(seed) for seed, agent in enumerate("ab")}
    wrapper = seat("batch", policies)
    seen = {agent: np.random.default_rng(1).standard_normal(6) for agent in "ab"}
    wrapper.step(seen)
    policies["b"].deterministic = True
    assert len({wrapper.step(seen)["b"] for _ in range(20)}) == 1
    policies["b"].deterministic, policies["a"].deterministic = False, True
    assert len({wrapper.step(seen)["b"] for _ in range(50)}) > 1


def test_what_cannot_be_stacked_is_computed_one_by_one_and_not_tried_for_ever(seat: Seat) -> None:
    policies = {agent: TorchPolicy(networks.Reading(seed), FOUR, seed=seed) for seed, agent in enumerate("ab")}
    wrapper = computed_as_alone(seat, policies, turns=6)
    [[stacked]] = wrapper._groupings.values()
    assert stacked._failures == 3


def test_masks_of_some_agents_only_are_heeded(seat: Seat) -> None:
    only = {"observation": np.ones(6, np.float32), "action_mask": np.array([0, 0, 1, 0], np.int8)}
    seen = {"a": np.ones(6, np.float32), "b": only}
    wrapper = computed_as_alone(seat, {agent: discrete(seed) for seed, agent in enumerate("ab")}, seen=seen)
    assert {wrapper.step(seen)["b"] for _ in range(10)} == {2 + FOUR.start}


def test_batches_of_different_lengths_are_computed_all_the_same(seat: Seat) -> None:
    policies = {agent: discrete(seed) for seed, agent in enumerate("ab")}
    wrapper, alone = seat("batch", policies), seat("sequential", copy.deepcopy(policies))
    seen = {"a": np.ones((2, 6)), "b": np.ones((5, 6))}
    alive = {"a": np.ones(2, bool), "b": np.ones(5, bool)}
    assert_same_batch(wrapper.step(seen, alive), alone.step(seen, alive))


@pytest.mark.parametrize("strategy", ["sequential", "batch"])
def test_rows_without_a_legal_action_raise_no_warning(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {agent: discrete(seed) for seed, agent in enumerate("ab")})
    batch = {"observation": np.zeros((3, 6)), "action_mask": np.array([[0] * 4, [0, 1, 0, 0], [0] * 4], np.int8)}
    for alive in (np.array([False, True, False]), np.ones(3, bool)):
        actions = wrapper.step({"a": batch, "b": batch}, {"a": alive, "b": alive})
        assert actions["a"][1] == actions["b"][1] == 1 + FOUR.start


def test_a_subclass_that_explores_goes_on_exploring(seat: Seat) -> None:
    policies = {agent: Exploring(networks.mlp(seed), FOUR, seed=seed) for seed, agent in enumerate("ab")}
    wrapper = seat("batch", policies)
    seen, alive = {agent: np.zeros((2, 6)) for agent in "ab"}, {agent: np.ones(2, bool) for agent in "ab"}
    assert wrapper.step(seen, alive)["a"].tolist() == [99, 99]
    computed_as_alone(seat, policies, turns=10)


class Exploring(TorchPolicy):
    """Says 99 in the first steps of its life."""

    turn = 0

    def step(self, observation: Any) -> Any:
        self.turn += 1
        return 99 if self.turn < 5 else super().step(observation)


@pytest.mark.parametrize("strategy", ["sequential", "batch", "thread", "process"])
def test_a_bad_observation_is_an_error_of_its_agent_only(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {agent: discrete(seed) for seed, agent in enumerate("abc")})
    good = np.zeros(6, np.float32)
    with pytest.raises(RuntimeError, match="policy of 'b' raised RuntimeError: mat1 and mat2") as caught:
        wrapper.step({"a": good, "b": np.zeros(5, np.float32), "c": good})
    assert isinstance(caught.value, PolicyError)
    assert set(caught.value.actions) == {"a", "c"}


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


def test_a_recurrent_state_of_the_wrong_shape_is_an_error_that_names_agent_and_network(
    wrap: Wrap, strategy: str
) -> None:
    policy = wrap({"a": TorchPolicy(networks.Misshapen(0), FOUR)}, strategy)
    with pytest.raises(ValueError, match=r"policy of 'a' .*initial_state\(3\) of Misshapen returned \[\(1, 3, 8\)\]"):
        policy.step({"a": np.zeros((3, 6))}, {"a": np.ones(3, bool)})


@pytest.mark.parametrize(
    ("state", "shown"), [(None, "NoneType"), ((), r"\[\]"), ((torch.zeros(2, 8),), r"\[\(2, 8\)\]")]
)
def test_a_next_state_of_the_wrong_shape_is_an_error_that_names_agent_and_network(
    seat: Seat, state: Any, shown: str
) -> None:
    for strategy in ("sequential", "thread", "batch"):
        wrapper = seat(strategy, {"a": TorchPolicy(networks.Forgetful(0, state), FOUR)})
        with pytest.raises(ValueError, match=rf"'a' .*Forgetful returned a state of {shown} for one of \[\(1, 8\)\]"):
            wrapper.step({"a": np.zeros(6)})


def test_new_weights_reach_running_workers(wrap: Wrap, strategy: str) -> None:
    policy = wrap({agent: discrete(seed, deterministic=True) for seed, agent in enumerate("ab")}, strategy)
    seen = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    for number in range(8):
        new = networks.mlp(30 + number)
        policy.load_state_dict({"a": new.state_dict()})
        expected = TorchPolicy(new, FOUR, deterministic=True).step(seen[number])
        assert policy.step({"a": seen[number], "b": seen[number]})["a"] == expected


def test_new_weights_come_home_all_or_none(wrap: Wrap, strategy: str) -> None:
    given = {agent: discrete(seed) for seed, agent in enumerate("ab")}
    policy, new = wrap(given, strategy), networks.mlp(30).state_dict()
    misfit = {**new, "2.bias": new["2.bias"][:2]}
    with pytest.raises(ValueError, match="policy of 'b' raised ValueError: The weights do not fit"):
        policy.load_state_dict({"a": new, "b": misfit})
    policy.sync()
    assert not torch.equal(given["a"].module.state_dict()["2.bias"], new["2.bias"])
    policy.load_state_dict({"a": new})
    policy.sync()
    assert all(torch.equal(own, new[name]) for name, own in given["a"].module.state_dict().items())
    assert (given["a"].version, policy.versions) == (1, {"a": 1, "b": 0})


@pytest.mark.parametrize("odd", ["missing", "unknown", "of another shape"])
def test_weights_that_do_not_fit_change_nothing(wrap: Wrap, strategy: str, odd: str) -> None:
    given = discrete(0, deterministic=True)
    policy, before = wrap({"a": given}, strategy), discrete(0, deterministic=True)
    weights = {name: value.numpy() for name, value in networks.mlp(1).state_dict().items()}
    if odd == "missing":
        del weights["2.bias"]
    elif odd == "unknown":
        weights["3.bias"] = weights["2.bias"]
    else:
        weights["2.bias"] = weights["2.bias"][:2]
    with pytest.raises(ValueError, match="policy of 'a' raised ValueError: The weights do not fit") as caught:
        policy.load_state_dict({"a": weights})
    assert isinstance(caught.value, PolicyError)
    for seed in range(20):
        seen = np.random.default_rng(seed).standard_normal(6).astype(np.float32)
        assert policy.step({"a": seen}) == {"a": before.step(seen)}


def test_a_network_of_the_wrong_size_says_so(seat: Seat) -> None:
    wrapper = seat("batch", {"a": TorchPolicy(networks.mlp(0), spaces.Discrete(3))})
    with pytest.raises(ValueError, match=r"policy of 'a' .*4 logits for the actions of Discrete\(3\)"):
        wrapper.step({"a": np.zeros(6)})


def test_a_space_that_a_torch_policy_cannot_act_in_is_refused() -> None:
    with pytest.raises(TypeError, match="acts in Discrete and Box spaces only"):
        TorchPolicy(networks.mlp(0), spaces.MultiBinary(4))


def test_one_action_space_of_all_agents_keeps_nobody_together() -> None:
    space = spaces.Discrete(4)
    policies: dict[Any, Any] = {agent: TorchPolicy(networks.mlp(seed), space) for seed, agent in enumerate("abcd")}
    assert sharers(policies) == [["a"], ["b"], ["c"], ["d"]]


# ---- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_on_the_cpu_the_device_wrapper_equals_the_batch_wrapper(seat: Seat, device: str) -> None:
    batch = seat("batch", {agent: discrete(seed) for seed, agent in enumerate("abc")})
    with PerAgentGPUWrapper({agent: discrete(seed) for seed, agent in enumerate("abc")}, device=device) as gpu:
        for number in range(5):
            seen = {agent: observed("b", number, number + 1) for agent in "abc"}
            alive = {agent: np.ones(number + 1, bool) for agent in "abc"}
            assert_same_batch(gpu.step(seen, alive), batch.step(seen, alive))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="device='cuda:0' was requested, but torch finds no CUDA device here"):
        PerAgentGPUWrapper({"a": discrete(0)}, device="cuda:0")


@pytest.mark.parametrize("device", ["tpu-of-mine", ""])
def test_an_unknown_device_is_a_clear_error(device: str) -> None:
    with pytest.raises(ValueError, match=f"device='{device}' is unknown"):
        PerAgentGPUWrapper({"a": discrete(0)}, device=device)


def test_the_staging_buffer_grows_to_the_largest_turn_and_stays() -> None:
    staging = StagingBuffer(pinned=False)
    places = []
    for rows in (2, 5, 1, 5, 3):
        features = torch.randn(3, rows, 6)
        staged = staging(features)
        assert torch.equal(staged, features)
        places.append(staged.data_ptr())
    assert len(set(places[1:])) == 1
    assert staging._buffer.numel() == 3 * 5 * 6


def test_a_stack_on_a_device_sees_training_of_the_networks_that_were_given() -> None:
    modules = [networks.mlp(seed) for seed in range(2)]
    stack = DeviceStack(modules, "cpu")
    features = torch.randn(2, 1, 6)
    stack(features)
    _written(modules[1])
    torch.testing.assert_close(stack(features), outputs(modules, features))


# ---- what may go wrong with networks -------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("strategy", ["thread", "batch", "gpu"])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_observation_that_is_no_number_is_that_of_its_agent_only(seat: Seat, strategy: str, value: float) -> None:
    def made() -> dict[str, Any]:
        boxes = {agent: TorchPolicy(networks.WithStd(seed), BOX, seed=seed) for seed, agent in enumerate("gh")}
        return {agent: discrete(seed) for seed, agent in enumerate("abc")} | boxes

    wrapper, reference = seat(strategy, made()), seat("sequential", made())
    for turn in range(4):
        seen = {agent: np.random.default_rng([turn, ord(agent)]).standard_normal(6) for agent in "abcgh"}
        seen["b"][2] = seen["h"][1] = value
        said, expected = wrapper.step(seen), reference.step(seen)
        assert [said[agent] for agent in "abc"] == [expected[agent] for agent in "abc"]
        for agent in "gh":
            np.testing.assert_allclose(said[agent], expected[agent], atol=1e-5)
    assert_same_batch(wrapper.get_states(), reference.get_states())


def _assigned(module: Any) -> None:
    module.load_state_dict(networks.mlp(9).state_dict(), assign=True)


def _replaced(module: Any) -> None:
    module[0].weight = nn.Parameter(module[0].weight.detach() + 1.0)


def _with_another_layer(module: Any) -> None:
    module[2] = nn.Linear(16, 4)


def _with_another_activation(module: Any) -> None:
    module[1] = nn.ReLU()


@pytest.mark.parametrize("way", [_assigned, _replaced, _with_another_layer, _with_another_activation])
@pytest.mark.parametrize("strategy", ["batch", "gpu"])
def test_parts_that_are_replaced_are_seen_from_the_next_turn_on(seat: Seat, strategy: str, way: Any) -> None:
    policies = {agent: discrete(seed, deterministic=True) for seed, agent in enumerate("abc")}
    wrapper = seat(strategy, policies)
    for number in range(8):
        if number % 3 == 1:
            way(policies["b"].module)
        if number == 5:
            _written(policies["b"].module)
        seen = {agent: np.random.default_rng(number).standard_normal(6) for agent in "abc"}
        assert wrapper.step(seen) == {agent: one.step(seen[agent]) for agent, one in policies.items()}


def test_weights_that_are_pushed_between_send_and_recv_count_where_policies_act_in_recv(seat: Seat) -> None:
    for strategy in ("sequential", "batch", "gpu"):
        policies = {agent: discrete(seed, deterministic=True) for seed, agent in enumerate("ab")}
        wrapper = seat(strategy, policies)
        seen = {agent: np.random.default_rng(3).standard_normal(6) for agent in "ab"}
        wrapper.step(seen)
        wrapper.send(seen)
        _written(policies["b"].module)
        assert wrapper.recv() == {agent: one.step(seen[agent]) for agent, one in policies.items()}


def test_batches_of_different_lengths_share_a_pass(seat: Seat) -> None:
    policies = {agent: discrete(seed) for seed, agent in enumerate("abc")}
    wrapper, alone = seat("batch", policies), seat("sequential", copy.deepcopy(policies))
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
    policies = {agent: discrete(seed) for seed, agent in enumerate("ab")}
    wrapper, alone = seat("batch", policies), seat("sequential", copy.deepcopy(policies))
    shape = (6,) if rows is None else (rows, 2, 3)
    seen = {agent: (np.random.default_rng(ord(agent)).random(shape) * 3).astype(kind) for agent in "ab"}
    alive = None if rows is None else dict.fromkeys("ab", np.array([True, False, True]))
    for _ in range(3):
        assert_same_batch(wrapper.step(seen, alive), alone.step(seen, alive))


@pytest.mark.parametrize("strategy", ["batch", "gpu"])
def test_a_pass_that_takes_too_long_is_late_for_all_in_it(seat: Seat, strategy: str) -> None:
    policies: dict[str, Any] = {
        agent: TorchPolicy(nn.Sequential(networks.Slow(), nn.Linear(6, 4)), FOUR, seed=seed)
        for seed, agent in enumerate("ab")
    }
    wrapper = seat(strategy, policies, Rules(action_timeout=0.02, default_action=-1))
    assert wrapper.step(dict.fromkeys("ab", np.zeros(6))) == {"a": -1, "b": -1}
    assert [wrapper.tallies[agent].late for agent in "ab"] == [1, 1]


def test_a_bare_network_is_told_of_torch_policy_which_is_found_beside_the_wrappers(wrap: Wrap) -> None:
    with pytest.raises(TypeError, match=r"Linear.*parallel_envs\.wrappers\.TorchPolicy"):
        wrap({"a": nn.Linear(2, 4)}, "batch")
    assert wrappers.TorchPolicy is TorchPolicy
    assert "TorchPolicy" in dir(wrappers)


def test_by_default_nothing_is_measured_and_actions_are_those_of_each_policy_alone(wrap: Wrap) -> None:
    def policies() -> dict[str, Any]:
        space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        return {agent: TorchPolicy(networks.mlp(seed), space) for seed, agent in enumerate("abcd")}

    together, alone = wrap(policies()), policies()
    for number in range(12):
        seen = {agent: np.random.default_rng(number).standard_normal(6, np.float32) for agent in alone}
        actions = together.step(seen)
        for agent, policy in alone.items():
            np.testing.assert_array_equal(actions[agent], policy.step(seen[agent]))
    assert together.strategy == "sequential"
