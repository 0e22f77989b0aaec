"""The result of a contest that was not run, for rules to judge."""

import numpy as np

SEEDS, CHOOSE = 20, 4


def made_up(of, ratios):
    """Arms of the contest `of` take so many times the last opponent's seconds, give or take 5 %."""
    rng, last, network = np.random.default_rng(0), str(of.losses[-1]), of.judged

    def told(name, times, shape):
        tried = times * 100 * rng.lognormal([[0], [0.5]], 0.05, (2, CHOOSE))
        return {
            "arm": name,
            "chosen": {"batch_size": 16, "strategy.period": 8},
            "cost": times * 100,
            "seconds": {last: (times * 100 * rng.lognormal(0, 0.05, SEEDS)).tolist()},
            "tried": [[batch, 8, *each] for batch, each in zip((16, 32), tried, strict=True)],
            "over": {last: [times, times, times]},
            "over at best": [times, times - 0.05, times + 0.05],
            "chance": 1e-4 if times != 1 else 1.0,
            "shape": shape,
        }

    def shape_of(entry):
        return f"{entry.arm.config.cluster.nodes} x {entry.arm.config.cluster.devices_per_node}"

    shapes = {name: shape_of(entry) for name, entry in of.entries.items()}
    rows = [
        {"arm": name, "networks": {network: told(name, times, shapes[name])}}
        for name, times in zip(of.entries, ratios, strict=True)
    ]
    *others, best = of.opponents
    usual = {last: [200.0] * SEEDS}
    against = {
        shape: {
            "usual": usual,
            "best": best,
            "every": [*(told(each, 1.3, shape) for each in others), told(best, 1.0, shape)],
        }
        for shape in dict.fromkeys(("8 x 1", *shapes.values()))
    }
    return {
        "losses": list(of.losses),
        "judged": network,
        "family": of.family,
        "opponents": {network: against},
        "rows": rows,
    }
