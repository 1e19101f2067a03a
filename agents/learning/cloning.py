"""A warm start: a network that copies a handwritten policy before it learns by itself (behaviour cloning).

The policy plays through the environment's codec: its commands are translated to the nearest actions
(`agents.learning.translation`), and those are carried out, so what is recorded is what a network can do, with
the states and rewards that it leads to. The network then learns the actions by cross-entropy over possible
choices and the value function by squared error. AWARE (USENIX ATC 2023) starts its autoscalers so.

A copy that errs comes to states that its teacher never leads to. So in further rounds the copy plays, the
teacher says what it would order there, and all that was seen is learnt together (DAgger, Ross et al. 2011).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.configuration.config import TrainConfig
from agents.configuration.environments import are_counts, codec_of, simulation_of
from agents.configuration.settings import WarmStartConfig
from agents.exploration.held_noise import parts_of
from agents.learning.lagrangian import priced_rewards
from agents.learning.translation import Translated, Translator, share_exact
from agents.models.algorithms import is_recurrent, takes_masks
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios import Scenario

if TYPE_CHECKING:
    from agents.learned import LearnedPolicy

COMPARED = 4
"""Episodes that the policy plays a second time, with its own commands, to see what the actions lose."""
_SEEDS_OF_COPYING = 1
"""Tells the seeds of watched episodes from those of training (`TrainConfig.drawn_seeds`)."""


@dataclass(frozen=True)
class Demonstrations:
    """Decisions of whole episodes, one after the other.

    Attributes:
        observations: (M, k) of the decisions at which the policy was asked.
        actions: (M, parts).
        masks: (M, sum of choices) possible choices.
        asked: (N,) at which it was.
        rewards: (N,) unscaled, the scenario's.
        priced: (N,) unscaled, with what training charges for misses (`agents.learning.lagrangian`).
        lengths: decisions of each episode.
        own_return: mean reward of the first few episodes (`COMPARED`) when the policy plays them with its
            own commands; NaN where another one has led.
        as_actions: of the same, as they were played.
        exact_choices, exact_commands: shares of them that the action space can express exactly.
        left_out: per field of the commands that no part of an action means, in how many decisions.
        untranslated: parts of the action that were left as they are.
        ordered: (parts,) whether its choices are numbers (`are_ordered`).
        counts: (parts,) whether it is an instance count.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    masks: NDArray[np.bool_]
    asked: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    priced: NDArray[np.float64]
    lengths: tuple[int, ...]
    own_return: float
    as_actions: float
    exact_choices: float
    exact_commands: float
    left_out: dict[str, int]
    untranslated: tuple[str, ...]
    ordered: tuple[bool, ...]
    counts: tuple[bool, ...]

    @property
    def mean_return(self) -> float:
        """Mean reward of an episode."""
        return float(self.rewards.sum() / len(self.lengths))

    def followed_by(self, more: Demonstrations) -> Demonstrations:
        """These decisions and then those; returns are of these, shares of all."""
        names = ("observations", "actions", "masks", "asked", "rewards", "priced")
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in names
        }
        weights = len(self.actions), len(more.actions)
        for name in ("exact_choices", "exact_commands"):
            both[name] = float(
                np.average([getattr(self, name), getattr(more, name)], weights=weights)
            )
        left_out = dict(Counter(self.left_out) + Counter(more.left_out))
        return replace(self, **both, left_out=left_out, lengths=self.lengths + more.lengths)

    def returns(self, gamma: float, scale: float) -> NDArray[np.float32]:
        """(N,) discounted sums of scaled `priced` to the end of the episode (nothing is assumed after it)."""
        found = np.zeros(len(self.priced))
        end = len(self.priced)
        for length in reversed(self.lengths):
            total = 0.0
            for i in range(end - 1, end - length - 1, -1):
                total = self.priced[i] * scale + gamma * total
                found[i] = total
            end -= length
        return found.astype(np.float32)


class Recorder:
    """A policy that carries out the nearest actions to another one's commands, and writes them down.

    Args:
        policy: whose commands.
        codec: of the environment.
        scenario: of the episodes.
        leader: whose actions are carried out in place of those that are written down; None: those.
        every: at so many decisions each the policy is asked, where another one leads; above 1 it has `see`.

    Attributes:
        asked: by decision, whether it was.
        is_exact: whether the actions of this episode did all that was ordered, and no more.
    """

    def __init__(
        self,
        policy: Policy,
        codec: Any,
        scenario: Scenario,
        leader: LearnedPolicy | None = None,
        every: int = 1,
    ) -> None:
        self.name = policy.name
        self._policy, self.codec, self._leader = policy, codec, leader
        self.translator = Translator(codec, scenario)
        self.observations: list[NDArray[np.float32]] = []
        self.masks: list[NDArray[np.bool_]] = []
        self.translated: list[Translated] = []
        self.asked: list[bool] = []
        self._tell = getattr(policy, "carried_out", None)
        self._every = every if leader is not None else 1

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode."""
        self.is_exact = not self.translator.untranslated
        self._decision = 0
        self._policy.reset(scenario, seed)
        self.codec.reset(seed)
        self.translator.reset()
        if self._leader is not None:
            self._leader.reset(scenario, seed)

    def act(self, view: ClusterView) -> Command:
        """What the nearest action means, or the leader's."""
        observation, mask = self.codec.encode(view), self.codec.mask(view)
        self.asked.append(self._decision % self._every == 0)
        self._decision += 1
        if self.asked[-1]:
            self.observations.append(observation)
            self.masks.append(mask)
            command = self._policy.act(view)
            found = self.translator.translate(command, view)
            self.translated.append(found)
            self.is_exact &= bool(found.exact.all()) and not found.left_out and not command.drain
            action = found.action
        else:
            self._policy.see(view)  # type: ignore[attr-defined]
        if self._leader is not None:
            more = {"action_masks": mask} if takes_masks(self._leader.model) else {}
            action = self._leader.choose(observation, **more)
        done: Command = self.codec.decode(action, view)
        if self._tell is not None:
            self._tell(done)
        return done


def watch(
    config: TrainConfig,
    plays: Sequence[tuple[Scenario, Policy]],
    simulation: ClusterSimulation | None = None,
    leader: LearnedPolicy | None = None,
    round_: int = 0,
) -> Demonstrations:
    """Let policies play `config.warm_start.episodes` episodes.

    Args:
        config: of the run.
        plays: who plays what, in turn.
        simulation: of the first scenario, to use again.
        leader: who plays in their place, while they say what they would order; None: they play.
        round_: each has episodes of its own.

    Raises:
        TranslationError: the action space has nothing that commands can be translated to.
    """
    recorders = [
        Recorder(policy, codec_of(config, scenario), scenario, leader, config.warm_start.every)
        for scenario, policy in plays
    ]
    simulations = [simulation] if simulation is not None else []
    simulations += [simulation_of(config, scenario) for scenario, _ in plays[len(simulations) :]]
    rewards: list[float] = []
    priced: list[float] = []
    lengths = []
    own: list[tuple[float, float]] = []
    # Distinct ones: `same_arrivals` is for comparing, here it would only be less to see.
    alone = config.model_copy(update={"same_arrivals": 1})
    n = config.warm_start.episodes
    seeds = alone.drawn_seeds(n * (round_ + 1), 0, _SEEDS_OF_COPYING)[n * round_ :]
    by_turn = [seeds[turn :: len(plays)] for turn in range(len(plays))]
    for (scenario, policy), recorder, ready, mine in zip(
        plays, recorders, simulations, by_turn, strict=True
    ):
        for seed in mine:
            result = run_episode(
                recorder, scenario, seed, simulation=ready, forecaster=config.forecaster
            )
            played = list(result.series["reward"])
            rewards += played
            priced += list(priced_rewards(result, scenario, config.lagrangian))
            lengths.append(len(played))
            if leader is not None or len(own) == COMPARED:
                continue
            mine_too = result
            if not recorder.is_exact:
                mine_too = run_episode(
                    policy, scenario, seed, simulation=ready, forecaster=config.forecaster
                )
            own.append((mine_too.summary["reward"], result.summary["reward"]))
    translated = [found for recorder in recorders for found in recorder.translated]
    choices, commands = share_exact(translated)
    left_out = Counter(name for found in translated for name in found.left_out)
    own_return, as_actions = np.mean(own, axis=0).tolist() if own else (math.nan, math.nan)
    return Demonstrations(
        observations=np.array([o for r in recorders for o in r.observations], np.float32),
        actions=np.array([found.action for found in translated]),
        masks=np.array([m for r in recorders for m in r.masks]),
        asked=np.array([asked for r in recorders for asked in r.asked]),
        rewards=np.array(rewards),
        priced=np.array(priced),
        lengths=tuple(lengths),
        own_return=own_return,
        as_actions=as_actions,
        exact_choices=choices,
        exact_commands=commands,
        left_out=dict(left_out),
        untranslated=tuple(
            dict.fromkeys(part for r in recorders for part in r.translator.untranslated)
        ),
        ordered=tuple(are_ordered(choices) for choices in recorders[0].codec.decoder.choices),
        counts=tuple(are_counts(recorders[0].codec.decoder.parts)),
    )


def are_ordered(choices: Sequence[str]) -> bool:
    """Whether choices are numbers, so that neighbours do nearly the same; names have no neighbours."""
    try:
        for text in choices:
            float(text.removeprefix("x"))
    except ValueError:
        return False
    return True


def clone(
    model: Any,
    seen: Demonstrations,
    settings: WarmStartConfig,
    reward_scale: float,
    seed: int,
    *,
    begins: bool = True,
) -> dict[str, float]:
    """Train a model of stable-baselines3 to do what was seen, in place.

    The last layers begin with biases that alone say how often each choice was seen, and what returns are in
    the mean. Without them the layers before would learn it, the easiest way being to drive their units to
    where tanh is flat: a copy that looks right, and whose outputs no gradient can make depend on its inputs.

    Args:
        model: learns in place.
        seen: what it is to do.
        settings: of the supervised training.
        reward_scale: of the returns.
        seed: of the order in which rows are seen.
        begins: whether the model is no copy yet.

    Returns:
        `cross_entropy` (mean over decisions, summed over parts) and `value_loss` of the last pass,
        `agreement`: share of all choices at which the copy's most probable one is the policy's.
    """
    import torch

    returns = torch.as_tensor(seen.returns(model.gamma, reward_scale)[seen.asked])
    widths = _widths(seen, settings)
    if begins:
        _start_from_frequencies(model, seen, settings.entropy, widths, float(returns.mean()))
    rng = np.random.default_rng([seed, _SEEDS_OF_COPYING])
    policy = model.policy
    optimiser = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    policy.set_training_mode(True)
    losses: list[tuple[float, float, int]] = []
    for _ in range(settings.epochs):
        losses = []
        for rows, episodes in _minibatches(model, seen, settings.batch_size, rng):
            values, log_prob, entropy = _evaluate(model, seen, rows, episodes)
            if any(widths):
                log_prob = _log_prob_of_neighbours(model, seen, rows, episodes, widths)
            cross_entropy = -log_prob.mean()
            value_loss = torch.nn.functional.mse_loss(values.flatten(), returns[rows])
            optimiser.zero_grad()
            spread = settings.entropy * entropy.mean()
            (cross_entropy - spread + model.vf_coef * value_loss).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            optimiser.step()
            losses.append((cross_entropy.item(), value_loss.item(), len(rows)))
    policy.set_training_mode(False)
    weights = [n for _, _, n in losses]
    return {
        "cross_entropy": float(np.average([loss[0] for loss in losses], weights=weights)),
        "value_loss": float(np.average([loss[1] for loss in losses], weights=weights)),
        "agreement": _agreement(model, seen),
    }


def _widths(seen: Demonstrations, settings: WarmStartConfig) -> list[float]:
    """(parts,) how far from what was seen the copy looks, in levels; 0: not at all."""
    others = settings.spread if settings.spread_settings is None else settings.spread_settings
    return [
        (settings.spread if is_count else others) if ordered else 0.0
        for ordered, is_count in zip(seen.ordered, seen.counts, strict=True)
    ]


def _start_from_frequencies(
    model: Any, seen: Demonstrations, entropy: float, widths: Sequence[float], mean_return: float
) -> None:
    """Biases of the last layers: what was seen, whatever the state was."""
    import torch

    # What was never seen stays as likely as the entropy term would have it.
    least = float(np.exp(-1.0 / entropy)) if entropy > 0 else 1e-4
    biases = []
    for part, n in enumerate(model.action_space.nvec):
        share = np.bincount(seen.actions[:, part], minlength=n) / len(seen.actions)
        if widths[part] > 0:
            away = np.arange(n)[:, None] - np.arange(n)
            weights = np.exp(-0.5 * (away / max(widths[part], 1e-3)) ** 2)
            share = weights / weights.sum(axis=0) @ share
        biases.append(np.log(share + least))
    with torch.no_grad():
        model.policy.action_net.bias.copy_(torch.as_tensor(np.concatenate(biases)))
        model.policy.value_net.bias.fill_(mean_return)


def _minibatches(
    model: Any, seen: Demonstrations, batch_size: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Rows of each minibatch in random order, and of how many whole episodes they are.

    A recurrent network gets whole episodes, of equal length within a minibatch.
    """
    if not is_recurrent(model):
        order = rng.permutation(len(seen.actions))
        for at in range(0, len(order), batch_size):
            yield order[at : at + batch_size], 0
        return
    starts = np.concatenate([[0], np.cumsum(seen.lengths)[:-1]])
    by_length: dict[int, list[int]] = {}
    for episode in rng.permutation(len(seen.lengths)):
        by_length.setdefault(seen.lengths[episode], []).append(int(starts[episode]))
    for length, firsts in by_length.items():
        many = max(1, batch_size // length)
        for at in range(0, len(firsts), many):
            mine: Sequence[int] = firsts[at : at + many]
            yield np.concatenate([np.arange(first, first + length) for first in mine]), len(mine)


def _evaluate(model: Any, seen: Demonstrations, rows: NDArray[np.int64], episodes: int) -> Any:
    """(values, log-probabilities of the actions, entropy) of some rows."""
    import torch

    observations = torch.as_tensor(seen.observations[rows])
    actions = torch.as_tensor(seen.actions[rows])
    if takes_masks(model):
        return model.policy.evaluate_actions(observations, actions, action_masks=seen.masks[rows])
    if is_recurrent(model):
        return model.policy.evaluate_actions(
            observations, actions, _no_memory(model, episodes), torch.zeros(len(rows))
        )
    return model.policy.evaluate_actions(observations, actions)


def _log_prob_of_neighbours(
    model: Any,
    seen: Demonstrations,
    rows: NDArray[np.int64],
    episodes: int,
    widths: Sequence[float],
) -> Any:
    """(n,) mean log-probability of choices around what was seen, possible ones only.

    Choice k of a part counts exp(-(k - seen)^2 / (2 width^2)); with a width of 0 the one that was seen counts
    alone.
    """
    import torch

    total = torch.zeros(len(rows))
    masks = np.split(seen.masks[rows], np.cumsum(model.action_space.nvec)[:-1], axis=1)
    for part, found in enumerate(parts_of(_distribution(model, seen, rows, episodes))):
        away = np.arange(model.action_space.nvec[part]) - seen.actions[rows, part, None]
        weights = np.exp(-0.5 * (away / max(widths[part], 1e-3)) ** 2) * masks[part]
        weights /= weights.sum(axis=1, keepdims=True)
        # Impossible choices have a log-probability of about -1e8, and no weight.
        total = total + (torch.as_tensor(weights, dtype=torch.float32) * found.logits).sum(dim=1)
    return total


def _no_memory(model: Any, episodes: int) -> Any:
    """States of the LSTMs at the starts of episodes."""
    import torch
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    lstm = model.policy.lstm_actor
    zeros = torch.zeros(lstm.num_layers, episodes, lstm.hidden_size)
    return RNNStates((zeros, zeros), (zeros, zeros))


def _agreement(model: Any, seen: Demonstrations) -> float:
    """Share of choices at which the most probable one is what was seen."""
    import torch

    same = total = 0
    with torch.no_grad():
        for rows, episodes in _minibatches(model, seen, 4096, np.random.default_rng(0)):
            found = _distribution(model, seen, rows, episodes)
            agrees = found.mode().numpy() == seen.actions[rows]
            same, total = same + int(agrees.sum()), total + agrees.size
    return same / total


def _distribution(model: Any, seen: Demonstrations, rows: NDArray[np.int64], episodes: int) -> Any:
    """The copy's choices in some rows."""
    import torch

    observations = torch.as_tensor(seen.observations[rows])
    if takes_masks(model):
        return model.policy.get_distribution(observations, seen.masks[rows])
    if is_recurrent(model):
        memory, starts = _no_memory(model, episodes).pi, torch.zeros(len(rows))
        return model.policy.get_distribution(observations, memory, starts)[0]
    return model.policy.get_distribution(observations)
