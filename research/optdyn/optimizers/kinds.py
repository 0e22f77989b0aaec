"""The optimizer of an experiment: SGD, Adam, AdamW, the closed loop, or another of optax's."""

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import optax

from optdyn.base.fields import OPTIONS, ConstantFunction, Options, Value, field
from optdyn.base.in_memory import name_of

OPTAX = "an optax transformation"


@dataclass(frozen=True)
class Optimizer(Value, section="optimizer", union=True):
    """The optimizer of all parameters, its schedule and the transforms before it."""

    learning_rate: float = field(0.1, "Learning rate, where schedules begin or peak.", at_least=0)
    _: KW_ONLY
    schedule: Any = field("constant", "Schedule of the rate, of optimizers/ or your own.")
    schedule_options: Options = field(
        OPTIONS, "Arguments of the schedule; of 'piecewise': boundaries, scales."
    )
    warmup_steps: int = field(0, "Updates over which the rate rises from 0.", at_least=0)
    decay_steps: int = field(
        0, "Updates over which the schedule decays the rate; 0: to the end.", at_least=0
    )
    decay_rate: float = field(0.1, "Factor of the schedule's decay.", above=0)
    options: Options = field(OPTIONS, "Further arguments of the optimizer.")
    chain: tuple[str, ...] = field(
        (),
        "Transforms that gradients go through before the optimizer: of "
        "optimizers/staleness.py, of optax, or your own.",
    )
    chain_options: Options = field(OPTIONS, "Arguments of the chain's transforms, by name.")

    def __post_init__(self) -> None:
        if isinstance(self.chain, optax.GradientTransformation):  # which is a tuple, too
            object.__setattr__(self, "chain", (self.chain,))
        if isinstance(self.chain, (tuple, list)):
            object.__setattr__(self, "chain", tuple(map(_named, self.chain)))
        super().__post_init__()

    @property
    def momentum(self) -> float:
        return 0.0

    @property
    def arguments(self) -> Options:
        """The optimizer's arguments that are fixed at compile time, by name."""
        shared = {spec.name for spec in fields(Optimizer)} | {"name", "momentum"}
        typed = {key: getattr(self, key) for key in self.field_table() if key not in shared}
        return Options(typed | self.options)

    @classmethod
    def named(cls, name: Any) -> Value:
        known = not isinstance(name, str) or name in cls.members
        return super().named(name) if known else Optax(name=name)

    @classmethod
    def from_object(cls, value: Any) -> Any:
        """Returns the optimizer of an optax transformation, or of a function that returns one."""
        if isinstance(value, optax.GradientTransformation):
            return Optax(name=name_of(_Fixed(value), OPTAX, value), learning_rate=0.0)
        return super().from_object(value)


@dataclass(frozen=True)
class HeavyBall(Optimizer):
    """An optimizer with explicit momentum: v <- g + mu v, x <- x - alpha v."""

    momentum: float = field(
        0.0,
        "Explicit momentum mu, may be negative; closed_loop: the target of the total.",
        above=-1,
        below=1,
    )


@dataclass(frozen=True)
class SGD(HeavyBall, name="sgd"):
    """SGD with heavy-ball momentum, which may be negative."""


@dataclass(frozen=True)
class ClosedLoop(HeavyBall, name="closed_loop"):
    """SGD whose explicit momentum is corrected so that the measured total meets a target."""


@dataclass(frozen=True)
class Adam(Optimizer, name="adam"):
    """Adam (arXiv 1412.6980)."""

    b1: float = field(0.9, "Decay of the mean of gradients.", at_least=0, below=1)
    b2: float = field(0.999, "Decay of the mean of their squares.", at_least=0, below=1)
    eps: float = field(1e-8, "Added to the root of the mean square.", at_least=0)


@dataclass(frozen=True)
class AdamW(Adam, name="adamw"):
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    weight_decay: float = field(1e-4, "Weight decay, multiplied by the learning rate.", at_least=0)


@dataclass(frozen=True)
class Optax(Optimizer, custom=True):
    """Another optimizer of optax by its name, or a function of yours that returns one."""

    name: Any = field("", "Optimizer of optax, 'contrib.NAME', 'soap', or your own.")
    momentum: float = field(0.0, "Momentum, if the optimizer has one.", above=-1, below=1)


@dataclass(frozen=True)
class _Fixed:
    fixed: ClassVar[bool] = True  # `optimizers.is_fixed`
    optimizer: optax.GradientTransformation

    def __call__(self, learning_rate: Any = 0.0) -> optax.GradientTransformation:
        return self.optimizer


def _named(transform: Any) -> Any:
    if isinstance(transform, optax.GradientTransformation):
        return name_of(ConstantFunction(transform), OPTAX, transform)
    return name_of(transform) if callable(transform) else transform
