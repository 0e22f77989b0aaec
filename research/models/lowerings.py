"""The lowering of every convolution of a model, from the text of `config.model.lowering`."""

from collections.abc import Sequence

from optdyn.models.convolution import require

# Of a convolution: kernel (kh, kw), strides.
Shape = tuple[tuple[int, int], tuple[int, int]]


def each(lowering: str | None, shapes: Sequence[Shape]) -> tuple[str | None, ...]:
    """One lowering for each convolution, in the order in which they are computed.

    'gemm' is that for all of them, 'gemm,fft' names them in order, None is the default. ValueError
    if there are as many names as neither, or if one does not serve its convolution.
    """
    names = lowering.split(",") if lowering else [None]
    if len(names) not in (1, len(shapes)):
        raise ValueError(
            f"lowering {lowering!r} names {len(names)}: must be one for all, or one for each of "
            f"{len(shapes)} convolutions"
        )
    chosen = tuple(names * len(shapes) if len(names) == 1 else names)
    for name, shape in zip(chosen, shapes, strict=True):
        require(name, *shape)
    return chosen
