"""What a mode of `launch.tune` is compared with: other ways to choose a setting by probes.

synchronous    one group, its momentum and learning rate by TPE
asynchronous   the same for as many groups as there can be
random         random search (Bergstra and Bengio, JMLR 2012) of groups, momentum and rate
tpe            the same space, searched by optuna's tree-structured Parzen estimator
"""

from collections.abc import Callable, Sequence

from optdyn.tuning.choice import Choice, Outcome, loss_of

Probe = Callable[[float, Choice], Outcome]  # from the start, for how many seconds
MOMENTA = -0.9, 0.99  # the box that is searched: no optimum seen here is near its sides
RATES = 1e-4, 1.0


def choose(
    name: str, probe: Probe, groups: Sequence[int], seconds: float, each: float, seed: int
) -> Choice:
    """The setting that the baseline called `name` chooses by probes of so many seconds in all.

    They are equally long, as nearly `each` seconds as can be. If all diverge it is the first.
    """
    import optuna  # an optional dependency, which takes a second to import

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler if name == "random" else optuna.samplers.TPESampler
    study = optuna.create_study(sampler=sampler(seed=seed))
    searched = {"synchronous": groups[:1], "asynchronous": groups[-1:]}.get(name, groups)
    count = max(round(seconds / each), 1)
    tried: dict[Choice, float] = {}
    for _ in range(count):
        trial = study.ask()
        setting = Choice(
            trial.suggest_categorical("groups", list(searched)),
            trial.suggest_float("momentum", *MOMENTA),
            trial.suggest_float("learning_rate", *RATES, log=True),
        )
        tried[setting] = loss_of(probe(seconds / count, setting))
        study.tell(trial, tried[setting])
    return min(tried, key=lambda setting: tried[setting])
