"""The interface for Python: `import optdyn as od`.

    base = od.Experiment(
        model=od.MLP(hidden=(32,)),
        data=od.MNIST5k(),
        optimizer=od.SGD(learning_rate=0.1, momentum=0.9),
        cluster=od.Cluster(workers=16, service=od.Exponential()),
        batch_size=64,
    )
    runs = od.compare(
        {"1 group": base, "16 groups": base.with_(method=od.Asynchronous(groups=16))},
        steps=1000,
        seeds=range(5),
    )
    print(runs)

An experiment is a frozen value; commands make the same one of their config.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn import experiment
from optdyn.base import lookup
from optdyn.base.arguments import check_arguments
from optdyn.base.errors import ConfigError, Join, refuse
from optdyn.base.files import finite
from optdyn.clock.cluster import Cluster
from optdyn.clock.timeline import Timeline
from optdyn.core import Rule, full_gradient, single_optimizer
from optdyn.implicit_momentum.moments import Reading
from optdyn.implicit_momentum.readings import from_row
from optdyn.methods import Event, Method, MethodStack
from optdyn.methods.compose import reading
from optdyn.methods.method import ModelInfo
from optdyn.price.price import GIGABIT, Price, price
from optdyn.price.shapes import model_shapes
from optdyn.problem import models, shared_data
from optdyn.problem.models import base
from optdyn.train import trainer
from optdyn.train.checkpoints import parameters
from optdyn.train.checks import check
from optdyn.train.loop import Hook, run_to_end
from optdyn.train.warnings import probable_mistakes

if TYPE_CHECKING:
    import pandas as pd  # takes long, and a run needs none

__all__ = ["Clock", "Experiment", "Trained", "momentum", "rule", "timeline"]


@dataclass(frozen=True, kw_only=True)
class Experiment(experiment.Config):
    """What is trained, by which method, on which cluster, and for how long.

    `model`: one of `od.MLP` and its like; a flax.linen module; what `od.from_nnx` and its like
    return; a pair of functions `init(key, x)` and `apply(params, x)`, which may also take `state`,
    `key` and `train`; or a function of the number of classes that returns one of these, or named
    blocks.
    `data`: one of `od.MNIST5k` and its like; a dict of arrays `image`, `x` or `text` with `label`
    or `y`, whose first axis counts examples; or a dict of such dicts, `train` and `test`.
    `optimizer`: one of `od.SGD` and its like, or any optax transformation.
    `method`: one of `od.DiLoCo` and its like, or several joined, `od.DiLoCo() + od.Local()`.
    `loss`: a function of outputs and batch that returns one number for each example; `metrics`:
    such functions, or names of metrics.

    All other fields have ranges. A bad value raises `ConfigError`, one line that names it.
    """

    def warn(self) -> None:
        """Warns of probable mistakes, at the line that called the caller. Raises `ConfigError`."""
        check(self)
        for doubt in probable_mistakes(self, self.changed_keys()):
            warnings.warn(doubt, stacklevel=4)

    @check_arguments
    def train(self, workdir: str | Path | None = None, hooks: Iterable[Hook] = ()) -> "Trained":
        """Trains, and returns the log, the summary and the parameters.

        With a `workdir` it is the run of `optdyn train`: it resumes there, and `optdyn report`
        reads it. Without one no file is written. `hooks` are called with the updates as they are
        made. Warns of unused settings and probable mistakes. Raises `ConfigError`.
        """
        self.warn()
        if workdir:
            trainer.train(self, workdir, tuple(hooks))
            return read_run(self, Path(workdir))
        with lookup.files_read_once():
            run = trainer.prepare(self)
            return run_of_memory(self, run_to_end(trainer.in_memory(run, user_hooks=tuple(hooks))))

    def timeline(self, **known: Any) -> Timeline:
        """Returns who reads and writes which version when, and the simulated seconds.

        `known` are fields of `ClockInputs`. Raises `ConfigError` and `TimelineError`.
        """
        return super().timeline(**known) if known else trainer.prepare(self).timeline

    @check_arguments
    def price(self, bandwidth: float | None = None, settled: bool = False) -> Price:
        """Returns the simulated seconds of the method on the cluster, without training.

        They are those of this run, or with `settled` of the steady state, the only ones for DASO.
        `bandwidth`, in bytes a second between nodes, replaces the cluster's, also of single links.
        Raises `ConfigError` and `TimelineError`.
        """
        config = self
        if bandwidth is not None:
            config = self.with_({"cluster.bandwidth": bandwidth, "cluster.bandwidths": ()})
        return price(config, model_shapes(config), 0 if settled else config.steps)

    @check_arguments
    def which(
        self,
        *penalty: str | Path,
        target: float | None = None,
        where: Mapping[str, Any] = MappingProxyType({}),
        bandwidth: float | None = None,
    ) -> "pd.DataFrame":
        """Returns which of the measured methods takes the least time on this cluster.

        The runs of `penalty`, workdirs of sweeps, give the updates of methods to the training loss
        `target` over those of tuned synchronous training; `where` has values of keys that select
        runs. The seconds of an update are priced for this model and cluster, with `bandwidth`, in
        bytes a second between nodes, in place of the cluster's.

        The table has a row a method, the best first: `updates` and `time` over those of synchronous
        training with the ends of their 95 % intervals, `seconds` an update with the least and most
        of five orders of arrivals, and `told`, whether a difference from the best is seen. Raises
        `ConfigError` and `TableError`.
        """
        import pandas as pd

        from optdyn.report import penalties, which

        config = self
        if bandwidth is None:
            line = "must be (), or give a `bandwidth` of all"
            join = Join("cluster.bandwidths", config.cluster.bandwidths, line)
            experiment.refuse_first(config, [join])
            bandwidth = config.cluster.bandwidth
        config = config.with_({"cluster.bandwidths": ()})
        texts = [f"{key}={value}" for key, value in where.items()]
        loss = np.nan if target is None else target
        found = penalties.measured([Path(source) for source in penalty], loss, texts)
        gigabits = bandwidth / GIGABIT
        (answer,) = which.answers(config, model_shapes(config), found, [gigabits])
        ends = {"updates": ("low", "high"), "seconds": ("least", "most"), "time": ("low", "high")}
        rows = []
        for row in answer.rows:
            cells: dict[str, Any] = {"method": row.label}
            for name, (least, most) in ends.items():
                value, low, high = getattr(row, name)
                cells |= {name: value, f"{name}_{least}": low, f"{name}_{most}": high}
            rows.append(cells | {"told": row.word})
        return pd.DataFrame(rows).set_index("method")


class Clock(NamedTuple):
    """A timeline, and its events in the form that the update of `rule` takes."""

    timeline: Timeline

    @property
    def seconds(self) -> np.ndarray:
        """Returns the simulated seconds at which updates are made, (steps,)."""
        return self.timeline.seconds

    @property
    def staleness(self) -> np.ndarray:
        """Returns the updates between a gradient's read and its arrival, (steps,)."""
        return self.timeline.staleness

    @property
    def slots(self) -> int:
        """Returns how many versions of the parameters are kept."""
        return self.timeline.slots

    @property
    def events(self) -> Event:
        """Returns the events of all updates with a leading axis of `steps`, for `lax.scan`."""
        return Event(self.timeline.plan, {}, self.timeline.staleness)


@check_arguments
def rule(
    method: Method,
    loss: Callable[[Any, Any], jax.Array],
    optimizer: optax.GradientTransformation,
    slots: int | None = None,
) -> Rule:
    """Returns the update rule of a method, for your training loop.

    `loss(params, batch)` is the mean loss of a batch. The rule's `init(params)` returns the first
    state; methods that keep older versions need a dict of trees. Its `step(state, event, batch)`
    returns the next state and a dict of scalars with `loss`; `Clock.events` has the events. `slots`
    is `Clock.slots`, by default the number of groups. Raises `ConfigError` for methods that compute
    gradients in another way or whose nodes have different parameters.
    """
    methods = MethodStack.wrap(method)
    if methods.gradient or methods.mix:
        raise ConfigError(f"{methods.name}: must be a method that only reads older versions")
    update = single_optimizer(optax.with_extra_args_support(optimizer))
    return reading(methods, full_gradient(loss), update, slots or methods.groups)


@check_arguments
def timeline(
    method: Method | MethodStack,
    cluster: Cluster,
    steps: int,
    seed: int = 0,
    batch_size: int = 64,
    update_bytes: int = 0,
) -> Clock:
    """Returns who reads and writes which version when, and the simulated seconds, without a model.

    `update_bytes` is the size of the float32 parameters; fragments of them have one size. Raises
    `ConfigError`, also if seconds depend on the model's layers, and `TimelineError` for a trace
    that does not fit.
    """
    refuse((update_bytes < 0, f"update_bytes = {update_bytes}: must be at least 0"))
    its = Experiment(method=method, cluster=cluster, steps=steps, seed=seed, batch_size=batch_size)
    check(its)
    known: dict[str, Any] = {"steps_per_epoch": steps, "update_bytes": update_bytes}
    if its.methods.mix:
        parts = its.methods.get("fragments", 1)
        part = jax.ShapeDtypeStruct((max(update_bytes // 4 // parts, 1),), jnp.float32)
        nothing: Any = None  # no loss is asked for
        known["model_info"] = ModelInfo(nothing, {f"part{i}": part for i in range(parts)}, {})
    return Clock(its.timeline(**known))


@dataclass(frozen=True, eq=False)
class Trained:
    """A run that has ended.

    `log` has a row a log point: `step`, `simulated_seconds`, `train_loss` and others. `params` are
    the last ones, None if the run diverged; with a workdir those of its last checkpoint.
    `variables` are what was evaluated last, by the prefix of its names in the log: parameters, with
    the model's state; and their average, if there is one.
    """

    experiment: Experiment
    log: "pd.DataFrame"
    summary: Mapping[str, Any]
    params: Any
    kept: Mapping[str, Any] | Path  # `variables`, or the workdir that has them

    def __repr__(self) -> str:
        last, its = self.log.iloc[-1], self.experiment
        return (
            f"Trained({its.method.name}, seed {its.seed}: "
            f"{self.summary['status']} after {last['step']:,.0f} updates, "
            f"{last['simulated_seconds']:.4g} simulated seconds, training loss "
            f"{last['train_loss']:.4g})"
        )

    @cached_property
    def variables(self) -> Mapping[str, Any]:
        if isinstance(self.kept, Path):
            return trainer.variables_in(self.experiment, self.kept)
        return self.kept

    def restore(self, average: bool = False) -> Any:
        """Returns the trained network as its library has it, ready to be evaluated.

        These are the variables of a linen module, a module of nnx, and so on; of several blocks a
        dict of them. `average`: of `config.evaluation.average`. Raises `ConfigError` for a run that
        has no parameters, as it has diverged, or no average.
        """
        prefix = f"{self.experiment.evaluation.average}_" if average else ""
        refuse(
            (not self.variables, "restore: the run has diverged, so that it has no parameters"),
            (prefix not in self.variables, "restore: needs config.evaluation.average"),
        )
        blocks = models.make(self.experiment.model, shared_data.load(self.experiment).classes)
        return base.restore(blocks, self.variables[prefix])

    @property
    def diverged(self) -> bool:
        return bool(self.summary["status"] == "diverged")


def momentum(run: Trained | str | Path) -> Reading:
    """Returns what a run, or the workdir of one or of recorded replicas, says of implicit momentum.

    `estimate`, `pieces` of the 95 % set, `p` of the model and `strength`; `str` has the set in
    words. A run without a meter is trained again. Raises `InputError` for a folder of no records.
    """
    if not isinstance(run, Trained):
        from optdyn.report import implicit_momentum

        return cast(Reading, from_row(implicit_momentum.of_folder(Path(run))))
    if reading := from_row(run.summary):
        return reading
    probes = run.experiment.probes
    line = "implicit momentum: no window of the run has ended; config.probes.window is longer"
    refuse((probes.momentum, line))
    return momentum(run.experiment.with_(probes=probes.with_(momentum=True)).train())


def read_run(experiment: Experiment, folder: Path) -> Trained:
    from optdyn.report import tables

    (point,) = tables.points(folder)
    has_checkpoint = any((folder / "checkpoints").glob("*"))
    params = parameters(folder)[1] if has_checkpoint else None
    return Trained(experiment, tables.logged(point.log), point.summary, params, folder)


def run_of_memory(experiment: Experiment, kept: trainer.RunResult) -> Trained:
    from optdyn.report import tables

    log = tables.logged([finite(row) for row in kept.log])
    return Trained(experiment, log, finite(kept.summary), kept.params, kept.variables)
