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
    runs.table()

An experiment is a value. What it trains to is what the command trains to from the config of
`Experiment.config()`, to the same floats, for it is trained by the same code.
"""

import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field as made
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
import pandas as pd
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from optdyn import experiment, strategies
from optdyn.analysis import efficiency, figures, tables
from optdyn.analysis.figures import OKABE_ITO
from optdyn.basics.cache_keys import Is
from optdyn.basics.errors import ConfigError, meant
from optdyn.basics.fields import NAMES, Options, Value
from optdyn.config import default, parse
from optdyn.core import Rule, together, whole
from optdyn.evidence.intervals import ratio
from optdyn.experiment import Cluster, Data, Law, Model, Optimizer, Parallel, Pieces, Probes
from optdyn.grid import changed, grid, named
from optdyn.launch import in_memory
from optdyn.outputs.workdir import parameters
from optdyn.strategies.compose import reading
from optdyn.timeline.base import Timeline
from optdyn.training import trainer
from optdyn.training.checks import check
from optdyn.tuning.price import GIGABIT, Price, of_model, price

__all__ = ["Comparison", "Experiment", "Law", "Method", "Trained", "compare", "optimizer"]


@dataclass(frozen=True)
class Method:
    """A way of parallelising SGD, or several that are joined: `diloco(period=8) + local()`.

    `keys` are its fields that are not as they are by default (`optdyn list keys strategy.`). What
    joined methods both have and not alike is `METHOD.FIELD`, as in `diloco.period`.
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
        every = strategies.chosen(self.name).every
        parts = zip(self.name.split("+"), every, strict=True)
        return {name: strategies.keys_of(type(method)) for name, method in parts}

    def _values(self) -> dict[str, dict[str, Any]]:
        """The same, with their values."""
        return {
            name: {
                key: self.keys.get(f"{name}.{key}", self.keys.get(key, value))
                for key, value in of.items()
            }
            for name, of in self._fields().items()
        }

    def around(
        self,
        loss: Callable[[Any, Any], jax.Array],
        optimizer: optax.GradientTransformation,
        slots: int | None = None,
    ) -> Rule:
        """The update rule alone, for a training loop of your own.

        `loss(params, batch)` is the mean loss of a batch; `optimizer` any optax transformation.
        `init(params)` is the state, `step(state, event, batch)` the next and what it says; `events`
        of `clock` are what it takes. `slots`: those of the timeline; by default as many as groups.
        Raises `ConfigError` for methods that take gradients in a way of their own, or whose nodes
        have parameters of their own.
        """
        methods = strategies.chosen(self.name)
        if methods.gradient or methods.mix:
            raise ConfigError(f"{self.name}: only a method of reading is a rule by itself")
        config = Experiment(method=self).parsed()
        update = together(optax.with_extra_args_support(optimizer))
        slots = slots or config.strategy.methods.groups
        return reading(config.strategy.methods, whole(loss), update, slots)

    def clock(
        self,
        cluster: Cluster,
        steps: int,
        seed: int = 0,
        batch_size: int = 64,
        update_bytes: int = 0,
    ) -> "Clock":
        """Who reads and writes which version when, and the simulated seconds: no model is needed.

        `update_bytes` is what an update sends, the size of the parameters. Raises `ConfigError` and
        `TimelineError`.
        """
        of = Experiment(method=self, cluster=cluster, steps=steps, seed=seed, batch_size=batch_size)
        config = of.parsed()
        check(config)
        known = {"steps_per_epoch": steps, "update_bytes": update_bytes}
        return Clock(strategies.timeline_of(config, **known))


class Clock(NamedTuple):
    """A timeline, and its updates as a rule takes them."""

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
        return self.timeline.slots

    @property
    def events(self) -> strategies.Event:
        """What `step` takes, of all updates: to be scanned over."""
        return strategies.Event(self.timeline.choice, {}, self.timeline.staleness)


def method(name: str) -> Callable[..., Method]:
    """`method("diloco")(period=8)`: the built-in method of that name, its fields by keyword."""
    made_of = strategies.load(name)
    keys = strategies.keys_of(made_of)

    def make(**fields: Any) -> Method:
        return Method(name, fields)

    make.__name__ = make.__qualname__ = name
    shown = ", ".join(f"{key}={value!r}" for key, value in keys.items())
    about = sys.modules[made_of.__module__].__doc__
    make.__doc__ = f"{about}\nFields: {shown}."
    return make


def exponential() -> Law:
    """Memoryless times."""
    return Law("exponential")


def constant() -> Law:
    """The same time always."""
    return Law("constant")


def lognormal(variation: float = 1.0) -> Law:
    """Lognormal times; `variation`: their standard deviation over their mean."""
    return Law("lognormal", {"variation": variation})


def gamma(variation: float = 1.0) -> Law:
    """Gamma times; `variation`: their standard deviation over their mean."""
    return Law("gamma", {"variation": variation})


def trace(path: str | Path) -> Law:
    """Times, or a whole run's arrivals, that were recorded in a CSV file."""
    return Law("trace", {"trace": str(path)})


def optimizer(
    name: Any, learning_rate: float = 0.1, momentum: float = 0.0, **more: Any
) -> Optimizer:
    """An optimizer of optax by its name, or your own function; `more`: its other arguments.

    `schedule`, `warmup_steps`, `decay_steps`, `decay_rate`, `chain` and their options are fields of
    `Optimizer`.
    """
    own = {each.name for each in dataclasses.fields(Optimizer)} - {"name", "options"}
    fields = {key: value for key, value in more.items() if key in own}
    options = Options({key: value for key, value in more.items() if key not in own})
    return Optimizer(name, learning_rate, momentum, options=options, **fields)


def sgd(learning_rate: float = 0.1, momentum: float = 0.0, **more: Any) -> Optimizer:
    """SGD with heavy-ball momentum, which may be negative."""
    return optimizer("sgd", learning_rate, momentum, **more)


def adam(learning_rate: float = 1e-3, **more: Any) -> Optimizer:
    """Adam."""
    return optimizer("adam", learning_rate, **more)


def adamw(learning_rate: float = 1e-3, **more: Any) -> Optimizer:
    """AdamW."""
    return optimizer("adamw", learning_rate, **more)


@dataclass(frozen=True)
class Experiment(experiment.Run):
    """What is trained, by which method, on which cluster, and for how long.

    `model` is a `Model` by its name, a flax module, a pair of functions `(init(key, x),
    apply(params, x))`, or a function of the number of classes that returns a module or blocks.
    `data` is a `Data` by its name, or a dict of arrays `image`, `x` or `text` with `label` or `y`,
    the first axis counting examples; or such dicts as `train` and `test`. `optimizer` is one of
    `optdyn.sgd` and its like, or any optax transformation. `loss` is a function of outputs and
    batch that returns a number an example. All else are fields with ranges: a bad value raises
    `ConfigError`, one line that says which.
    """

    model: Any = made(default_factory=Model)
    data: Any = made(default_factory=Data)
    optimizer: Any = made(default_factory=Optimizer)
    method: Method = made(default_factory=lambda: Method(strategies.PLAIN))
    cluster: Cluster = made(default_factory=Cluster)
    parallel: Parallel = made(default_factory=Parallel)
    probes: Probes = made(default_factory=Probes)

    def __post_init__(self) -> None:
        for name, of in (("model", _model), ("data", _data), ("optimizer", _optimizer)):
            object.__setattr__(self, name, of(getattr(self, name)))
        for name, kind in PARTS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(
                    f"Experiment.{name} must be of type {kind.__name__}, not {type(value).__name__}"
                )
        super().__post_init__()

    def config(self) -> ConfigDict:
        """The config that the command trains the same from. Raises `ConfigError`."""
        return changed(default(), self.keys())

    def parsed(self) -> experiment.Experiment:
        """What the trainer takes. Raises `ConfigError`."""
        return parse(self.config())

    def keys(self) -> dict[str, Any]:
        """Values of the keys of a config: all fields, and those of the method that are set."""
        values = dict(_keys_of(self))
        for part in PARTS:
            if part != "method":
                values |= _keys_of(getattr(self, part))
        own = {key for name, of in self.method._fields().items() if ":" in name for key in of}
        values["strategy.name"] = self.method.name
        for key, value in self.method.keys.items():
            short = key.rpartition(".")[2]
            values[f"strategy.options.{short}" if short in own else f"strategy.{key}"] = value
        return values

    def train(self, workdir: str | Path | None = None) -> "Trained":
        """Trains; without a `workdir`, in a folder that is removed afterwards.

        With one it is the run of the command: it is resumed there, and can be reported on.
        """
        where = nullcontext(workdir) if workdir else tempfile.TemporaryDirectory()
        with where as folder:
            assert folder
            trainer.train(self.parsed(), folder)
            return _trained(self, Path(folder))

    def timeline(self) -> Timeline:
        """Who reads and writes which version when, and the seconds; nothing is trained."""
        return trainer.prepare(self.parsed()).timeline

    def price(self, bandwidth: float | None = None, settled: bool = False) -> Price:
        """What its method takes in seconds on its cluster, without training.

        It is of this run, from the first update to the last, or of the `settled` state, which has
        no beginning and no end; of DASO of that alone. `bandwidth`: bytes a second between nodes,
        in place of the cluster's. Raises `ConfigError` and `TimelineError`.
        """
        config = self.parsed()
        if bandwidth is not None:
            config = config.with_({"cluster.bandwidth": bandwidth})
        return price(config, of_model(config), 0 if settled else config.steps)

    def which(
        self,
        *penalty: str | Path,
        target: float | None = None,
        where: Mapping[str, Any] = MappingProxyType({}),
        bandwidth: float | None = None,
    ) -> pd.DataFrame:
        """Which of the methods that were measured takes the least time on this cluster.

        `penalty`: workdirs of sweeps, or a scoreboard of `optdyn papers`, which say how many
        updates methods take to the training loss `target` over tuned synchronous training; what an
        update takes is priced here, of this model, cluster and batch (that of synchronous training,
        whatever the experiment's own method). `where`: values of keys that runs agree with.
        `bandwidth`: bytes a second between nodes, in place of the cluster's.

        A row a method, the best first: `updates` and `time` over those of synchronous training with
        the ends of their 95 % intervals, `seconds` an update with least and most of five orders of
        arrivals, and whether it is told from the best. Raises `ConfigError` and `TableError`.
        """
        from optdyn.analysis import penalties
        from optdyn.launch import which

        config = self.parsed()
        if bandwidth is None:
            bandwidth = config.cluster.bandwidth
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


PARTS: dict[str, type] = {
    "model": Model,
    "data": Data,
    "optimizer": Optimizer,
    "method": Method,
    "cluster": Cluster,
    "parallel": Parallel,
    "probes": Probes,
}


@dataclass(frozen=True, eq=False)
class Trained:
    """A run that has ended."""

    experiment: Experiment
    log: pd.DataFrame  # a row a log point: step, simulated_seconds, train_loss, ...
    summary: Mapping[str, Any]
    params: Any  # of the last checkpoint; None if there is none, as it diverged

    def implicit_momentum(self) -> tuple[float, float, float]:
        """(reading, low, high) of the momentum meter over the run, with its 95 % interval.

        A run that had no meter is trained once more with it, to the same floats. Raises
        `ConfigError` where the run is too short or does not say.
        """
        if "implicit_momentum" in self.summary:
            names = ("", "_low", "_high")
            value, low, high = (float(self.summary[f"implicit_momentum{n}"]) for n in names)
            return value, low, high
        if self.experiment.probes.momentum:
            why = self.summary.get("implicit_momentum_refused", "no window of it has ended")
            raise ConfigError(f"implicit momentum: not known of this run ({why})")
        metered = self.experiment.with_(probes=self.experiment.probes.with_(momentum=True))
        return metered.train().implicit_momentum()


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several experiments, each trained with several seeds, the same ones."""

    runs: Mapping[str, tuple[Trained, ...]]

    def __getitem__(self, name: str) -> "Arm":
        return Arm(name, self.runs[name])

    @cached_property
    def target(self) -> float:
        """The training loss that all are compared by: the highest that some run ends at."""
        ends = [run.log["train_loss"].min() for arm in self.runs.values() for run in arm]
        return float(max(ends))

    def table(self, target: float | None = None) -> pd.DataFrame:
        """The way of each experiment to a training loss, a row each: medians over the seeds.

        Columns: `updates` and simulated `seconds` to the loss `target`, by default that of the
        comparison; the ratio of each to the first experiment's, with the ends of its 95 % interval
        over pairs of seeds; the `loss` at the end; how many `seeds`. A run that does not get there
        takes infinitely many.
        """
        loss = self.target if target is None else target
        way = {
            name: np.array([efficiency.to_target(run.log, loss) for run in arm])
            for name, arm in self.runs.items()
        }
        first = next(iter(way.values()))
        rows = []
        for name, arm in self.runs.items():
            row: dict[str, Any] = {"experiment": name}
            for i, clock in enumerate(("updates", "seconds")):
                value, low, high = ratio(list(way[name][:, i]), list(first[:, i]))
                row |= {clock: float(np.median(way[name][:, i])), f"{clock}_ratio": value}
                row |= {f"{clock}_low": low, f"{clock}_high": high}
            ends = [run.log["train_loss"].iloc[-1] for run in arm]
            rows.append(row | {"loss": float(np.median(ends)), "seeds": len(arm)})
        return pd.DataFrame(rows).set_index("experiment")

    def plot(self, x: str = "simulated_seconds", y: str = "train_loss") -> Figure:
        """Medians over seeds, and their range, of a column of the log along another."""
        figure, axes = figures.new()
        looks = itertools.product(figures.DASHES, OKABE_ITO)
        for name, (dashes, colour) in zip(self.runs, looks, strict=False):
            log = self[name].log
            curve = figures.Curve(name, colour, dashes, log, pd.DataFrame())
            figures.band(axes, figures.by_step(log, x, y), x, curve)
        axes.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "), yscale="log")
        figures.legend(figure)
        return figure


class Arm(NamedTuple):
    """The runs of one experiment of a comparison."""

    name: str
    runs: tuple[Trained, ...]

    @property
    def log(self) -> pd.DataFrame:
        """The log points of all seeds."""
        of = {run.experiment.seed: run.log for run in self.runs}
        return pd.concat(of, names=["seed"]).reset_index(level=0)

    def implicit_momentum(self) -> pd.DataFrame:
        """The momentum meter's readings with their 95 % intervals, a row a seed."""
        found = {run.experiment.seed: run.implicit_momentum() for run in self.runs}
        return pd.DataFrame.from_dict(found, "index", columns=["implicit_momentum", "low", "high"])


def compare(
    experiments: Mapping[str, Experiment],
    steps: int | None = None,
    seeds: Iterable[int] = range(5),
    workdir: str | Path | None = None,
) -> Comparison:
    """Trains all experiments with all seeds, as `optdyn sweep` does: in threads, compiling once.

    `steps`: updates of each, by default its own. With a `workdir` its points are those of a sweep:
    they are resumed, and `optdyn report` reads them. Raises `ConfigError`, which names the point.
    """
    from optdyn.launch import points, sweep

    drawn = tuple(seeds)
    chosen = [
        (name, one.with_(seed=seed, steps=steps or one.steps))
        for name, one in experiments.items()
        for seed in drawn
    ]
    if not chosen:
        raise ConfigError("compare: needs an experiment and a seed at least")
    usual, listed = Experiment().keys(), []
    for name, one in chosen:
        values = {key: v for key, v in one.keys().items() if v != usual.get(key)}
        listed.append({"name": f"{name},seed={one.seed}"} | values)
    where = nullcontext(workdir) if workdir else tempfile.TemporaryDirectory()
    with where as folder:
        assert folder
        config, path = grid(default(), listed), Path(folder)
        entries = points.plan(config, path)
        if sweep.sweep(config, path, entries, "threads", sweep.cores()):
            raise KeyboardInterrupt
        if workdir:
            tables.write_results(path)
        found: dict[str, list[Trained]] = {}
        for (point, _), (name, one) in zip(named(config), chosen, strict=True):
            found.setdefault(name, []).append(_trained(one, points.folder_of(path, point)))
    return Comparison({name: tuple(runs) for name, runs in found.items()})


def _trained(of: Experiment, folder: Path) -> Trained:
    (point,) = tables.points(folder)
    log = pd.DataFrame(point.log)
    kept = any((folder / "checkpoints").glob("*"))
    return Trained(of, log, point.summary, parameters(folder)[1] if kept else None)


_made = dict[Any, str]()


def _kept(make: Callable[..., Any], *things: Any) -> str:
    """The name of what is made of these very things, made once."""
    key = (make.__qualname__, *map(Is, things))
    if key not in _made:
        _made[key] = in_memory.name_of(make(*things))
    return _made[key]


def _model(given: Any) -> Any:
    if isinstance(given, nn.Module):
        return Model(_kept(_Returns, given))
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return Model(_kept(lambda *pair: _Returns(_Pure(*pair)), *given))
    return Model(in_memory.name_of(given)) if callable(given) else given


def _data(given: Any) -> Any:
    if isinstance(given, Mapping):
        return Data(_kept(_arrays, given))
    return Data(in_memory.name_of(given)) if callable(given) else given


def _optimizer(given: Any) -> Any:
    if isinstance(given, optax.GradientTransformation):
        return Optimizer(_kept(_Fixed, given), learning_rate=0.0)
    return Optimizer(in_memory.name_of(given)) if callable(given) else given


def _arrays(given: Mapping[str, Any]) -> "_Returns":
    return _Returns(given if "train" in given else {"train": given})


@dataclass(frozen=True)
class _Returns:
    """A function that returns the thing, whatever it is given."""

    thing: Any

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.thing


@dataclass(frozen=True)
class _Fixed:
    """A function of a learning rate, which the optimizer that it returns does not ask for."""

    optimizer: optax.GradientTransformation

    def __call__(self, learning_rate: Any = 0.0) -> optax.GradientTransformation:
        return self.optimizer


class _Pure(nn.Module):
    """A pair of functions as a flax module, its parameters one tree."""

    init_params: Callable[[jax.Array, jax.Array], Any]
    apply_params: Callable[[Any, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.apply_params(self.param("tree", self.init_params, x), x)


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
