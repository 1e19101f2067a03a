"""What users give to environments is checked: odd values are refused in one clear line."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import llmscale_env  # noqa: F401  registers the environments
from baselines import make_policy
from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode, run_streamed
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs import ServingEnv, ServingVectorEnv
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import ScenarioError, load_scenario
from tests.env_kinds import MIXED, REGION, REQUEST, each_kind
from tests.small_world import SMALL_WORLD, SmallEnv, SmallVectorEnv

MINUTE = load_scenario(SMALL_WORLD, horizon_s=60.0)
FORMS = pytest.mark.parametrize("form", [gym.make, gym.make_vec])


def single(**arguments):
    return SmallEnv(MINUTE, **arguments)


def many(n=2, **arguments):
    return SmallVectorEnv(n, MINUTE, **arguments)


# ---- settings ----


@FORMS
@pytest.mark.parametrize(
    "name, value, said",
    [
        ("scenario", 3, "scenario = '3': unknown"),
        ("scenario", "", "scenario = '': unknown"),
        ("scenario", False, "scenario = 'False': unknown"),
        ("overrides", 3, "overrides = 3: must be a mapping"),
        ("overrides", "horizon_s", "overrides = 'horizon_s': must be a mapping"),
        ("overrides", {3: 4}, "overrides = {3: 4}: must be a mapping"),
        ("overrides", {"horizon_s": "long"}, "horizon_s = 'long'"),
        ("overrides", {"workload.mix": 3}, "workload.mix: mix = 3: unknown"),
        ("observation", (), r"observation = \(\): must be a sequence of names"),
        ("observation", "clock", "observation = 'clock': must be a sequence of names"),
        ("observation", 3, "observation = 3: must be a sequence of names"),
        ("observation", [["clock"]], r"observation = \['clock'\]: unknown block"),
        ("observation", ["clock", "clock"], "observation: 'clock' is named twice"),
        ("action", (), r"action = \(\): must be a sequence of names"),
        ("action", "loading", "action = 'loading': must be a sequence of names"),
        ("action", ["loading", "loading"], "action: 'loading' is named twice"),
        ("action", ["make_way"], r"action = \['make_way'\]: there is nothing to choose"),
        ("forecaster", 3, "forecaster = 3: must be a name"),
        ("reference", 3, "reference"),
        ("shaping", "much", "shaping.weight = 'much': .*must be finite and at least 0"),
        ("shaping", True, "shaping.weight = True: .*must be finite and at least 0"),
        ("shaping", [1], r"shaping.weight = \[1\]: .*must be finite and at least 0"),
        ("shaping", {"weight": None}, "shaping.weight = None: .*must be finite and at least 0"),
        ("shaping", {"gamma": "1"}, "shaping.gamma = '1': must be above 0 and at most 1"),
        ("shaping", {3: 1, "x": 2}, "shaping: .* unknown"),
    ],
)
def test_a_setting_of_another_kind_is_refused(form, name, value, said):
    with pytest.raises(ValueError, match=said):
        form(MIXED.id, **{name: value})


@pytest.mark.parametrize("form", [single, many])
@pytest.mark.parametrize("mode", ["human", ["ansi"], 3, True])
def test_unknown_render_modes_are_refused(form, mode):
    with pytest.raises(ValueError, match="render_mode = "):
        form(render_mode=mode)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "2", None, [2]])
def test_numbers_of_episodes_are_whole(num_envs):
    with pytest.raises(ValueError, match=r"num_envs = .*: must be an integer of at least 1"):
        gym.make_vec(MIXED.id, num_envs=num_envs)


def test_more_episodes_than_any_memory_holds_are_refused():
    from agents.configuration.config import make_config
    from llmscale_env._cli import Slip
    from llmscale_env.envs.base import MAX_EPISODES

    many = MAX_EPISODES + 1
    with pytest.raises(ValueError, match=f"num_envs = {many}: must be at most 100,000"):
        gym.make_vec(MIXED.id, num_envs=many)
    with pytest.raises(Slip, match=f"n_envs.*{MAX_EPISODES}"):
        make_config("burst-multicast", {"n_envs": many})


def test_episodes_that_memory_has_no_room_for_are_told(monkeypatch: pytest.MonkeyPatch):
    from llmscale_env.sim.fast import engine

    def none_left(*_: object) -> None:
        raise MemoryError("Unable to allocate 20 GiB")

    monkeypatch.setattr(engine, "allocate", none_left)
    said = r"no memory for 64 episodes side by side .* take fewer \(Unable to allocate 20 GiB"
    with pytest.raises(MemoryError, match=said):
        gym.make_vec(MIXED.id, num_envs=64)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", None])
def test_numbers_of_threads_are_whole(threads):
    with pytest.raises(ValueError, match=r"threads = .*: must be an integer of at least 1"):
        gym.make_vec(MIXED.id, num_envs=2, threads=threads)


def test_numbers_may_be_numpys():
    env = many(np.int64(2), threads=np.int32(2))
    assert type(env.num_envs) is int
    assert env.reset(seed=np.int64(1))[0].shape[0] == 2


def test_a_policy_that_is_none_is_refused_before_the_episode():
    class Half:
        name = "half"

        def reset(self, scenario, seed): ...

    for odd in (3, Half(), Half):
        with pytest.raises(ValueError, match=r"reference = .*: must be a policy"):
            single(action=("residual",), reference=odd)


def test_what_is_no_policy_scenario_or_simulation_for_it_is_refused_before_the_run():
    policy = make_policy("static")
    with pytest.raises(TypeError, match="policy = 'static': must be a policy"):
        run_episode("static", MINUTE)
    with pytest.raises(ScenarioError, match="scenario = 'no-such': unknown"):
        run_episode(policy, "no-such")
    for simulation, given, said in (
        (ClusterSimulation(MINUTE, 2), {}, "simulation: has 2 episodes"),
        (ClusterSimulation(load_scenario("placement")), {}, "has scenario 'placement'"),
        (ClusterSimulation(MINUTE), {"engine": "reference"}, "engine = 'reference': the sim"),
        (ClusterSimulation(MINUTE), {"custom_router": print}, "custom_router = .*: the sim"),
    ):
        for run in (run_episode, run_streamed):
            with pytest.raises(ValueError, match=said):
                run(policy, MINUTE, simulation=simulation, **given)
    requests = draw_requests(MINUTE, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"requests.failures: instance 999: must be in 0\.\."):
        run_episode(policy, MINUTE, requests=replace(requests, failures=[[10**13, 999]]))
    for form in (ServingEnv, ServingVectorEnv):
        with pytest.raises(ValueError, match=f"scenario = None: {form.__name__} has none"):
            form()


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(
    "order, odd",
    [
        (order, odd)
        for odd in (10**400, -(10**400), float("inf"))
        for order in (
            lambda odd: {"targets": {"interactive": odd}},
            lambda odd: {"batch_limits": {"interactive": odd}},
            lambda odd: {"overflow_share": {"interactive": odd}},
            lambda odd: {"drain": (odd,)},
            lambda odd: {"evict": {0: odd}},
            lambda odd: {"move_waiting": ((0, 1, odd),)},
            lambda odd: {"move_waiting": ((0, odd, 1),)},
            lambda odd: {"arrival_queues": {("llama-3.1-8b", "batch"): ((odd,), (0, 0))}},
            lambda odd: {"regroup": ([odd], [0])},
            lambda odd: {"assign": ([odd], [0])},
            lambda odd: {"predictions": ([0], [odd])},
            lambda odd: {"placement_models": {0: [odd] * 5}},
        )
    ],
)
def test_orders_beyond_all_numbers_are_refused_or_clipped_alike(engine, order, odd):
    for how in ("error", "clip"):
        sim = ClusterSimulation(
            MINUTE.model_copy(update={"impossible_commands": how}), engine=engine
        )
        sim.start(0, draw_requests(MINUTE, np.random.default_rng(0)))
        if how == "clip":
            assert sim.apply(0, Command(**order(odd))) >= 1
        else:
            with pytest.raises(CommandError):
                sim.apply(0, Command(**order(odd)))
    with pytest.raises(CommandError, match="evicts_in_order = 'false': must be True or False"):
        sim.apply(0, Command(operations={"interactive": {"evicts_in_order": "false"}}))


def test_a_policy_sees_seconds():
    """The columns of the engine, converted; NaN where there is no such time."""
    sim = ClusterSimulation(MINUTE)
    sim.start(0, draw_requests(MINUTE, np.random.default_rng(0)))
    sim.apply(0, Command(targets={"batch": 2}))
    for _ in range(2):
        sim.advance()
    view, engine = sim.view(0), sim.engine
    shown = {
        "totals": (view.totals, engine.class_seen[0]),
        "pools": (view.pools, engine.pool_seen[0]),
        "queues": (view.queues, engine.queue_seen[0, : len(view.queues)]),
        "groups": (view.groups, engine.queue_seen[0, :0]),
        "instances": (view.instances, engine.instances(0)),
        "loading": (view.loading, engine.loading(0)),
        "reports": (view.reports, engine.reports(0)),
    }
    for name, (mine, its) in shown.items():
        pairs = {column[:-3] for column in its.dtype.names if column.endswith("_ps")}
        apart = {f"{column}_s" for column in pairs} & set(its.dtype.names)
        whole = [column for column in its.dtype.names if not column.endswith("_ps")]
        assert set(mine.dtype.names) == {*whole, *(f"{column}_s" for column in pairs)}, name
        for column in mine.dtype.names:
            if column in whole and column not in apart:
                assert np.array_equal(mine[column], its[column]), (name, column)
                continue
            ps = its[f"{column[:-2]}_ps"]
            wanted = ps / 1e12 + (its[column] if column in apart else 0)
            assert np.array_equal(mine[column], np.where(ps < 0, np.nan, wanted), equal_nan=True)
    assert view.pools["gpu_s"].sum() > 0
    assert np.isfinite(view.instances["loaded_s"]).sum() == view.pools["loading"].sum()
    assert not any(array.flags.writeable for array, _ in shown.values())


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_commands_of_several_episodes_are_those_of_each(engine):
    """In one call or one by one: the same cluster afterwards, and the same count of clipped orders."""
    commands = [
        Command(
            targets={"batch": 99, "mixed": 0},
            batch_limits={"interactive": 8},
            overflow_share={"interactive": 2.0},
            drain=(0, 0, 10**6),
            evict={0: 1},
            fail=(0, 10**6),
        ),
        Command(),
        Command(targets={"interactive": 1}, instance_batch_limits={0: 0, 1: 4}),
    ]
    together, alone = (ClusterSimulation(MINUTE, 3, engine=engine) for _ in range(2))
    requests = draw_requests(MINUTE, np.random.default_rng(0))
    for sim in (together, alone):
        for e in range(3):
            sim.start(e, requests)
        sim.advance()
    clipped = together.command(dict(enumerate(commands)))
    assert clipped.tolist() == [alone.apply(e, command) for e, command in enumerate(commands)]
    assert clipped[1] == 0
    assert clipped[2] == 1
    for sim in (together, alone):
        sim.advance()
    for e in range(3):
        assert (together.engine.instances(e) == alone.engine.instances(e)).all()
        assert (together.engine.results(e) == alone.engine.results(e)).all()


def test_a_forecaster_is_checked_where_none_is_shown():
    with pytest.raises(ValueError, match=r"forecaster.kind = 'tea leaves': unknown"):
        gym.make(REQUEST.id, forecaster="tea leaves")


def test_blocks_without_entries_in_a_scenario_are_refused():
    with pytest.raises(ValueError, match=r"observation = \['queues'\]: there is nothing to see"):
        gym.make(REQUEST.id, observation=["queues"])


def test_a_scenarios_name_may_be_another():
    assert single(overrides={"name": "mine"}).scenario.name == "mine"


# ---- weights ----


@pytest.mark.parametrize("form", [single, many])
@pytest.mark.parametrize(
    "weights, said",
    [
        ({"gpu": "1"}, "gpu = '1'"),
        ({"gpu": [1.0]}, r"gpu = \[1.0\]"),
        ({"gpu": np.ones(2)}, r"gpu = array"),
        ({"gpu": True}, "gpu = True"),
        ({"gpu": 10**400}, "gpu = 1000"),
        ({"loads": -1}, "loads = -1"),
        ({"loads": np.nan}, "loads = nan"),
        ({"violations": [1, 2]}, r"violations.interactive = \[1, 2\]"),
        ({"violations": {"batch": None}}, "violations.batch = None"),
        ({"violations": {3: 1}}, "violations: 3 is no class"),
        ({"gpu": 3.0, "violations": "x"}, "violations.interactive = 'x'"),
    ],
)
def test_weights_of_another_kind_are_refused_and_change_nothing(form, weights, said):
    env = form()
    before = env.weights
    with pytest.raises(ValueError, match=said):
        env.set_weights(**weights)
    assert env.weights == before


def test_weights_may_be_any_real_numbers():
    env = single()
    env.set_weights(gpu=np.float32(0.5), loads=np.int64(2), violations=3)
    assert env.weights["gpu"] == 0.5
    assert env.weights["loads"] == 2.0
    assert Shaping(weight=2, gamma=np.float64(0.5)).weight == 2


# ---- seeds and options ----


@pytest.mark.parametrize("form", [single, many])
@pytest.mark.parametrize("seed", [True, -1, 1.5, "3", np.True_, np.float64(2.0), {1, 2}, b"12"])
def test_odd_seeds_are_refused_and_change_nothing(form, seed):
    env, twin = form(), form()
    env.reset(seed=4)
    twin.reset(seed=4)
    with pytest.raises(ValueError, match=r"seed(\[0\])? = .*: must be"):
        env.reset(seed=seed)
    assert np.array_equal(env.reset()[0], twin.reset()[0])


@pytest.mark.parametrize("seeds", [[1, -1], [1, True], [1, 1.5], [1], [1, 2, 3], (1, "2")])
def test_odd_lists_of_seeds_are_refused_and_change_nothing(seeds):
    env, twin = many(), many()
    env.reset(seed=4)
    twin.reset(seed=4)
    with pytest.raises(ValueError, match="seed"):
        env.reset(seed=seeds)
    assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_seeds_may_be_numpys():
    assert np.array_equal(single().reset(seed=np.uint8(7))[0], single().reset(seed=7)[0])
    plain = many().reset(seed=[7, 8])[0]
    for seeds in (np.array([7, 8]), (np.int64(7), 8), np.int32(7), 7):
        assert np.array_equal(many().reset(seed=seeds)[0], plain)


@pytest.mark.parametrize("form", [single, many])
@pytest.mark.parametrize(
    "options, said",
    [
        (3, "options = 3: must be a mapping"),
        ([("reset_mask", None)], "options = .*: must be a mapping"),
        ({"rest_mask": [True]}, r"options\['rest_mask'\]: unknown"),
        ({3: 4}, r"options\[3\]: unknown"),
    ],
)
def test_odd_options_are_refused(form, options, said):
    with pytest.raises(ValueError, match=said):
        form().reset(seed=0, options=options)


def test_no_options_are_fine():
    for options in (None, {}):
        single().reset(seed=0, options=options)
        many().reset(seed=0, options=options)
    many().reset(seed=0, options={"reset_mask": None})


def test_a_ragged_mask_is_refused():
    with pytest.raises(ValueError, match=r"options\['reset_mask'\] = .* must be 2 booleans"):
        many().reset(options={"reset_mask": [[True], [True, False]]})


# ---- states ----


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: 3,
        lambda saved: None,
        lambda saved: {},
        lambda saved: [saved],
        lambda saved: {**saved, "core": 3},
        lambda saved: {**saved, "started": "yes"},
        lambda saved: {**saved, "history": None},
        *(
            lambda saved, name=name, value=value: {**saved, "core": {**saved["core"], name: value}}
            for name, value in (
                ("sim", 3),
                ("sim", {}),
                ("scenario", 3),
                ("last_action", "x"),
                ("last_action", np.zeros(30)),
                ("returns", "x"),
                ("rng", 3),
                ("rng", {}),
                ("rng", {**np.random.default_rng(0).bit_generator.state, "bit_generator": "no"}),
                ("forecaster", 3),
                ("forecaster", {}),
                ("reference", {}),
                ("behind", None),
                ("behind", {"sim": {}, "orders": ()}),
                ("behind", {"orders": 3}),
                ("made", None),
                ("made", []),
                ("made", [3]),
            )
        ),
        *(
            lambda saved, name=name, value=value: {
                **saved,
                "core": {**saved["core"], "sim": {**saved["core"]["sim"], name: value}},
            }
            for name, value in (
                ("engine", 3),
                ("engine", dict.fromkeys(("cluster", "req"), 3)),
                ("requests", 3),
                ("step", "x"),
                ("length_s", None),
                ("history", 3),
                ("counters", 3),
                ("counters", []),
            )
        ),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(damage):
    given = {"overrides": {"metric_delay_s": 10}, "action": ("residual",)}
    env, twin = (single(**given, reference=make_policy("llumnix")) for _ in range(2))
    action = [0] * len(env.action_names)
    env.restore_state(env.save_state())  # also before the first episode
    for one in (env, twin):
        one.reset(seed=1)
        one.step(action)
    other = env.fork()
    other.step(action)
    with pytest.raises(ValueError, match="saved"):
        env.restore_state(damage(other.save_state()))
    for _ in range(2):
        (seen, reward, *_), (wanted, same, *_) = env.step(action), twin.step(action)
        assert np.array_equal(seen, wanted)
        assert reward == same


# ---- actions ----


def test_actions_of_another_shape_are_not_turned_into_this_one():
    env = many(2)
    env.reset(seed=0)
    parts = len(env.single_action_space.nvec)
    for shape in ((parts, 2), (2 * parts,), (1, 2 * parts), (2 * parts, 1)):
        with pytest.raises(ValueError, match="action has shape"):
            env.step(np.zeros(shape, int))
    env = single()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action has shape"):
        env.step(np.zeros((parts, 1), int))


@pytest.mark.parametrize("action", [[[1], [1, 2]], {"a": 1}, None, "1", [None] * 8, object()])
def test_an_action_that_is_no_array_is_refused(action):
    env = single()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action"):
        env.step(action)


def test_after_an_order_that_cannot_be_carried_out_the_episode_is_over():
    env = SmallEnv(overrides={"fleet.max_gpus": 9, "impossible_commands": "error"})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="max_gpus = 9"):
        env.step([7, 4, 0, 3, 3, 5, 0, 0])
    with pytest.raises(gym.error.ResetNeeded):
        env.step(MIXED.action)
    env.reset()


@pytest.mark.parametrize("actions", [3, None, [0], {3: 1, "us-west": 2}])
def test_actions_of_agents_are_a_mapping(actions):
    pytest.importorskip("pettingzoo")
    from llmscale_env.envs.multi_region_parallel import parallel_env

    env = parallel_env(overrides=REGION.short)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions"):
        env.step(actions)
    with pytest.raises(ValueError, match="options = 3: must be a mapping"):
        env.reset(seed=0, options=3)


# ---- before the first episode, and closed ----


@each_kind
def test_before_the_first_reset_there_is_nothing_to_see(kind):
    env = kind.single(overrides=kind.short, render_mode="ansi")
    for call in (env.action_masks, env.view, env.render):
        with pytest.raises(gym.error.ResetNeeded, match=r"\(\) needs a reset\(\) first"):
            call()
    env.fork().restore_state(env.save_state())
    env.reset(seed=0)
    for call in (env.action_masks, env.view, env.render):
        call()
    several = kind.vector(2, overrides=kind.short)
    for name in ("action_masks", "view"):
        with pytest.raises(gym.error.ResetNeeded):
            several.call(name)


@each_kind
def test_a_closed_environment_is_not_used(kind):
    env = kind.single(overrides=kind.short)
    env.reset(seed=0)
    saved = env.save_state()
    env.close()
    env.close()
    for call in (
        lambda: env.step(kind.action),
        lambda: env.reset(),
        lambda: env.render(),
        lambda: env.restore_state(saved),
        lambda: env.fork(),
        lambda: env.view(),
        lambda: env.action_masks(),
        lambda: env.set_weights(gpu=1.0),
    ):
        with pytest.raises(gym.error.ClosedEnvironmentError, match=r"\(\) of a closed environment"):
            call()


@each_kind
def test_a_closed_vectorised_environment_is_not_used(kind):
    env = kind.vector(2, overrides=kind.short, threads=2)
    env.reset(seed=0)
    env.step([kind.action] * 2)
    env.close()
    env.close()
    for call in (
        lambda: env.step([kind.action] * 2),
        lambda: env.reset(),
        lambda: env.render(),
        lambda: env.action_masks(),
        lambda: env.call("action_masks"),
    ):
        with pytest.raises(gym.error.ClosedEnvironmentError, match=r"\(\) of a closed environment"):
            call()


# ---- what Gymnasium asks of many ----


@each_kind
def test_calls_give_what_single_environments_would(kind):
    env = kind.vector(2, overrides=kind.short)
    singles = gym.vector.SyncVectorEnv([lambda: kind.single(overrides=kind.short)] * 2)
    env.reset(seed=3)
    singles.reset(seed=3)
    env.step([kind.action] * 2)
    singles.step([kind.action] * 2)
    for mine, other in zip(env.call("action_masks"), singles.call("action_masks"), strict=True):
        assert np.array_equal(mine, other)
    for mine, other in zip(env.call("view"), singles.call("view"), strict=True):
        assert mine.time_s == other.time_s
        assert mine.totals.tobytes() == other.totals.tobytes()
    for name in ("observation_space", "action_space", "scenario", "weights", "render_mode"):
        assert env.get_attr(name) == singles.get_attr(name), name
    assert env.np_random_seed == env.get_attr("np_random_seed") == singles.np_random_seed == (3, 4)
    drawn = [rng.random() for rng in env.np_random]
    assert drawn == [rng.random() for rng in singles.get_attr("np_random")]
    env.call("set_weights", gpu=2.0)
    assert env.get_attr("weights")[1]["gpu"] == 2.0


def test_generators_are_those_of_the_episodes():
    env, twin = many(), many()
    seeds = env.np_random_seed
    assert len(set(seeds)) == 2
    assert np.array_equal(env.reset()[0], twin.reset(seed=seeds)[0])


def test_attributes_of_ones_own_are_by_episode():
    env = many()
    env.set_attr("label", ["a", "b"])
    env.set_attr("phase", 3)
    assert env.get_attr("label") == ("a", "b")
    assert env.get_attr("phase") == (3, 3)
    with pytest.raises(ValueError, match="label: 3 values: must be 2"):
        env.set_attr("label", [1, 2, 3])
    with pytest.raises(AttributeError, match="scenario: belongs to the environment"):
        env.set_attr("scenario", MINUTE)
    with pytest.raises(AttributeError, match="nonsense"):
        env.get_attr("nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        env.call("nonsense")


@pytest.mark.parametrize("name", ["reset", "step", "close", "save_state", "restore_state", "fork"])
def test_what_is_for_all_episodes_is_not_called_for_each(name):
    with pytest.raises(AttributeError, match=name):
        many().call(name)


def test_many_episodes_draw_nothing():
    assert many().render() is None
