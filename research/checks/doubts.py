"""What can run and is hardly meant: a word about it, and no refusal."""

from ml_collections import ConfigDict

# Optimizers of optax whose updates are about as long as the learning rate, whatever the gradient.
NORMALIZED = (
    *("adabelief", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lion", "nadam"),
    *("nadamw", "novograd", "radam", "rmsprop", "sign_sgd", "yogi"),
)
SENSIBLE = 0.05  # of a parameter, an update


def doubts(config: ConfigDict) -> list[str]:
    """A line for everything in a checked config that is hardly meant."""
    name, rate = config.optimizer.name, config.optimizer.learning_rate
    if name in NORMALIZED and rate > SENSIBLE:
        return [
            f"config.optimizer.learning_rate = {rate:g}: {name} moves every parameter by about as "
            "much in an update, whatever the gradient; 0.001 is usual"
        ]
    return []
