"""optdyn: the optimization dynamics of parallel training, in JAX.

`Experiment` says what is trained, by which method and on which cluster; its parts are dataclasses
whose fields `help` shows with their units. `compare` trains several with the same seeds, and
`config` returns a shipped one. `import optdyn` imports nothing else, so that it takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and mypy; `__getattr__` looks them up
    from optdyn.cli.comparison import Comparison, compare
    from optdyn.cli.configs import config
    from optdyn.cli.python import Clock, Experiment, Trained, momentum, rule, timeline
    from optdyn.clock.cluster import Cluster, Pieces
    from optdyn.clock.service import (
        Constant,
        Exponential,
        Gamma,
        Geometric,
        Law,
        LogNormal,
        Measured,
        OwnLaw,
        Race,
        Trace,
    )
    from optdyn.methods.async_local_sgd import AsyncLocalSGD, Decoupled
    from optdyn.methods.asynchronous import Asynchronous, Ringleader, Ringmaster
    from optdyn.methods.averaging import DesLoc, DiLoCo, Eager, ModelAveraging, SlowMo
    from optdyn.methods.buffered import Buffered, MindFlayer
    from optdyn.methods.daso import DASO
    from optdyn.methods.dynamic_batch import DynamicBatch
    from optdyn.methods.gossip import GASLoC, Gossip
    from optdyn.methods.local import Local
    from optdyn.methods.method import Method, MethodStack
    from optdyn.methods.pipeline import StalePipeline
    from optdyn.methods.setup import Evaluation, Parallel, Plan, Probes, Replicas, Tune
    from optdyn.methods.sparse import DeMo, SparseLoCo, Sparta
    from optdyn.methods.sync import Sync
    from optdyn.methods.workers import ADPSGD, Elastic
    from optdyn.optimizers.kinds import SGD, Adam, AdamW, ClosedLoop, Optax, Optimizer
    from optdyn.problem.data.kinds import (
        KJV,
        TFDS,
        Data,
        Folder,
        MNIST5k,
        OwnData,
        Packages,
        StandardLibrary,
        TextFiles,
    )
    from optdyn.problem.models import (
        CNN,
        MLP,
        Model,
        ModernTransformer,
        OwnModel,
        Quadratic,
        ResMLP,
        ResNet,
        Transformer,
        from_equinox,
        from_nnx,
    )
    from optdyn.train.grid import Grid, log_range, product
    from optdyn.train.loop import Chunk, Hook

_WHERE = {
    "cli.comparison": "Comparison compare",
    "cli.configs": "config",
    "cli.python": "Clock Experiment Trained momentum rule timeline",
    "clock.cluster": "Cluster Pieces",
    "clock.service": (
        "Constant Exponential Gamma Geometric Law LogNormal Measured OwnLaw Race Trace"
    ),
    "methods.async_local_sgd": "AsyncLocalSGD Decoupled",
    "methods.asynchronous": "Asynchronous Ringleader Ringmaster",
    "methods.averaging": "DesLoc DiLoCo Eager ModelAveraging SlowMo",
    "methods.buffered": "Buffered MindFlayer",
    "methods.daso": "DASO",
    "methods.dynamic_batch": "DynamicBatch",
    "methods.gossip": "GASLoC Gossip",
    "methods.local": "Local",
    "methods.method": "Method MethodStack",
    "methods.pipeline": "StalePipeline",
    "methods.setup": "Evaluation Parallel Plan Probes Replicas Tune",
    "methods.sparse": "DeMo SparseLoCo Sparta",
    "methods.sync": "Sync",
    "methods.workers": "ADPSGD Elastic",
    "optimizers.kinds": "Adam AdamW ClosedLoop Optax Optimizer SGD",
    "problem.data.kinds": (
        "Data Folder KJV MNIST5k OwnData Packages StandardLibrary TFDS TextFiles"
    ),
    "problem.models": (
        "CNN MLP Model ModernTransformer OwnModel Quadratic ResMLP ResNet Transformer "
        "from_equinox from_nnx"
    ),
    "train.grid": "Grid log_range product",
    "train.loop": "Chunk Hook",
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'optdyn' has no attribute {name!r}")
    found = getattr(import_module(f"optdyn.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
