"""The door from Python: `import optdyn`.

    base = optdyn.Experiment(
        model=optdyn.Model("mlp", hidden=(32,)),
        data=optdyn.Data("mnist5k"),
        optimizer=optdyn.sgd(learning_rate=0.1, momentum=0.9),
        cluster=optdyn.Cluster(workers=16, service=optdyn.exponential()),
        batch_size=64,
    )
    runs = optdyn.compare(
        {"1 group": base, "16 groups": base.with_(method=optdyn.asynchronous(groups=16))},
        steps=1000,
        seeds=range(5),
    )
    print(runs)

An experiment is a value. The command trains the config of `Experiment.config()` to the same floats,
because both run the same code.
"""

import dataclasses
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field as made
from inspect import Parameter, Signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from ml_collections import ConfigDict

from optdyn import experiment, setup
from optdyn.base.calls import checked
from optdyn.base.errors import ConfigError, meant, refuse
from optdyn.base.fields import NAMES, Options, Value, default_of, like
from optdyn.base.fields import check as check_field
from optdyn.cli import in_memory
from optdyn.clock.base import Timeline
from optdyn.core import Rule, together, whole
from optdyn.experiment import default, parse
from optdyn.methods import PLAIN, Event, chosen, keys_of, load
from optdyn.methods.compose import reading
from optdyn.methods.method import ModelInfo
from optdyn.price.price import GIGABIT, Price, price
from optdyn.price.shapes import of_model
from optdyn.report import tables
from optdyn.setup import Cluster, Data, Law, Model, Optimizer, Parallel, Pieces, Probes
from optdyn.train import trainer
from optdyn.train.checkpoints import parameters
from optdyn.train.checks import check
from optdyn.train.grid import changed
from optdyn.train.warnings import probable_mistakes

__all__ = ["Experiment", "Law", "Method", "Trained", "optimizer"]


@checked
@dataclass(frozen=True)
class Method:
    """A way of parallelising SGD, or several that are joined: `diloco(period=8) + local()`.

    `keys` are the fields that differ from their defaults (`optdyn list keys method.`). A field
    that two joined methods have with different values is `METHOD.FIELD`, as in `diloco.period`.
    An unknown field raises `ConfigError`, and so does a value that it cannot have.
    """

    name: str
    keys: Mapping[str, Any] = made(default_factory=dict)

    def __post_init__(self) -> None:
        fields = self._fields()
        known = {key for of in fields.values() for key in of}
        known |= {f"{name}.{key}" for name, of in fields.items() for key in of}
        for key in self.keys:
            if key not in known:
                raise ConfigError(f"{self.name} has no field {key!r}{meant(key, known)}")
        kept = dict(self.keys)
        for name, method in zip(fields, chosen(self.name).every, strict=True):
            for each in dataclasses.fields(method):
                for key in kept.keys() & {each.name, f"{name}.{each.name}"}:
                    kept[key] = like(kept[key], default_of(each))
                    if "about" in each.metadata:  # else it is the user's own, of any kind
                        check_field(f"config.method.{key}", kept[key], each)
        object.__setattr__(self, "keys", Options(kept))

    @checked
    def __add__(self, other: "Method") -> "Method":
        every, usual = self._values() | other._values(), self._fields() | other._fields()
        keys = dict[str, Any]()
        for name, values in every.items():
            for key, value in values.items():
                alike = all(of[key] == value for of in every.values() if key in of)
                if value != usual[name][key]:
                    keys[key if alike else f"{name}.{key}"] = value
        return Method(f"{self.name}+{other.name}", keys)

    def _fields(self) -> dict[str, dict[str, Any]]:
        """The fields of each of the methods, with their defaults."""
        every = chosen(self.name).every
        parts = zip(self.name.split("+"), every, strict=True)
        return {name: keys_of(type(method)) for name, method in parts}

    def _values(self) -> dict[str, dict[str, Any]]:
        """The fields of each of the methods, with their values."""
        return {
            name: {
                key: self.keys.get(f"{name}.{key}", self.keys.get(key, value))
                for key, value in of.items()
            }
            for name, of in self._fields().items()
        }

    @checked
    def around(
        self,
        loss: Callable[[Any, Any], jax.Array],
        optimizer: optax.GradientTransformation,
        slots: int | None = None,
    ) -> Rule:
        """The update rule alone, for a training loop of your own.

        `loss(params, batch)` is the mean loss of a batch, a scalar; `optimizer` is any optax
        transformation. The rule's `init(params)` returns the first state; methods that keep older
        versions want a dict of parameters, of any trees. Its
        `step(state, event, batch)` returns the next state and a dict of scalars, `loss` among them;
        `Clock.events` has the events. `slots` is the number of versions that are kept,
        `Clock.slots`; the default is the number of groups. Raises `ConfigError` for methods that
        take gradients in another way, and for those whose nodes have parameters of their own.
        """
        methods = chosen(self.name)
        if methods.gradient or methods.mix:
            raise ConfigError(f"{self.name}: only a method of reading is a rule by itself")
        config = Experiment(method=self).parsed()
        update = together(optax.with_extra_args_support(optimizer))
        slots = slots or config.methods.groups
        return reading(config.methods, whole(loss), update, slots)

    @checked
    def clock(
        self,
        cluster: Cluster,
        steps: int,
        seed: int = 0,
        batch_size: int = 64,
        update_bytes: int = 0,
    ) -> "Clock":
        """Who reads and writes which version when, and the simulated seconds. It needs no model.

        `update_bytes` is the size of the parameters, float32, and so of a message. A method that
        cuts or compresses them sees an array for each fragment, all of one size.
        Raises `ConfigError` for a setting that cannot be, or whose seconds depend on the model's
        layers, and `TimelineError` for a trace that does not fit.
        """
        refuse((update_bytes < 0, f"update_bytes = {update_bytes}: must be at least 0"))
        of = Experiment(method=self, cluster=cluster, steps=steps, seed=seed, batch_size=batch_size)
        config = of.parsed()
        check(config)
        known: dict[str, Any] = {"steps_per_epoch": steps, "update_bytes": update_bytes}
        if config.methods.mix:
            parts = config.methods.get("fragments", 1)
            part = jax.ShapeDtypeStruct((max(update_bytes // 4 // parts, 1),), jnp.float32)
            nothing: Any = None  # no loss is asked for
            known["network"] = ModelInfo(nothing, {f"part{i}": part for i in range(parts)}, {})
        return Clock(config.timeline(**known))


class Clock(NamedTuple):
    """A timeline, and its events in the form that the rule of `Method.around` takes."""

    timeline: Timeline

    @property
    def seconds(self) -> np.ndarray:
        """(steps,) simulated seconds of the updates."""
        return self.timeline.seconds

    @property
    def staleness(self) -> np.ndarray:
        """(steps,) updates between a gradient's reading and its arrival."""
        return self.timeline.staleness

    @property
    def slots(self) -> int:
        """How many versions of the parameters are kept."""
        return self.timeline.slots

    @property
    def events(self) -> Event:
        """The events of all updates, with an axis of `steps` before all others, for `lax.scan`."""
        return Event(self.timeline.choice, {}, self.timeline.staleness)


@checked
def method(name: str) -> Callable[..., Method]:
    """Returns what makes the method with that name: `method("diloco")(period=8)`."""
    made_of = load(name)
    keys = keys_of(made_of)

    def make(**fields: Any) -> Method:
        return Method(name, fields)

    make.__name__ = make.__qualname__ = name
    by_name = [Parameter(key, Parameter.KEYWORD_ONLY, default=of) for key, of in keys.items()]
    joined = Parameter("fields", Parameter.VAR_KEYWORD)  # as of two methods: METHOD.FIELD
    make.__signature__ = Signature([*by_name, joined])  # type: ignore[attr-defined]
    shown = ", ".join(f"{key}={value!r}" for key, value in keys.items())
    about = sys.modules[made_of.__module__].__doc__
    make.__doc__ = f"{about}\nFields: {shown}."
    return checked(make)


@checked
def exponential() -> Law:
    """Exponential times, which are memoryless."""
    return Law("exponential")


@checked
def constant() -> Law:
    """A constant time."""
    return Law("constant")


@checked
def lognormal(variation: float = 1.0) -> Law:
    """Lognormal times; `variation` is their standard deviation over their mean."""
    return Law("lognormal", {"variation": variation})


@checked
def gamma(variation: float = 1.0) -> Law:
    """Gamma times; `variation` is their standard deviation over their mean."""
    return Law("gamma", {"variation": variation})


@checked
def trace(path: str | Path) -> Law:
    """Recorded arrivals: a CSV file with the columns `worker` and `seconds`, a row an update.

    A row says which group delivered, from 0 on, and when, in seconds from the start. `version`, how
    many updates the parameters of its gradient had, and `control.*`, as in the `trace.csv` of a
    run, may be there too.
    """
    return Law("trace", {"trace": str(path)})


@checked
def optimizer(
    name: Any, learning_rate: float = 0.1, momentum: float = 0.0, **more: Any
) -> Optimizer:
    """An optimizer of optax by its name, or a function of your own that returns one.

    `more` are its other arguments, or other fields of `Optimizer`: `schedule`, `warmup_steps`,
    `decay_steps`, `decay_rate`, `chain` and their options. A chain has names, functions that return
    a transformation, or optax transformations themselves.
    """
    own = {each.name for each in dataclasses.fields(Optimizer)} - {"name", "options"}
    fields = {key: value for key, value in more.items() if key in own}
    if "chain" in fields:
        fields["chain"] = in_memory.chain(fields["chain"])
    options = Options({key: value for key, value in more.items() if key not in own})
    return Optimizer(name, learning_rate, momentum, options=options, **fields)


@checked
def sgd(learning_rate: float = 0.1, momentum: float = 0.0, **more: Any) -> Optimizer:
    """SGD with heavy-ball momentum, which may be negative."""
    return optimizer("sgd", learning_rate, momentum, **more)


@checked
def adam(learning_rate: float = 1e-3, **more: Any) -> Optimizer:
    """Adam; `more` as in `optimizer`."""
    return optimizer("adam", learning_rate, **more)


@checked
def adamw(learning_rate: float = 1e-3, **more: Any) -> Optimizer:
    """AdamW; `more` as in `optimizer`."""
    return optimizer("adamw", learning_rate, **more)


@dataclass(frozen=True)
class Experiment(setup.Run):
    """What is trained, by which method, on which cluster, and for how long.

    `model`: a `Model`; a flax module; a pair of functions `init(key, x)` and `apply(params, x)`; or
    a function of the number of classes that returns a module or named blocks.
    `data`: a `Data`; a dict of arrays `image`, `x` or `text` with `label` or `y`, whose first axis
    counts examples; or a dict of such dicts, `train` and `test`.
    `optimizer`: what `optdyn.sgd` and its like return, or any optax transformation.
    `loss`: a function of outputs and batch that returns one number for each example; `metrics`:
    such functions, or names of metrics.

    All other fields have ranges. A bad value raises `ConfigError`, one line that names it.
    """

    model: Any = made(default_factory=Model)
    data: Any = made(default_factory=Data)
    optimizer: Any = made(default_factory=Optimizer)
    method: Method = made(default_factory=lambda: Method(PLAIN))
    cluster: Cluster = made(default_factory=Cluster)
    parallel: Parallel = made(default_factory=Parallel)
    probes: Probes = made(default_factory=Probes)

    def __post_init__(self) -> None:
        for name in PARTS:
            given = getattr(self, name)
            if callable(given) and getattr(given, "__module__", "") in OURS:
                raise ConfigError(
                    f"Experiment.{name} must be optdyn.{given.__name__}(...), not the function"
                )
        for name, of in in_memory.NAMED.items():
            object.__setattr__(self, name, of(getattr(self, name)))
        for name, kind in PARTS.items():
            if not isinstance(value := getattr(self, name), kind):
                said = f"Experiment.{name} must be of type {kind.__name__}"
                if isinstance(value, str):
                    one = f"{value}()" if name == "method" else f"{kind.__name__}({value!r})"
                    raise ConfigError(f"{said}, such as optdyn.{one}, not {value!r}")
                named = ", such as optdyn.Method('MODULE:NAME')" if name == "method" else ""
                raise ConfigError(f"{said}{named}, not {type(value).__name__}")
        super().__post_init__()

    def config(self) -> ConfigDict:
        """The config from which the command trains the same run. Raises `ConfigError`."""
        return changed(default(), self.keys())

    def parsed(self) -> experiment.Experiment:
        """The parsed experiment, which the trainer takes. Raises `ConfigError`."""
        return parse(self.config())

    def keys(self) -> dict[str, Any]:
        """The config's keys with their values: all fields, and the keys that the method sets."""
        values = dict(_keys_of(self))
        for part in PARTS:
            if part != "method":
                values |= _keys_of(getattr(self, part))
        own = {key for name, of in self.method._fields().items() if ":" in name for key in of}
        values["method.name"] = self.method.name
        for key, value in self.method.keys.items():
            short = key.rpartition(".")[2]
            values[f"method.options.{short}" if short in own else f"method.{key}"] = value
        return values

    def changed_keys(self) -> dict[str, Any]:
        """The keys whose values are not the usual ones."""
        usual = Experiment().keys()
        return {key: value for key, value in self.keys().items() if value != usual.get(key)}

    def warn(self) -> None:
        """Warns, at the line of whoever called a `checked` caller, of everything hardly meant.

        Raises `ConfigError`.
        """
        config = self.parsed()
        check(config)
        for doubt in probable_mistakes(config, self.changed_keys()):
            warnings.warn(doubt, stacklevel=4)

    @checked
    def train(self, workdir: str | Path | None = None) -> "Trained":
        """Trains, and returns the log, the summary and the parameters.

        With a `workdir` this is the run of the command: it resumes there, and `optdyn report` reads
        it. Without one nothing is kept on disk. Warns of settings that nothing reads, or that are
        hardly meant. Raises `ConfigError`.
        """
        self.warn()
        where = nullcontext(workdir) if workdir else tempfile.TemporaryDirectory()
        with where as folder:
            assert folder  # the last part of a path is what progress is called
            path = Path(folder) if workdir else Path(folder, re.sub(r"\W+", "-", self.method.name))
            trainer.train(self.parsed(), path)
            return trained(self, path)

    @checked
    def timeline(self) -> Timeline:
        """Who reads and writes which version when, and the simulated seconds, without training."""
        return trainer.prepare(self.parsed()).timeline

    @checked
    def price(self, bandwidth: float | None = None, settled: bool = False) -> Price:
        """The simulated seconds of its method on its cluster, without training.

        The price is that of this run, from its first update to its last. With `settled` it is that
        of the steady state, which has no beginning and no end; DASO has only this one. `bandwidth`,
        in bytes a second between nodes, replaces the cluster's, also those of single links. Raises
        `ConfigError` and `TimelineError`.
        """
        config = self.parsed()
        if bandwidth is not None:
            config = config.with_({"cluster.bandwidth": bandwidth, "cluster.bandwidths": ()})
        return price(config, of_model(config), 0 if settled else config.steps)

    @checked
    def which(
        self,
        *penalty: str | Path,
        target: float | None = None,
        where: Mapping[str, Any] = MappingProxyType({}),
        bandwidth: float | None = None,
    ) -> pd.DataFrame:
        """Which of the measured methods takes the least time on this cluster.

        The runs of `penalty`, workdirs of sweeps, say how many updates each method takes to the
        training loss `target`, over tuned synchronous training. The seconds of an update are priced
        for this model and cluster; `batch_size` is taken as that of synchronous training, whatever
        this experiment's own method. `where` has the values of keys by which runs are chosen.
        `bandwidth` replaces the cluster's, in bytes a second between nodes.

        The table has a row a method, the best first: `updates` and `time` over those of synchronous
        training with the ends of their 95 % intervals, `seconds` an update with the least and most
        of five orders of arrivals, and `told`, whether a difference from the best is seen. Raises
        `ConfigError` and `TableError`.
        """
        from optdyn.report import penalties, which

        config = self.parsed()
        if bandwidth is None:
            wanted = "config.cluster.bandwidths: must be (), or give a `bandwidth` of all"
            refuse((config.cluster.bandwidths, wanted))
            bandwidth = config.cluster.bandwidth
        config = config.with_({"cluster.bandwidths": ()})
        texts = [f"{key}={value}" for key, value in where.items()]
        loss = np.nan if target is None else target
        found = penalties.measured([Path(source) for source in penalty], loss, texts)
        gigabits = bandwidth / GIGABIT
        (answer,) = which.answers(config, of_model(config), found, [gigabits])
        ends = {"updates": ("low", "high"), "seconds": ("least", "most"), "time": ("low", "high")}
        rows = []
        for row in answer.rows:
            said: dict[str, Any] = {"method": row.label}
            for name, (least, most) in ends.items():
                value, low, high = getattr(row, name)
                said |= {name: value, f"{name}_{least}": low, f"{name}_{most}": high}
            rows.append(said | {"told": row.word})
        return pd.DataFrame(rows).set_index("method")


OURS = (__name__, setup.__name__)  # whose functions and classes make parts, and are none
PARTS: dict[str, type] = {
    "model": Model,
    "data": Data,
    "optimizer": Optimizer,
    "method": Method,
    "cluster": Cluster,
    "parallel": Parallel,
    "probes": Probes,
}


class MomentumEstimate(NamedTuple):
    """Implicit momentum with its 95 % interval, and the p-value of the model.

    Where p is small, what asynchrony does is not one term of momentum, and the value says little.
    """

    implicit_momentum: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, eq=False)
class Trained:
    """A run that has ended.

    `log` has a row a log point: `step`, `simulated_seconds`, `train_loss` and others. `params` are
    those of the last checkpoint, or None if the run diverged before one.
    """

    experiment: Experiment
    log: pd.DataFrame
    summary: Mapping[str, Any]
    params: Any

    def __repr__(self) -> str:
        last, its = self.log.iloc[-1], self.experiment
        return (
            f"Trained({its.method.name}, seed {its.seed}: "
            f"{self.summary['status']} after {last['step']:,.0f} updates, "
            f"{last['simulated_seconds']:.4g} simulated seconds, training loss "
            f"{last['train_loss']:.4g})"
        )

    @property
    def diverged(self) -> bool:
        return bool(self.summary["status"] == "diverged")

    def implicit_momentum(self) -> MomentumEstimate:
        """The momentum meter's reading over the run.

        A run without a meter is trained once more with it, to the same floats. Raises `ConfigError`
        if the run is too short or the meter refuses.
        """
        if "implicit_momentum" in self.summary:
            names = ("", "_low", "_high", "_p")
            return MomentumEstimate(*(float(self.summary[f"implicit_momentum{n}"]) for n in names))
        if self.experiment.probes.momentum:
            why = self.summary.get("implicit_momentum_refused", "no window of it has ended")
            raise ConfigError(f"implicit momentum: not known of this run ({why})")
        metered = self.experiment.with_(probes=self.experiment.probes.with_(momentum=True))
        return metered.train().implicit_momentum()


def trained(of: Experiment, folder: Path) -> Trained:
    """The run of an experiment that has ended in a folder."""
    (point,) = tables.points(folder)
    log = tables.metrics([point]).drop(columns="point")
    kept = any((folder / "checkpoints").glob("*"))
    return Trained(of, log, point.summary, parameters(folder)[1] if kept else None)


def _keys_of(of: Value) -> dict[str, Any]:
    """The fields of a value, and of those in it, as keys of a config; not those of its parts."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(of):
        key, value = of.key(each.name), getattr(of, each.name)
        if isinstance(value, Mapping):  # options, whose keys are free
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif "about" in each.metadata:
            found[key] = in_memory.name_of(value) if each.name in NAMES else value
        elif isinstance(value, Pieces):
            found |= _keys_of(value)
    return found
