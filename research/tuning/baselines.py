"""What the automatic optimizer is compared with: other ways to choose a setting by probes.

synchronous    one group, momentum 0.9, the learning rate with the least loss
asynchronous   the same for as many groups as there can be
random         random search (Bergstra and Bengio, JMLR 2012) of groups, momentum and rate
tpe            the same space, searched by optuna's tree-structured Parzen estimator
"""

import math
from collections.abc import Callable, Sequence

from research.checks.tune import SAMPLED
from research.tuning.automatic import Outcome, Setting
from research.tuning.rules import Rules

Probe = Callable[[float, Setting], Outcome]  # from the start, for how many seconds


def choose(
    name: str, probe: Probe, groups: Sequence[int], rules: Rules, seconds: float, seed: int
) -> Setting:
    """The setting that the baseline called `name` chooses by probes of so many seconds in all.

    Equally long ones: for fixed groups one a learning rate, otherwise as near as can be to those of
    the cold start. Searched are the momenta and learning rates between the least and the largest of
    the rules. If all diverge it is the first setting.
    """
    if name in SAMPLED:
        count = max(round(seconds / rules.probe_seconds), 1)
        return _sampled(name, lambda s: probe(seconds / count, s), groups, rules, count, seed)
    g = groups[0] if name == "synchronous" else groups[-1]
    tried = [Setting(g, max(rules.momenta), alpha) for alpha in rules.learning_rates]
    return min(tried, key=lambda setting: _loss(probe(seconds / len(tried), setting)))


def _sampled(
    name: str,
    probe: Callable[[Setting], Outcome],
    groups: Sequence[int],
    rules: Rules,
    count: int,
    seed: int,
) -> Setting:
    import optuna  # an optional dependency, which takes a second to import

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    study = optuna.create_study(sampler=samplers[name](seed=seed))
    momenta, rates = rules.momenta, rules.learning_rates
    tried = {}
    for _ in range(count):
        trial = study.ask()
        setting = Setting(
            trial.suggest_categorical("groups", groups),
            trial.suggest_float("momentum", min(momenta), max(momenta)),
            trial.suggest_float("learning_rate", min(rates), max(rates), log=True),
        )
        tried[setting] = _loss(probe(setting))
        study.tell(trial, tried[setting])
    return min(tried, key=lambda setting: tried[setting])


def _loss(outcome: Outcome) -> float:
    """What diverged is worse than anything."""
    return outcome.loss if math.isfinite(outcome.loss) else math.inf
