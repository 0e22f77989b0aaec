"""optdyn: the optimization dynamics of parallel training, in JAX.

The public names are those of `optdyn.launch.python`, where ten lines show them: `Experiment`,
`Model`, `Data`, `Cluster`, the built-in methods (`asynchronous`, `diloco`, ...), laws of service
times and optimizers; `compare` is of `optdyn.launch.comparison`. They are looked up when they are
first used.
"""

from typing import Any

_OURS = ("Experiment", "Method", "Trained", "method", "optimizer")
_COMPARED = ("Comparison", "compare")
_LAWS = ("constant", "exponential", "gamma", "lognormal", "trace")
_OPTIMIZERS = ("adam", "adamw", "sgd")
_VALUES = ("Cluster", "Data", "Law", "Model", "Optimizer", "Parallel", "Probes")
_METHODS = (
    *("ad_psgd", "async_local_sgd", "asynchronous", "buffered", "daso", "decoupled", "demo"),
    *("des_loc", "diloco", "dynamic_batch", "eager", "elastic", "gasloc", "gossip", "local"),
    *("mindflayer", "model_averaging", "ringleader", "ringmaster", "slowmo", "sparseloco"),
    *("sparta", "stale_pipeline", "sync"),
)
__all__ = [*_OURS, *_COMPARED, *_LAWS, *_OPTIMIZERS, *_VALUES, *_METHODS]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'optdyn' has no attribute {name!r}")
    from optdyn.launch import comparison, python

    where = comparison if name in _COMPARED else python
    found = python.method(name) if name in _METHODS else getattr(where, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
