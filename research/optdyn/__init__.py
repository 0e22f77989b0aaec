"""optdyn: the optimization dynamics of parallel training, in JAX.

The public names are those of `optdyn.cli.python`, where ten lines show them: `Experiment`, `Model`,
`Data`, `Cluster`, the built-in methods (`asynchronous`, `diloco`, ...), laws of service times and
optimizers; `compare` is of `optdyn.cli.comparison`, and `config` returns a shipped config. They are
imported when they are first used, so that `import optdyn` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and mypy; `__getattr__` looks them up
    from collections.abc import Callable

    from optdyn.cli.comparison import Comparison, compare
    from optdyn.cli.python import (
        Cluster,
        Data,
        Experiment,
        Law,
        Method,
        Model,
        Optimizer,
        Parallel,
        Probes,
        Trained,
        adam,
        adamw,
        constant,
        exponential,
        gamma,
        lognormal,
        method,
        optimizer,
        sgd,
        trace,
    )
    from optdyn.cli.shipped import config

    ad_psgd: Callable[..., Method]
    async_local_sgd: Callable[..., Method]
    asynchronous: Callable[..., Method]
    buffered: Callable[..., Method]
    daso: Callable[..., Method]
    decoupled: Callable[..., Method]
    demo: Callable[..., Method]
    des_loc: Callable[..., Method]
    diloco: Callable[..., Method]
    dynamic_batch: Callable[..., Method]
    eager: Callable[..., Method]
    elastic: Callable[..., Method]
    gasloc: Callable[..., Method]
    gossip: Callable[..., Method]
    local: Callable[..., Method]
    mindflayer: Callable[..., Method]
    model_averaging: Callable[..., Method]
    ringleader: Callable[..., Method]
    ringmaster: Callable[..., Method]
    slowmo: Callable[..., Method]
    sparseloco: Callable[..., Method]
    sparta: Callable[..., Method]
    stale_pipeline: Callable[..., Method]
    sync: Callable[..., Method]

_METHODS = (
    *("ad_psgd", "async_local_sgd", "asynchronous", "buffered", "daso", "decoupled", "demo"),
    *("des_loc", "diloco", "dynamic_batch", "eager", "elastic", "gasloc", "gossip", "local"),
    *("mindflayer", "model_averaging", "ringleader", "ringmaster", "slowmo", "sparseloco"),
    *("sparta", "stale_pipeline", "sync"),
)
_PYTHON = (
    *("Cluster", "Data", "Experiment", "Law", "Method", "Model", "Optimizer", "Parallel"),
    *("Probes", "Trained", "adam", "adamw", "constant", "exponential", "gamma", "lognormal"),
    *("method", "optimizer", "sgd", "trace"),
)
_WHERE = {"Comparison": "comparison", "compare": "comparison", "config": "shipped"}
__all__ = [*_PYTHON, *_WHERE, *_METHODS]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'optdyn' has no attribute {name!r}")
    module = import_module(f"optdyn.cli.{_WHERE.get(name, 'python')}")
    found = module.method(name) if name in _METHODS else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
