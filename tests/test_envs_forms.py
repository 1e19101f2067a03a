"""Blocks and heads that know no size, the residual over a policy."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.envs.action_heads.pools import FineInstanceCounts, InstanceCounts
from llmscale_env.envs.action_heads.size_free import times
from llmscale_env.envs.actions import HEADS
from llmscale_env.envs.observation_blocks.size_free import binned_quantile
from llmscale_env.envs.placement import PlacementEnv
from llmscale_env.envs.service import Service, positive_share
from llmscale_env.scenarios import load_scenario
from tests.env_kinds import SHORT, assert_equal_to_singles, assert_replayed, masks_of, played
from tests.small_world import SMALL_WORLD, SmallEnv, SmallVectorEnv

BLOCKS = ("class_load", "urgency", "pool_state", "slo_tails", "last_action")
SIZES = {
    16: SHORT,
    48: {
        "horizon_s": 120,
        "workload.rate_scale": 1.5,
        "fleet.max_gpus": 48,
        "fleet.pools.*.max_instances": 48,
        "fleet.pools.interactive.initial_instances": 12,
        "fleet.pools.mixed.initial_instances": 12,
    },
}


def make(size=16, **arguments):
    defaults = {"observation": BLOCKS, "action": ("instance_changes_scaled", "routing_share")}
    return SmallEnv(overrides=SIZES[size], **(defaults | arguments))


# ---- blocks ----


def test_one_network_serves_clusters_of_two_sizes():
    small, large = make(16), make(48)
    assert small.observation_space == large.observation_space
    assert small.action_space == large.action_space
    entries = [[e.name for e in env.codec.encoder.entries] for env in (small, large)]
    assert entries[0] == entries[1]
    weights = np.random.default_rng(0).normal(size=(small.observation_space.shape[0], 29))
    nvec = small.action_space.nvec

    for env in (small, large):
        observation, truncated = env.reset(seed=0)[0], False
        while not truncated:
            scores = np.split(observation @ weights, np.cumsum(nvec)[:-1])
            action = np.array([int(np.argmax(part)) for part in scores])
            observation, _, _, truncated, _ = env.step(action)
            assert env.observation_space.contains(observation)


def test_three_times_the_cluster_at_three_times_the_rate_looks_much_the_same():
    """Fleets in proportion to their load, left as they are: a network need not tell them apart."""
    means = []
    for size in SIZES:
        env = make(size)
        env.reset(seed=0)
        seen = [env.step(np.array([3, 3, 3, 0]))[0] for _ in range(12)]
        means.append(np.mean(seen, axis=0))
    names = [e.name for e in env.codec.encoder.entries]
    apart = np.abs(means[0] - means[1])
    own = [name.endswith("/one") for name in names]
    assert apart[~np.array(own)].max() < 0.15, names[int(np.argmax(apart * ~np.array(own)))]
    # One instance of twelve weighs less than one of four.
    assert apart[own].max() > 0.1


def test_load_is_tokens_asked_for_over_what_instances_serve():
    scenario = load_scenario(SMALL_WORLD, **SHORT)
    service = Service(scenario)
    assert service.serves.tolist() == [[True, True, False], [True, True, True]]
    a, b = service.per_input_s[0, 0], service.per_output_s[0, 0]
    asked = np.array([[3000.0, 0.0]]), np.array([[500.0, 0.0]])
    load = service.load(np.array([[2, 3, 7]]), *asked)
    # Five instances serve interactive requests.
    assert load[0, 0] == pytest.approx((3000 * a + 500 * b) / 5)
    assert load[0, 1] == 0.0
    assert service.load(np.zeros((1, 3), int), *asked)[0, 0] > 1e6
    # The looser ITL target of batch requests allows larger batches, so their tokens cost no more.
    assert service.per_output_s[1, 0] <= b


def test_load_of_split_phases_is_that_of_the_slower_one():
    scenario = load_scenario("burst-multicast")
    service = Service(scenario)
    phases = [pool.phase for pool in scenario.fleet.pools]
    assert set(phases) == {"prefill", "decode"}
    p, d = phases.index("prefill"), phases.index("decode")
    counts = np.zeros((1, len(phases)))
    counts[0, [p, d]] = (2, 3)
    shape = (1, len(scenario.classes))
    inputs, outputs = np.full(shape, 1000.0), np.full(shape, 200.0)
    prefill = 1000 * service.per_input_s[0, p] / 2
    decode = 200 * service.per_output_s[0, d] / 3
    assert service.load(counts, inputs, outputs)[0, 0] == pytest.approx(max(prefill, decode))


def test_drain_time_counts_instances_as_they_come():
    env = make()
    env.reset(seed=0)
    env.step(np.array([3, 3, 3, 0]))
    service, now = Service(env.scenario), env.core.snapshot()
    inputs, outputs = service.tokens_each(now)

    def drain(active, coming):
        pools = now.pools.copy()
        pools["active"], pools["load_bins"] = active, 0
        pools["load_bins"][:, 0, 1] = coming  # taken to serve in 15 s
        return service.drain_s(replace(now, pools=pools), np.array([[100.0, 0.0]]))[0, 0]

    rate = float(service.rate(np.array([[1, 0, 0]]), inputs, outputs)[0, 0])
    assert drain([1, 0, 0], 0) == pytest.approx(100 / rate)
    assert drain([0, 0, 0], 2) == pytest.approx(15 + 50 / rate)
    both = (100 + 2 * rate * 15) / (3 * rate)
    assert drain([1, 0, 0], 2) == pytest.approx(min(100 / rate, both))
    assert drain([0, 0, 0], 0) == 1e9


def test_who_will_be_late_by_hand():
    """100 requests a second are served; 3,000 wait, evenly 0 to 20 s from their deadline."""
    env = make()
    env.reset(seed=0)
    env.step(np.array([3, 3, 3, 0]))
    service, now = Service(env.scenario), env.core.snapshot()
    tally, queues, pools = now.tally.copy(), now.queues.copy(), now.pools.copy()
    tally["arrived"], tally["started"], tally["rejected"] = 3000, [[3000, 0]], 0
    queues["slack_bins"], queues["fresh"], queues["requests"] = 0, 3000, 3000
    queues["slack_bins"][0, 0] = [500, 2500, 0, 0, 0]
    pools["oldest_ps"], pools["load_bins"] = -1, 0
    service.ttft_s = np.array([10.0, 200.0])
    service.rate = lambda instances, *_: (
        np.full(2, 100.0) * (instances.sum(axis=-1, keepdims=True) > 0)
    )
    service.load_now = lambda now: np.zeros((1, 2))
    late = service.will_be_late(replace(now, tally=tally, queues=queues, pools=pools))
    # In the bin of 0 to 20 s left the first is served at 5 s, the last at 30 s: 5 s late, 10 s late.
    assert late.tolist() == [[0.0, 2500.0]]
    queues["slack_bins"][0, 0] = [0, 1000, 0, 1000, 1000]
    # First at 0 s with 0 s left, last at 10 s with 20 s left; the others have more left still.
    late = service.will_be_late(replace(now, tally=tally, queues=queues, pools=pools))
    assert late.tolist() == [[0.0, 0.0]]
    queues["slack_bins"][0, 0] = [0, 3000, 0, 0, 0]
    late = service.will_be_late(replace(now, tally=tally, queues=queues, pools=pools))
    assert late.tolist() == [[0.0, 3000.0]]
    queues["slack_bins"][0, 0] = [500, 1000, 0, 0, 0]
    # From 5 s (0 s left) to 15 s (20 s left): the first half is late.
    queues["fresh"] = queues["requests"] = tally["arrived"] = 1500
    tally["started"] = [[1500, 0]]
    late = service.will_be_late(replace(now, tally=tally, queues=queues, pools=pools))
    assert late[0, 1] == pytest.approx(500.0)


def test_share_of_a_line_above_zero():
    first, last = np.array([-1.0, 1.0, -1.0, 2.0, 0.0]), np.array([-2.0, 3.0, 3.0, -2.0, 0.0])
    assert positive_share(first, last).tolist() == [0.0, 1.0, 0.75, 0.5, 0.0]


def test_quantile_of_bins():
    bins = np.zeros((1, 3, 8), int)
    bins[0, 0, 1] = 100  # all between 0.1 and 0.25
    bins[0, 1, 7] = 10  # all above 2
    largest = np.array([[0.2, 3.0, 0.0]])
    found = binned_quantile(bins, largest, 0.95)[0]
    assert found[0] == pytest.approx(0.1 + 0.1 * 0.95)
    assert found[1] == pytest.approx(2.0 + 1.0 * 0.95)
    assert found[2] == 0.0


def test_tails_of_the_interval_are_those_of_its_requests():
    env = make(observation=("slo_tails",))
    env.reset(seed=0)
    for _ in range(3):
        observation = env.step(np.array([3, 3, 3, 0]))[0]
    begin, end = 20e12, 30e12
    rows, table = env.core.sim.engine.results(0), env.core.sim.requests[0]
    mine = (rows["first_token_ps"] > begin) & (rows["first_token_ps"] <= end)
    mine &= table.slo_class == 0
    ttft = (rows["first_token_ps"] - table.arrival_ps)[mine] / 10e12
    edges = np.array([0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, np.inf])
    low = edges[np.searchsorted(edges, np.quantile(ttft, 0.95), side="right") - 1]
    high = edges[np.searchsorted(edges, np.quantile(ttft, 0.95), side="right")]
    assert len(ttft) > 20
    assert low - 1e-6 <= observation[0] * 2 <= min(high, ttft.max()) + 1e-6


def test_blocks_read_alike_for_split_phases_and_shared_groups():
    for name in ("burst-multicast", "multi-model-queue", "placement", "aladdin-13b-a100"):
        scenario = load_scenario(name)
        env = PlacementEnv(scenario, observation=BLOCKS, action=("batch_limits",))
        assert env.observation_space.contains(env.reset(seed=0)[0])
        for _ in range(3):
            observation = env.step(np.array(env.action_space.nvec) - 1)[0]
            assert env.observation_space.contains(observation)


# ---- heads ----


def test_factors_round_away_and_leave_one():
    counts, percents = np.arange(5)[:, None], np.array([50, 70, 85, 100, 115, 130, 200])
    assert times(counts, percents).tolist() == [
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 2, 2, 2],
        [1, 1, 1, 2, 3, 3, 4],
        [1, 2, 2, 3, 4, 4, 6],
        [2, 2, 3, 4, 5, 6, 8],
    ]
    assert times(np.array([20]), np.array([115])).tolist() == [23]  # not 24: no rounding of 22.999


@pytest.mark.parametrize("head", ["instances", "instance_counts", "instance_changes_scaled"])
def test_masked_choices_of_counts_are_never_clipped_one_pool_at_a_time(head):
    env = SmallEnv(overrides={**SHORT, "fleet.max_gpus": 11}, action=(head,))
    rng = np.random.default_rng(0)
    neutral = {"instances": 3, "instance_changes_scaled": 3}
    tried = 0
    for seed in range(4):
        env.reset(seed=seed)
        for _ in range(12):
            masks = masks_of(env)
            have = [env.view().instances_of(p) for p in range(3)]
            if head == "instance_counts":
                levels = [int(choice) for choice in env.codec.decoder.choices[0]]
                if any(n not in levels for n in have):
                    break
                action = np.array([levels.index(n) for n in have])
            else:
                action = np.full(3, neutral[head])
            pool = rng.integers(3)
            action[pool] = rng.choice(np.flatnonzero(masks[pool]))
            assert env.step(action)[4]["clipped"] == 0
            tried += 1
    assert tried > 20


def test_scaled_changes_say_what_they_do():
    env = make()
    env.reset(seed=0)  # 4, 4, 0
    for action, counts in (((0, 4, 5), (2, 5, 1)), ((2, 1, 2), (1, 3, 0)), ((0, 7, 3), (1, 6, 0))):
        env.step(np.array([*action, 0]))
        assert [env.view().instances_of(p) for p in range(3)] == list(counts)
    first, _, third, _ = masks_of(env)
    assert first.tolist()[:4] == [False, False, True, True]  # of one, half is one
    assert third.tolist() == [False, False, False, True, True, True, True, True]


def test_fine_batch_limits_have_those_of_the_coarse_and_the_middles_between():
    coarse, fine = (
        SmallEnv(action=("batch_limits",)),
        SmallEnv(action=("batch_limits_fine",)),
    )
    fine.reset(seed=0)
    few, many = coarse.codec.decoder, fine.codec.decoder
    assert few.parts == many.parts
    levels = [int(text) for text in many.choices[1]]
    assert set(map(int, few.choices[1])) < set(levels)
    assert max(b / a for a, b in pairwise(levels)) == 1.5
    command = fine.codec.decode(np.array([1, levels.index(96), 0]), fine.view())
    assert command.batch_limits == {"interactive": 12, "mixed": 96, "batch": 8}


def test_fine_counts_know_every_small_fleet():
    coarse = SmallEnv(action=("instance_counts",)).codec.decoder
    env = SmallEnv(action=("instance_counts_fine",))
    env.reset(seed=0)
    fine = env.codec.decoder
    assert coarse.parts == fine.parts
    assert fine.choices[1] == [str(n) for n in range(17)]  # 16 slots
    targets = env.codec.decode(np.array([7, 9, 0]), env.view()).targets
    assert targets == {"interactive": 7, "mixed": 9}  # nothing is in the pool of batch requests
    levels = FineInstanceCounts.levels
    assert set(InstanceCounts.levels) < set(levels)
    assert (levels[17:] <= 1.25 * levels[16:-1]).all()


def test_shares_are_counts_of_a_fleet_of_any_size():
    decoders = {size: make(size, action=("instance_shares",)).codec.decoder for size in SIZES}
    fine = make(action=("instance_counts_fine",)).codec.decoder
    assert decoders[16].parts == fine.parts
    assert decoders[16].choices == fine.choices
    assert decoders[16].nvec.tolist() == decoders[48].nvec.tolist()
    assert decoders[48].choices[1] == [str(3 * n) for n in range(17)]
    few = SmallEnv(
        overrides={**SHORT, "fleet.pools.*.max_instances": 6}, action=("instance_shares",)
    )
    levels = [int(text) for text in few.codec.decoder.choices[1]]
    assert levels == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6]
    few.reset(seed=0)
    targets = few.codec.decode(np.array([1, 16, 0]), few.view()).targets
    assert targets == {"interactive": 1, "mixed": 6}


def test_two_heads_for_the_same_counts_are_refused():
    with pytest.raises(ValueError, match="name one of them"):
        SmallEnv(action=("instances", "instance_changes_scaled"))
    with pytest.raises(ValueError, match="name one of them"):
        SmallEnv(action=("instance_counts_fine", "instance_counts"))
    with pytest.raises(ValueError, match="batch limits; name one of them"):
        SmallEnv(action=("batch_limits", "batch_limits_fine"))
    assert "residual" in HEADS


# ---- residual over a policy ----

LLUMNIX = "llumnix:high=0.1,low=0.05,batch_limit=64,rebalance=false"
REFERENCES = (LLUMNIX, "chiron", "static:interactive=3,mixed=5,mixed.batch_limit=96")


def residual(policy, **arguments):
    given = {"action": ("residual",), "reference": make_policy(policy)} | arguments
    return SmallEnv(overrides={**SHORT, "horizon_s": 300, "workload.rate_scale": 1.0}, **given)


@pytest.mark.parametrize("policy", REFERENCES)
def test_the_factor_one_is_the_reference_bit_for_bit(policy):
    env = residual(policy, observation=(*BLOCKS, "wishes"))
    rewards, infos = played(env, [2, 2, 2], seed=3)
    from llmscale_env.control.simulation import ClusterSimulation

    sim = ClusterSimulation(env.scenario)
    result = run_episode(make_policy(policy), env.scenario, 3, simulation=sim)
    assert rewards == pytest.approx(result.series["reward"].to_numpy(), rel=1e-14, abs=0)
    mine, theirs = (s.engine.results(0) for s in (env.core.sim, sim))
    assert mine.tobytes() == theirs.tobytes()
    assert (env.core.sim.by_pool["gpu_ps"] == sim.by_pool["gpu_ps"]).all()
    assert env.core.sim.clipped[0] == sim.clipped[0]
    assert infos[-1]["episode_summary"]["gpu_hours"] == pytest.approx(result.summary["gpu_hours"])


def test_factors_multiply_what_the_reference_wants():
    policy = "static:interactive=3,mixed=5,mixed.batch_limit=96"
    env = residual(policy, observation=("wishes",))
    observation, _ = env.reset(seed=0)
    assert observation == pytest.approx(np.log2([4 / 5, 6 / 5, 1]) / 4)
    for action, counts in (
        ((5, 0, 5), (5, 3, 0)),
        ((2, 4, 2), (3, 7, 0)),  # 5 * 1.3 = 6.5; 1 takes back what 1.6 has changed
        ((2, 2, 2), (3, 5, 0)),
    ):
        env.step(np.array(action))
        assert [env.view().instances_of(p) for p in range(3)] == list(counts)
    assert env.view().pool("mixed")["limit_sum"] % 96 == 0  # its other orders came through


def test_residual_masks_hold_and_other_heads_go_before_the_reference():
    env = residual("static:interactive=4,mixed=9", action=("residual", "batch_limits"))
    env.reset(seed=0)
    mask = env.action_masks()[:18].reshape(3, 6)
    assert mask[:, 2].all()
    # Twelve of sixteen GPUs will be held by others' wishes only later: 4 + 4 are held now.
    assert mask[0].tolist() == [True] * 6
    assert mask[1].tolist() == [True, True, True, True, True, False]  # 9 * 1.6 = 15
    info = env.step(np.array([2, 2, 2, 1, 2, 3]))[4]
    assert info["metrics"]["mixed/batch_limit"] == 32
    assert info["metrics"]["interactive/batch_limit"] == 16


def test_each_episode_of_the_vectorised_form_has_its_own_reference():
    arguments = {
        "overrides": SHORT,
        "action": ("residual",),
        "reference": make_policy(LLUMNIX),
        "observation": (*BLOCKS, "wishes"),
    }
    singles = [SmallEnv(**arguments) for _ in range(3)]
    assert_equal_to_singles(
        SmallVectorEnv(3, **arguments),
        singles,
        7,
        fork=lambda env: pickle.loads(pickle.dumps(env)).fork(),
    )


def test_a_codec_with_a_reference_is_the_environment():
    assert_replayed(residual(LLUMNIX, observation=(*BLOCKS, "wishes")))


class Draws:
    """Orders what its own generator says."""

    name = "draws"

    def reset(self, scenario, seed):
        self.seed, self.rng = seed, np.random.default_rng(seed)

    def act(self, view):
        return Command(targets={"mixed": int(self.rng.integers(2, 7))})


def test_a_reference_draws_from_the_seed_and_leaves_the_requests_alone():
    env = residual("static", reference=Draws())
    plain = SmallEnv(env.scenario)
    counts = []
    for seed in (5, 5, None, None):
        env.reset(seed=seed)
        plain.reset(seed=seed)
        mine, theirs = (e.core.sim.requests[0].arrival_ps for e in (env, plain))
        assert (mine == theirs).all()
        counts.append([])
        for _ in range(6):
            env.step(np.full(3, 2))
            counts[-1].append(env.view().instances_of(1))
    assert counts[0] == counts[1] != counts[2] != counts[3]


def test_a_reference_without_a_use_and_a_use_without_a_reference_are_refused():
    with pytest.raises(ValueError, match="'residual' needs a policy"):
        SmallEnv(action=("residual",))
    with pytest.raises(ValueError, match="'wishes' needs a policy"):
        SmallEnv(observation=("wishes",))
    with pytest.raises(ValueError, match="only the action head 'residual'"):
        SmallEnv(reference=make_policy("llumnix"))
    told = Draws()
    told.is_clairvoyant = True
    with pytest.raises(ValueError, match="told the future"):
        SmallEnv(action=("residual",), reference=told)
